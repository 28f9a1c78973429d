"""Data for the benchmark: checkpoints written by real PyTorch, one whose data fsdpctl wrote, and one that is metadata only.

    data.py KIND OUT [FSDPCTL]     KIND: big, col, many, hf, plan; many needs the program

  big   2 GiB, 64 tensors, 4 ranks, row shards (Shard(0))
  col   2 GiB, 64 tensors, 8 ranks, column shards (Shard(1)), runs of 1 KiB
  many  100,000 tensors of 1 KiB in 2 pieces each, 2 ranks: data by fsdpctl (PyTorch takes minutes), .metadata pickled by Python
  hf    2 GiB, 4 ranks, Hugging Face storage of DCP (per-rank safetensors)
  plan  1,024 ranks x 1,000 tensors: a real .metadata, the data files are sparse holes
"""
import os
import shutil
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

WORLD = {"big": 4, "hf": 4, "col": 8}
SCALE = float(os.environ.get("FSDPCTL_BENCH_SCALE", "1"))     # below 1: smaller data, for trying the benchmark itself


def tensors():
    return {f"layers.{i}.weight": (4096, 2048) for i in range(max(1, int(64 * SCALE)))}


def save_rank(rank, world, kind, out, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (world,))
    random = torch.Generator().manual_seed(rank)
    dim = 1 if kind == "col" else 0
    state = {}
    for name, shape in tensors().items():
        local = list(shape)
        local[dim] //= world
        state[name] = DTensor.from_local(torch.randn(local, generator=random), mesh, [Shard(dim)], run_check=False)
    if kind == "hf":
        writer = dcp.HuggingFaceStorageWriter(path=out, save_distributed=True)
        dcp.save(state, storage_writer=writer)
    else:
        dcp.save({"model": state}, checkpoint_id=out)
    dist.barrier()
    dist.destroy_process_group()


def save_many(out, fsdpctl):
    """As 2 ranks would have saved it. When PyTorch gathers what the ranks say, no two objects share a string any more."""
    import pickle

    import numpy as np
    from safetensors.numpy import save_file
    from torch.distributed.checkpoint import metadata as M

    rows = np.random.default_rng(0).standard_normal((int(100_000 * SCALE), 256), dtype=np.float32)
    flat = out + ".safetensors"
    save_file({f"model.layers.{i // 100}.p{i % 100}.weight": row for i, row in enumerate(rows)}, flat)
    os.rmdir(out)
    subprocess.run([fsdpctl, "convert", flat, "--to", "dcp", "--world-size", "2", "--no-read-back", "-q", "-o", out], check=True)
    os.remove(flat)
    os.remove(os.path.join(out, "fsdpctl.manifest.json"))      # of the .metadata that is replaced

    def own(text):
        return text.encode().decode()

    md = dcp.FileSystemReader(out).read_metadata()
    state = {own(k): v for k, v in md.state_dict_metadata.items()}
    planner = {own(k): ("model", own(k)[len("model."):]) for k in state}
    storage = {M.MetadataIndex(own(k.fqn), torch.Size(k.offset), k.index): v for k, v in md.storage_data.items()}
    with open(os.path.join(out, ".metadata"), "wb") as f:
        pickle.dump(M.Metadata(state, planner, storage), f)


def save_plan(out, ranks=1024, count=1000):
    """What 1,024 ranks would have written: every tensor in 1,024 row shards, one item each."""
    import pickle

    from torch.distributed.checkpoint import metadata as M
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    ranks, count = int(ranks * max(SCALE, 0.02)), int(count * max(SCALE, 0.02))
    item = 2 * 256 * 4 + 1577
    properties = M.TensorProperties(dtype=torch.float32)
    state, storage, planner = {}, {}, {}
    for t in range(count):
        name = f"model.layers.{t}.weight"
        chunks = []
        for r in range(ranks):
            offset = torch.Size([2 * r, 0])
            chunks.append(M.ChunkStorageMetadata(offset, torch.Size([2, 256])))
            storage[M.MetadataIndex(name, offset, r)] = _StorageInfo(f"__{r}_0.distcp", t * item, item)
        state[name] = M.TensorStorageMetadata(properties, torch.Size([2 * ranks, 256]), chunks)
        planner[name] = ("model", f"layers.{t}.weight")
    for r in range(ranks):
        with open(os.path.join(out, f"__{r}_0.distcp"), "wb") as f:
            f.truncate(count * item)
    with open(os.path.join(out, ".metadata"), "wb") as f:
        pickle.dump(M.Metadata(state, planner, storage), f)


def main():
    kind, out = sys.argv[1:3]
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    if kind == "plan":
        return save_plan(out)
    if kind == "many":
        return save_many(out, sys.argv[3])
    store = out + ".store"
    mp.spawn(save_rank, (WORLD[kind], kind, out, store), nprocs=WORLD[kind])
    if os.path.exists(store):
        os.remove(store)


if __name__ == "__main__":
    main()
