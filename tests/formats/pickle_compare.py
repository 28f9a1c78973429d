#!/usr/bin/env python3
"""Compares pickles as Python itself reads them: pickle_compare.py A B [A B ...].

Classes that this Python may lack (torch, numpy, the user's) are stand-ins that record what is done to them. Equal means: the same
values of the same types, and the same sharing of everything that can change. Prints what differs; exit 1.
"""
import io
import pickle
import sys

REAL = {"builtins", "collections", "copyreg", "_codecs", "datetime", "pathlib", "argparse", "types", "decimal", "fractions", "uuid"}


class StandIn:
    def __new__(cls, *args, **kwargs):
        self = object.__new__(cls)
        self.log = [("made", args, kwargs)]
        return self

    def __init__(self, *args, **kwargs):
        pass

    def __setstate__(self, state):
        self.log.append(("state", state))

    def append(self, item):
        self.log.append(("item", item))

    def extend(self, items):
        self.log.extend(("item", item) for item in items)

    def __setitem__(self, key, value):
        self.log.append(("entry", key, value))

    def __hash__(self):
        return 0

    def __eq__(self, other):
        return self is other


class Meta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Meta(name, (StandIn,), {"__module__": cls.__module__, "__qualname__": cls.__qualname__ + "." + name})
        setattr(cls, name, made)
        return made


class Reader(pickle.Unpickler):
    classes = {}

    def persistent_load(self, pid):
        return ("persistent", pid)

    def find_class(self, module, name):
        if module in REAL or module == "__builtin__" or module == "copy_reg":
            return super().find_class(module, name)
        made = self.classes
        outer, *inner = name.split(".")
        if (module, outer) not in made:
            made[module, outer] = Meta(outer, (StandIn,), {"__module__": module, "__qualname__": outer})
        value = made[module, outer]
        for part in inner:
            value = getattr(value, part)
        return value


def canonical(value, seen, out):
    """Appends a flat description; things that can change get numbers, so that sharing shows."""
    kind = type(value)
    if kind in (int, str, bytes, bool, type(None)) or isinstance(value, type):
        out.append((kind.__name__, value))
        return
    if kind is float:
        out.append((kind.__name__, value.hex()))
        return
    if kind in (tuple, frozenset):
        out.append((kind.__name__, len(value)))
        for item in value if kind is tuple else sorted(value, key=repr):
            canonical(item, seen, out)
        return
    if id(value) in seen:
        out.append(("again", seen[id(value)]))
        return
    seen[id(value)] = len(seen)
    if isinstance(value, StandIn):
        out.append(("object", value.__class__.__module__, value.__class__.__qualname__, len(value.log)))
        for entry in value.log:
            canonical(entry, seen, out)
    elif isinstance(value, dict):
        out.append((kind.__name__, len(value), repr(getattr(value, "default_factory", None))))
        for k, v in value.items():
            canonical(k, seen, out)
            canonical(v, seen, out)
        if getattr(value, "__dict__", None):
            canonical(vars(value), seen, out)
    elif isinstance(value, (list, set)):
        out.append((kind.__name__, len(value)))
        for item in value if kind is list else sorted(value, key=repr):
            canonical(item, seen, out)
    else:
        out.append((kind.__name__, repr(value)))


def load(path):
    with open(path, "rb") as f:
        out = []
        value = Reader(io.BytesIO(f.read()), encoding="utf-8").load()
        canonical(value, {}, out)
        return out


def main(paths):
    sys.setrecursionlimit(20000)
    different = 0
    for a, b in zip(paths[::2], paths[1::2]):
        x, y = load(a), load(b)
        if x != y:
            different += 1
            at = next((i for i, (p, q) in enumerate(zip(x, y)) if p != q), min(len(x), len(y)))
            print(a, b, "differ at", at, x[at:at + 1], y[at:at + 1])
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
