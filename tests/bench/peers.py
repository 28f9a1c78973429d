"""What PyTorch and Hugging Face do for the same job: one operation in a process of its own, timed without the import.

    peers.py OPERATION SRC [OUT]     prints {"seconds", "peak_mib"} as JSON

Output is removed before and synced inside the timed part, as for fsdpctl.
"""
import json
import os
import resource
import shutil
import subprocess
import sys
import time

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict


def load_all(src):
    state = {}
    _load_state_dict(state, storage_reader=dcp.FileSystemReader(src), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def read_metadata(src, out):
    metadata = dcp.FileSystemReader(src).read_metadata()
    assert sum(1 for _ in metadata.state_dict_metadata)


def merge_weights(src, out):
    from safetensors.torch import save_file

    os.makedirs(out)
    save_file(dict(load_all(src)["model"]), os.path.join(out, "model.safetensors"))


def consolidate(src, out):
    from safetensors import safe_open
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files

    os.makedirs(out)
    names = set()
    for file in os.listdir(src):
        with safe_open(os.path.join(src, file), "pt") as opened:
            names.update(opened.keys())
    consolidate_safetensors_files(src, out, dict.fromkeys(names, 1), num_threads=2)


OPERATIONS = {
    "read_metadata": read_metadata,
    "dcp_to_torch": lambda src, out: dcp_to_torch_save(src, out),
    "dcp_reshard": lambda src, out: dcp.save(load_all(src), checkpoint_id=out),
    "merge_weights": merge_weights,
    "consolidate": consolidate,
}


def main():
    operation, src = sys.argv[1:3]
    out = sys.argv[3] if len(sys.argv) > 3 else None
    if out:
        shutil.rmtree(out, ignore_errors=True)
        if os.path.exists(out):
            os.remove(out)
    torch.set_num_threads(2)
    if operation == "read_metadata":
        read_metadata(src, None)      # warm interpreter: classes imported, code cached
    start = time.perf_counter()
    OPERATIONS[operation](src, out)
    if out:
        subprocess.run(["sync", "-f", os.path.dirname(os.path.abspath(out))], check=True)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    main()
