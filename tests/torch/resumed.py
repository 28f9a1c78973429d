"""Real PyTorch FSDP goes on with what our runtime saved, optimizer included, at another world size; and ours with what FSDP saved.
The losses of the next steps agree. Called by real_torch.py."""
import os
import subprocess

MICRO_BATCHES, BATCH, LENGTH, VOCABULARY = 4, 2, 9, 32
TRAINED, NEXT = 3, 4        # steps before and after
BOUND = 1e-6                # of relative differences of losses


def model():
    import torch
    from torch import nn

    class MlpLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(12, 20)
            self.down = nn.Linear(20, 12)

        def forward(self, x):
            return x + self.down(torch.nn.functional.gelu(self.up(x)))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, 12)
            self.layers = nn.ModuleList(MlpLayer() for _ in range(3))
            self.head = nn.Linear(12, VOCABULARY, bias=False)

        def forward(self, x):
            x = self.embed(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    torch.manual_seed(5)
    return Mlp(), MlpLayer


def wrapped(flavour):
    """(model, its optimizer), with the groups that ours makes: no weight decay on what has one dimension."""
    import torch

    bare, layer = model()
    names = {True: [], False: []}
    for name, parameter in bare.named_parameters():
        names[parameter.dim() > 1].append(name)
    if flavour == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for child in bare.layers:
            fully_shard(child, mesh=mesh)
        fully_shard(bare, mesh=mesh)
        made = bare
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        made = FullyShardedDataParallel(bare, auto_wrap_policy=ModuleWrapPolicy({layer}), use_orig_params=True, device_id=torch.device("cpu"))
    by_name = {n.replace("_fsdp_wrapped_module.", ""): p for n, p in made.named_parameters()}
    groups = [{"params": [by_name[n] for n in names[True]], "weight_decay": 0.01}, {"params": [by_name[n] for n in names[False]], "weight_decay": 0.0}]
    return made, torch.optim.AdamW(groups, lr=0.01)


def train(rank, world, made, optimizer, flavour, tokens, first, steps):
    import torch
    import torch.distributed as dist

    losses = []
    for step in range(first, first + steps):
        total = torch.zeros(MICRO_BATCHES, dtype=torch.float64)
        mine = range(rank, MICRO_BATCHES, world)
        for micro_batch in mine:
            window = tokens[step, micro_batch]
            logits = made(window[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), window[:, 1:].reshape(-1))
            (loss / len(mine)).backward()
            total[micro_batch] = loss.item()
        made.clip_grad_norm_(1.0) if flavour == "fsdp1" else torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(total.mean().item())
    return losses


def continue_ours(rank, world, path, flavour, tokens):
    import torch.distributed.checkpoint as dcp
    import torch.distributed.checkpoint.state_dict as SD

    made, optimizer = wrapped(flavour)
    for group in optimizer.param_groups:   # nothing may be right before the load
        group.update(lr=0.5, weight_decay=0.5, betas=(0.5, 0.5), eps=0.5)
    weights, state = SD.get_state_dict(made, optimizer)
    want = {"model": weights, "optimizer": state, "step": 0, "samples": 0, "config": "", "scaler": {}, "scheduler": {}}
    kw = {"planner": dcp.DefaultLoadPlanner(flatten_sharded_tensors=False)} if flavour == "fsdp1" else {}
    dcp.load(want, checkpoint_id=path, **kw)
    SD.set_state_dict(made, optimizer, model_state_dict=want["model"], optim_state_dict=want["optimizer"])
    assert want["step"] == TRAINED, want["step"]
    return train(rank, world, made, optimizer, flavour, tokens, TRAINED, NEXT)


def train_and_save(rank, world, path, flavour, tokens):
    import torch.distributed.checkpoint as dcp
    import torch.distributed.checkpoint.state_dict as SD

    made, optimizer = wrapped(flavour)
    train(rank, world, made, optimizer, flavour, tokens, 0, TRAINED)
    weights, state = SD.get_state_dict(made, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path)
    return train(rank, world, made, optimizer, flavour, tokens, TRAINED, NEXT)


def ours(h, tokens, ranks, placement, steps, first, *more):
    result = subprocess.run([h.o.trainer, tokens, str(ranks), placement, str(steps), str(first), *more], capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(more)} ended with {result.returncode}: {result.stdout[-500:]}{result.stderr[-500:]}")
    lines = [line.split() for line in result.stdout.splitlines()]
    return [float(words[1]) for words in lines if words[0] == "loss"], [" ".join(words) for words in lines if words[0] != "loss"]


def compared(expected, got):
    if len(expected) != len(got):
        return [f"{len(got)} losses, not {len(expected)}"]
    worst = max(abs(a - b) / abs(a) for a, b in zip(expected, got))
    print(f"        relative difference of {len(got)} losses: {worst:.2g}")
    return [f"losses {got}, not {expected}"] if worst > BOUND else []


def resuming(h):
    import numpy
    import oracle
    import torch

    file = os.path.join(h.work, "tokens")
    generator = numpy.random.default_rng(3)
    numbers = generator.integers(0, VOCABULARY, (TRAINED + NEXT, MICRO_BATCHES, BATCH, LENGTH), dtype=numpy.int64)
    numbers.tofile(file)
    tokens = torch.from_numpy(numbers)

    for placement, ranks in (("flat", 2), ("per_parameter", 4)):
        path = h.out(f"ours-{placement}")
        ours(h, file, ranks, placement, TRAINED, 0, "--to", path)
        expected, _ = ours(h, file, ranks, placement, NEXT, 0, "--from", path)
        for flavour, world in (("fsdp2", 4 if ranks == 2 else 2), ("fsdp1", 2), ("fsdp2", 1)):
            h.check(f"saved by ours ({placement}, {ranks} ranks), continued by {flavour} on {world}",
                    lambda: compared(expected, oracle.spawn(continue_ours, world, path, flavour, tokens)[0]))

    for flavour, world in (("fsdp2", 2), ("fsdp1", 2), ("fsdp2", 4)):
        path = h.out(f"theirs-{flavour}-{world}")
        expected = oracle.spawn(train_and_save, world, path, flavour, tokens)[0]
        for placement, ranks in (("flat", 4 if world == 2 else 2), ("per_parameter", 1)):
            def action():
                losses, said = ours(h, file, ranks, placement, NEXT, TRAINED, "--from", path)
                wrong = [] if said == ["anew step", "anew samples"] else [f"reported {said}"]
                return wrong + compared(expected, losses)
            h.check(f"saved by {flavour} on {world}, continued by ours ({placement}, {ranks} ranks)", action)
