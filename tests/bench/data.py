"""Data for the benchmark: checkpoints written by real PyTorch, and one that is metadata only.

    data.py KIND OUT     KIND: big, col, many, hf, plan

  big   2 GiB, 64 tensors, 4 ranks, row shards (Shard(0))
  col   2 GiB, 64 tensors, 8 ranks, column shards (Shard(1)), runs of 1 KiB
  many  100,000 tensors of 1 KiB in 2 pieces each, 2 ranks
  hf    2 GiB, 4 ranks, Hugging Face storage of DCP (per-rank safetensors)
  plan  1,024 ranks x 1,000 tensors: a real .metadata, the data files are sparse holes
"""
import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

WORLD = {"big": 4, "hf": 4, "col": 8, "many": 2}
SCALE = float(os.environ.get("FSDPCTL_BENCH_SCALE", "1"))     # below 1: smaller data, for trying the benchmark itself


def tensors(kind):
    if kind == "many":
        return {f"layers.{i // 100}.p{i % 100}.weight": (256,) for i in range(int(100_000 * SCALE))}
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
    for name, shape in tensors(kind).items():
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
    store = out + ".store"
    mp.spawn(save_rank, (WORLD[kind], kind, out, store), nprocs=WORLD[kind])
    if os.path.exists(store):
        os.remove(store)


if __name__ == "__main__":
    main()
