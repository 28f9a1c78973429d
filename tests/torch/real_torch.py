#!/usr/bin/env python3
"""Real PyTorch reads what fsdpctl writes.

    real_torch.py conversions|training --fsdpctl BINARY --fixtures DIR

conversions: converts and reshards real checkpoints between all formats that real libraries read, and compares what they see in
the source with what they see in the output, name by name and byte by byte.
training: loads fsdpctl's output into FSDP1 and FSDP2 models of several world sizes, compares, takes one more optimizer step and
compares again.

Exit 77 (a visible skip) without PyTorch or the shared fixtures, whose gen/oracle.py does the reading.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

from harness import Harness, differences, skip
from made_checkpoints import made_checkpoints
from resumed import resuming


def without_counters(values):
    """DCP takes Counters apart like any mapping, whoever writes it."""
    apart = {}
    for key, value in values.items():
        if isinstance(value, dict) and set(value) == {"counter"}:
            apart.update({f"{key}.{k}": v for k, v in value["counter"]})
        else:
            apart[key] = value
    return apart


# ---------------------------------------------------------------- conversions

SOURCES = [
    "2.13.0/dcp-fsdp2-w3/ckpt", "2.13.0/dcp-fsdp1-w2/ckpt", "2.13.0/dcp-fsdp2-tp-2x2/ckpt", "2.13.0/dcp-flatoptim-w3/ckpt",
    "2.13.0/dcp-dtypes-w2/ckpt", "2.13.0/dcp-uneven/ckpt", "2.13.0/dcp-zstd-w2/ckpt", "2.9.1/dcp-fsdp2-hsdp-2x2/ckpt",
    "2.4.1/dcp-fsdp1-w4/ckpt", "2.13.0/dcp-objects-w2/ckpt", "2.13.0/plain/checkpoint.pt", "2.13.0/plain/checkpoint_legacy.pt",
    "2.13.0/odd-torch/views.pt", "2.13.0/odd-torch/dtypes.pt", "2.13.0/odd-torch/containers.pt", "2.13.0/odd-torch/params.pt",
    "2.13.0/hf-safetensors/sharded", "2.13.0/hf-safetensors/bin", "2.13.0/hf-safetensors/dtypes/all.safetensors",
    "2.13.0/hf-dcp-w3/sharded",
]
TARGETS = [
    ("torch", "x.pt", []), ("dcp", "w1", ["--world-size", "1"]), ("dcp", "w3", ["--world-size", "3"]), ("dcp", "w7", ["--world-size", "7"]),
    ("safetensors", "x.safetensors", []), ("safetensors", "sharded", ["--max-shard-size", "1KB"]), ("hf-dcp", "hf", ["--world-size", "2", "--part", "model"]),
]
# What a format cannot carry, and what fsdpctl must therefore refuse (exit 4) for a source.
REFUSED = {
    "safetensors": r"odd-torch/(dtypes|views)|dcp-dtypes",      # complex128, bits kinds
    "hf-dcp": r"odd-torch/|dcp-dtypes|dcp-objects|dcp-uneven",
}
# What the real reader cannot read although the format can say it (PyTorch 2.13's Hugging Face reader does not know F4).
UNREADABLE = {("hf-safetensors/dtypes/all.safetensors", "hf-dcp")}
REFUSED |= {
    "dcp": r"(?!)",
}
HDF5_REFUSED = r"(?!)"


def conversion(h, source, target, name, arguments):
    def action():
        out = h.out(name)
        refused = re.search(REFUSED.get(target, r"(?!)"), source)
        result = subprocess.run([h.o.fsdpctl, "convert", h.fixture(source), "-o", out, "--to", target, *arguments], capture_output=True, text=True)
        if result.returncode == 4 and refused:
            return [] if not os.path.exists(out) else ["refused, but something was written"]
        if result.returncode != 0:
            return [f"ended with {result.returncode}: {result.stderr[-1500:]}"]
        tensors, values = h.look(h.fixture(source))
        h.seen.pop(out, None)
        got_tensors, got_values = h.look(out)
        if target in ("safetensors", "hf-dcp"):
            # Plain FQNs for a bare model; tensors alone, since nothing else is visible to these libraries.
            if target == "hf-dcp" or not set(got_tensors) <= set(tensors):
                model = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
                # Without a container for the model, --part model says what it leaves out.
                left_out = re.findall(r"^ *dropped +(\S+): left out by --part", result.stdout, re.M)
                tensors = model or {k: v for k, v in tensors.items() if not any(k == d or k.startswith(d + ".") for d in left_out)}
            if target == "safetensors":   # tied tensors are one copy; the other name is recorded in the header
                tensors = {k: v for k, v in tensors.items() if k in got_tensors or v not in got_tensors.values()}
            return differences(tensors, got_tensors) if got_tensors else ["nothing in the output"]
        if target == "dcp":
            values = without_counters(values)
        return differences(tensors, got_tensors) + differences(values, got_values)
    h.check(f"{source} -> {name}", action)


def there_and_back(h, source):
    def action():
        far = h.out("far")
        h.fsdpctl("convert", h.fixture(source), "-o", far, "--to", "safetensors")
        back = h.out("back.pt")
        h.fsdpctl("convert", far, "-o", back, "--to", "torch")
        h.seen.pop(back, None)
        tensors, values = h.look(h.fixture(source))
        got_tensors, got_values = h.look(back)
        return differences(tensors, got_tensors) + differences(values, got_values)
    h.check(f"{source} -> safetensors -> torch", action)


# What h5py shows of a dtype that numpy does not have; the others look the same. None: a record.
H5PY = {"bfloat16": "float32", "float8_e5m2": "float16", "complex32": None}


def h5_path(key, file):
    """Where a key of the checkpoint is in the file, by the scheme that formats/hdf5.md promises."""
    def escaped(name):
        if name in ("", ".", ".."):
            return "%2E" * len(name) or "%"
        return name.replace("%", "%25").replace("/", "%2F")

    parts = key.split(".")
    places = ["extra/" + escaped(key)] + ["model/" + escaped(".".join(parts[i:])) for i in range(len(parts))]
    if "state" in parts:
        at = parts.index("state")
        fqn, field, optimizer = ".".join(parts[at + 1:-1]), parts[-1], ".".join(parts[:at])
        places += [f"optimizer/{field}/{escaped(fqn)}", f"optimizer/{escaped(optimizer)}/{field}/{escaped(fqn)}"]
    return next((p for p in places if p in file), None)


def h5_difference(dataset, expected):
    """One tensor as h5py shows it: its bytes, and their values in the type that users see."""
    import hashlib

    import h5py
    import numpy
    import torch

    dtype, shape = expected["dtype"], expected["shape"]
    raw = numpy.zeros(dataset.size * dataset.id.get_type().get_size(), "uint8")
    if raw.size:
        dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, dataset.id.get_type())
    if list(dataset.shape) != shape or hashlib.sha256(raw.tobytes()).hexdigest() != expected["sha256"]:
        return f"{dataset.shape} and its bytes, expected {expected}"
    real = torch.frombuffer(bytearray(raw.tobytes()), dtype=getattr(torch, dtype)) if raw.size else torch.empty(0, dtype=getattr(torch, dtype))
    if "torch_dtype" in dataset.attrs:
        said = dataset.attrs["torch_dtype"].decode()   # h5py shows texts of fixed length as bytes
        return None if said == dtype and dataset.dtype.kind == "u" else f"torch_dtype {said} of {dataset.dtype}"
    shown = H5PY.get(dtype, dtype)
    if shown is None:
        return None
    if str(dataset.dtype) != shown:
        return f"shown as {dataset.dtype}"
    wanted = real.to(getattr(torch, shown)).numpy().reshape(shape)
    return None if numpy.array_equal(dataset[()], wanted, equal_nan=shown[:3] in ("flo", "com")) else "values differ"


def through_hdf5(h, source):
    def action():
        import h5py

        out = h.out("x.h5")
        arguments = ["convert", h.fixture(source), "-o", out, "--to", "hdf5"]
        result = subprocess.run([h.o.fsdpctl, *arguments], capture_output=True, text=True)
        if result.returncode == 4 and re.search(HDF5_REFUSED, source):
            return [] if not os.path.exists(out) else ["refused, but something was written"]
        if result.returncode != 0:
            return [f"ended with {result.returncode}: {result.stderr[-1500:]}"]
        tensors, values = h.look(h.fixture(source))
        lines = []
        with h5py.File(out) as file:
            for key, expected in tensors.items():
                path = h5_path(key, file)
                wrong = "no dataset" if path is None else h5_difference(file[path], expected)
                if wrong:
                    lines.append(f"{key}: {wrong}")
        if shutil.which("h5dump"):
            subprocess.run(["h5dump", "-H", out], check=True, stdout=subprocess.DEVNULL)
        for target, name in (("torch", "back.pt"), ("dcp", "back")):
            back = h.out(name)
            h.fsdpctl("convert", out, "-o", back, "--to", target, *(["--world-size", "2"] if target == "dcp" else []))
            h.seen.pop(back, None)
            got_tensors, got_values = h.look(back)
            expected_values = without_counters(values) if target == "dcp" else values
            lines += [f"{target}: {d}" for d in differences(tensors, got_tensors) + differences(expected_values, got_values)]
        return lines
    h.check(f"{source} -> hdf5 -> torch, dcp", action)


def conversions(h):
    made_checkpoints(h)
    for source in SOURCES:
        for target, name, arguments in TARGETS:
            if any(source.endswith(s) and target == t for s, t in UNREADABLE):
                continue
            conversion(h, source, target, name, arguments)
    for source in ("2.13.0/dcp-fsdp2-w3/ckpt", "2.13.0/plain/checkpoint.pt"):
        there_and_back(h, source)
    for source in SOURCES:
        through_hdf5(h, source)


# ---------------------------------------------------------------- training

RUNS = [   # fixture, reshard to, flavour, world, more options of load-into
    ("2.13.0/dcp-fsdp2-w4", 3, "fsdp2", 3, []),
    ("2.13.0/dcp-fsdp2-w3", 5, "fsdp2", 2, []),
    ("2.13.0/dcp-fsdp1-w2", 3, "fsdp1", 3, []),
    ("2.13.0/dcp-fsdp1-w4", 1, "fsdp2", 2, []),
    ("2.9.1/dcp-fsdp2-w2", 4, "fsdp1", 2, []),
    ("2.13.0/dcp-flatoptim-w3", 2, "fsdp2", 2, ["--flatten-optim"]),
    ("2.13.0/dcp-fsdp1-flat-w3", 2, "fsdp1", 2, ["--flat-param"]),
]


def load_into(h, path, fixture, flavour, world, more):
    expected = os.path.join(h.fixture(fixture), "expected.json")
    result = subprocess.run([sys.executable, "-W", "ignore", os.path.join(h.o.fixtures, "gen/oracle.py"), "load-into", path, "--flavour", flavour,
                             "--world", str(world), "--expect", expected, *more], capture_output=True, text=True)
    return [] if result.returncode == 0 else [(result.stdout + result.stderr)[-1500:]]


def training(h):
    for fixture, ranks, flavour, world, more in RUNS:
        def action():
            out = h.out("resharded")
            h.fsdpctl("reshard", h.fixture(fixture + "/ckpt"), "-o", out, "--world-size", str(ranks))
            return load_into(h, out, fixture, flavour, world, more)
        h.check(f"{fixture} resharded to {ranks}, trained on by {flavour} on {world} rank(s)", action)

    def old_optimizer():
        out = h.out("filled")
        h.fsdpctl("convert", h.fixture("2.4.1/dcp-fsdp2-w2/ckpt"), "-o", out, "--to", "dcp", "--fill-missing")
        return load_into(h, out, "2.4.1/dcp-fsdp2-w2", "fsdp2", 2, [])
    h.check("2.4.1 optimizer and scheduler with --fill-missing, trained on by fsdp2", old_optimizer)

    def from_torch():
        out = h.out("x.pt")
        h.fsdpctl("convert", h.fixture("2.13.0/dcp-fsdp2-w3/ckpt"), "-o", out, "--to", "torch")
        return load_into(h, out, "2.13.0/dcp-fsdp2-w3", "fsdp2", 2, [])
    h.check("dcp -> torch, trained on by fsdp2", from_torch)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["conversions", "training", "resuming"])
    parser.add_argument("--fsdpctl", required=True)
    parser.add_argument("--trainer", help="train_steps; for resuming")
    parser.add_argument("--fixtures", required=True)
    options = parser.parse_args()
    if not os.path.exists(os.path.join(options.fixtures, "gen/oracle.py")):
        skip("../shared/fixtures is not there")
    try:
        import torch  # noqa: F401
    except ImportError:
        skip("real PyTorch is not installed: scripts/setup.sh torch")
    options.fsdpctl = os.path.abspath(options.fsdpctl)
    options.trainer = options.trainer and os.path.abspath(options.trainer)
    sys.path.insert(0, os.path.join(options.fixtures, "gen"))
    harness = Harness(options)
    {"conversions": conversions, "training": training, "resuming": resuming}[options.what](harness)
    return harness.finish()


if __name__ == "__main__":
    sys.exit(main())
