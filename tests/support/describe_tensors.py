"""Prints, as JSON, what the real libraries read: {"tensors": {name: {dtype, shape, sha256}}, "metadata": {...}}.

describe_tensors.py safetensors FILE...    safetensors.torch.load_file
describe_tensors.py hf-dcp DIRECTORY       torch.distributed.checkpoint.HuggingFaceStorageReader
"""
import hashlib
import json
import sys

import torch


def describe(tensor):
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "sha256": hashlib.sha256(raw).hexdigest()}


def read_safetensors(files):
    from safetensors import safe_open
    from safetensors.torch import load_file

    tensors, metadata = {}, {}
    for file in files:
        tensors.update(load_file(file))
        with safe_open(file, "pt") as f:
            metadata.update(f.metadata() or {})
    return tensors, metadata


def read_hf_dcp(directory):
    import torch.distributed.checkpoint as dcp

    reader = dcp.HuggingFaceStorageReader(directory)
    state = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in reader.read_metadata().state_dict_metadata.items()}
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state, {}


tensors, metadata = read_hf_dcp(sys.argv[2]) if sys.argv[1] == "hf-dcp" else read_safetensors(sys.argv[2:])
print(json.dumps({"tensors": {name: describe(t) for name, t in tensors.items()}, "metadata": metadata}))
