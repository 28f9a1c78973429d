#!/usr/bin/env python3
"""Writes protocol<N>.pkl: one Python value in every protocol of pickle. Nothing but the standard library."""
import collections
import pickle

shared = [1, 2]
value = {
    "ints": [0, 1, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**63, 2**70, -(2**200)],
    "reals": [0.0, -0.0, 1.5, float("inf"), -1e-300],
    "flags": [None, True, False],
    "text": ["", "a", "na\u00efve \u2603 \U0001f600", "\ud800", "quote'\\n\n", "x" * 300],
    "raw": [b"", b"abc", bytes(range(256)), bytearray(b"xyz")],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "sets": [frozenset(["a"]), {7}],
    "complex": 1.5 - 2j,
    "od": collections.OrderedDict([("z", 1), ("a", 2)]),
    "counter": collections.Counter({"l": 2}),
    "dd": collections.defaultdict(list, {"k": [1]}),
    7: "int key",
    (1, "x"): None,
    "alias": [shared, shared],
    "empty": [[], {}],
}
for protocol in range(6):
    with open("protocol%d.pkl" % protocol, "wb") as f:
        pickle.dump(value, f, protocol)
