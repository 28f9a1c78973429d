"""Writes casts.json: what PyTorch's .to(dtype) makes of chosen values, as hex of little-endian bytes.

    python make.py > casts.json

Every bit pattern of the 8-bit types; of wider ones all neighbourhoods where rounding, overflow or subnormals begin,
plus random patterns. Made with PyTorch 2.13.0 on a CPU.
"""
import json
import random
import struct
import sys

import torch

DTYPES = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
          "float8_e5m2fnuz", "float8_e8m0fnu"]


def tensor_of(name, raw):
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(getattr(torch, name))


def hex_of(tensor):
    return bytes(tensor.contiguous().view(torch.uint8).tolist()).hex()


def float32_patterns():
    rng = random.Random(1)
    patterns = [0, 1, 2, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7F800001]
    # Around each power of two and each half step of a target's mantissa.
    for exponent in range(1, 255):
        if exponent in (1, 2, 102, 103, 110, 112, 113, 116, 117, 119, 120, 121, 127, 134, 135, 141, 142, 143, 253, 254):
            for top in range(16):
                for low in (-1, 0, 1):
                    patterns.append(((exponent << 23) | (top << 19)) + low)
    for shift in (12, 13, 15, 16):
        for _ in range(30):
            patterns.append((rng.randrange(90, 160) << 23) | (rng.randrange(1 << 23) >> shift << shift) | (1 << (shift - 1)))
    patterns += [rng.randrange(1 << 31) for _ in range(150)]
    return [p | sign for p in patterns for sign in (0, 0x80000000)]


def inputs():
    singles = float32_patterns()
    rng = random.Random(2)
    doubles = [struct.pack("<d", struct.unpack("<f", struct.pack("<I", p))[0] * (1 + k * 2.0**-40))
               for p in singles[::7] for k in (-1, 0, 1)]
    doubles += [struct.pack("<Q", rng.randrange(1 << 64)) for _ in range(200)]
    yield "float64", b"".join(doubles)
    yield "float32", struct.pack(f"<{len(singles)}I", *singles)
    for name in ("float16", "bfloat16"):
        halves = [rng.randrange(1 << 16) for _ in range(200)] + [h | s for h in range(0, 0x8000, 197) for s in (0, 0x8000)]
        yield name, struct.pack(f"<{len(halves)}H", *halves)
    for name in DTYPES[4:]:
        yield name, bytes(range(256))


table = {}
for source, raw in inputs():
    tensor = tensor_of(source, raw)
    table[source] = {"in": raw.hex(), "out": {to: hex_of(tensor.to(getattr(torch, to))) for to in DTYPES if to != source}}
json.dump(table, sys.stdout, indent=1)
print()
