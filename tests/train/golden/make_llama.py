#!/usr/bin/env python3
"""Makes tests/data/llama: what Hugging Face's Llama computes, and how PyTorch FSDP2 trains it.

    pip install torch==2.13.0 transformers==VERSION numpy     (the version is in golden.json)
    python tests/train/golden/make_llama.py tests/data/llama

Two ranks, CPU, one thread each. For each model: weights (float32), tokens, logits in FP32 and BF16 with sdpa and in FP32 with eager
attention; losses of AdamW steps under FSDP2, in FP32 and in BF16, and the gradients of the first one. `canary` holds results of
single operations: where a machine gives other bits for those, it cannot give the same logits either.

Also the weights of two models as checkpoints: hf (BF16, tied, in several files) and dcp (FP32, of two ranks).
"""
import json
import os
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import transformers
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

COMMON = dict(vocab_size=96, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6, rms_norm_eps=1e-5,
              max_position_embeddings=128, initializer_range=0.08)
MODELS = {
    "grouped": dict(num_key_value_heads=2, rope_theta=10000.0, pad_token_id=7, tie_word_embeddings=False),
    "tied": dict(num_key_value_heads=6, head_dim=16, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                 rope_scaling=dict(rope_type="llama3", rope_theta=20000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                   original_max_position_embeddings=32), rope_theta=20000.0),
    # Heads too wide for the grouped attention of PyTorch; computes, but does not train.
    "wide": dict(num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=264, tie_word_embeddings=True,
                 rope_scaling=dict(rope_type="linear", factor=4.0, rope_theta=10000.0), rope_theta=10000.0),
}
TRAINED = ("grouped", "tied")
STEPS = dict(float32=50, bfloat16=20)
RANKS, BATCH, LENGTH = 2, 8, 48   # enough tokens that a BF16 weight rounded the other way is lost in the mean
ADAMW = dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def tokens_of(model, rank=None):
    """[steps, ranks, batch, length + 1]"""
    generator = torch.Generator().manual_seed(len(model))
    first = torch.randint(0, COMMON["vocab_size"], (max(STEPS.values()), RANKS, BATCH, LENGTH + 1), generator=generator)
    fresh = torch.rand(first.shape, generator=generator) < 0.3
    for i in range(1, LENGTH + 1):
        first[..., i] = torch.where(fresh[..., i], first[..., i], (first[..., i - 1] * 5 + 1) % COMMON["vocab_size"])
    return first


def build(name, dtype=torch.float32, attention="sdpa"):
    torch.manual_seed(1234)
    config = LlamaConfig(**{**COMMON, **MODELS[name]}, attn_implementation=attention)
    model = LlamaForCausalLM(config)
    with torch.no_grad():   # not only ones and zeros where Hugging Face begins with them
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model = model.to(dtype)
    model.model.rotary_emb.inv_freq = frequencies   # FP32, as from_pretrained(dtype=...) leaves it
    return model


def loss_of(model, tokens):
    logits = model(tokens[:, :-1]).logits.float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def train(rank, port, name, precision, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    mesh = dist.init_device_mesh("cpu", (RANKS,))
    model = build(name)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if precision == "bfloat16" else MixedPrecisionPolicy()
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if (name, precision) == ("grouped", "float32"):
        dcp.save({"model": model.state_dict()}, checkpoint_id=os.path.join(os.path.dirname(out), "dcp"))
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    tokens = tokens_of(name)
    losses, gradients = [], {}
    for step in range(STEPS[precision]):
        loss = loss_of(model, tokens[step, rank])
        loss.backward()
        if step == 0:
            gradients = {n: p.grad.full_tensor().numpy() for n, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        every = [torch.zeros(()) for _ in range(RANKS)]
        dist.all_gather(every, loss.detach())
        losses.append([x.item() for x in every])
    if rank == 0:
        np.savez(out, losses=np.array(losses), **gradients)
    dist.destroy_process_group()


def canaries():
    """Of the kinds of operations that the models are made of."""
    generator = torch.Generator().manual_seed(5)
    a, b = torch.randn(40, 48, generator=generator), torch.randn(80, 48, generator=generator)
    q, k, v = (torch.randn(3, 6, 40, 8, generator=generator) for _ in range(3))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    results = {}
    for dtype in (torch.float32, torch.bfloat16):
        x, w = a.to(dtype), b.to(dtype)
        results[f"linear {dtype}"] = torch.nn.functional.linear(x, w)
        results[f"silu {dtype}"] = torch.nn.functional.silu(x)
        results[f"sdpa {dtype}"] = sdpa(q.to(dtype), k.to(dtype), v.to(dtype), is_causal=True)
    results["mean"] = a.pow(2).mean(-1, keepdim=True)
    results["cos"], results["sin"] = a.cos(), a.sin()
    return dict(a=a, b=b, q=q, k=k, v=v), results


class Writer:
    """Tensors one after the other in a file; golden.json says where."""

    def __init__(self, folder):
        self.file = open(os.path.join(folder, "tensors.bin"), "wb")
        self.index = {}

    def put(self, name, tensor):
        array = tensor if isinstance(tensor, np.ndarray) else (
            tensor.detach().contiguous().view(torch.int16).numpy() if tensor.dtype == torch.bfloat16 else tensor.detach().contiguous().numpy())
        kind = "bfloat16" if getattr(tensor, "dtype", None) == torch.bfloat16 else str(array.dtype)
        self.index[name] = dict(dtype=kind, shape=list(array.shape), offset=self.file.tell())
        self.file.write(np.ascontiguousarray(array).tobytes())


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    torch.set_num_threads(1)
    writer = Writer(folder)
    golden = dict(torch=torch.__version__, transformers=transformers.__version__, steps=STEPS, ranks=RANKS, adamw=ADAMW, models={})
    inputs, results = canaries()
    for name, tensor in inputs.items():
        writer.put("canary input " + name, tensor)
    for name, tensor in results.items():
        writer.put("canary " + name, tensor)
    for name in MODELS:
        model = build(name)
        golden["models"][name] = dict(config=model.config.to_dict(), losses={})
        for fqn, parameter in model.named_parameters():
            writer.put(f"{name} weight {fqn}", parameter)
        tokens = tokens_of(name)
        writer.put(f"{name} tokens", tokens.to(torch.uint8))
        for label, dtype, attention in (("float32", torch.float32, "sdpa"), ("bfloat16", torch.bfloat16, "sdpa"), ("eager", torch.float32, "eager")):
            with torch.no_grad():
                writer.put(f"{name} logits {label}", build(name, dtype, attention)(tokens[0, 0, :3, :-1]).logits)
        for precision in STEPS if name in TRAINED else ():
            out = os.path.join(folder, "run.npz")
            # Forked: nothing is imported again.
            mp.start_processes(train, args=(29500 + os.getpid() % 2000, name, precision, out), nprocs=RANKS, start_method="fork")
            run = np.load(out)
            golden["models"][name]["losses"][precision] = run["losses"].tolist()
            for fqn in run.files:
                if fqn != "losses":
                    writer.put(f"{name} gradient {precision} {fqn}", run[fqn])
            os.remove(out)
    build("tied", torch.bfloat16).save_pretrained(os.path.join(folder, "hf"), max_shard_size="60KB")
    golden["tensors"] = writer.index
    with open(os.path.join(folder, "golden.json"), "w") as file:
        json.dump(golden, file, indent=1)


if __name__ == "__main__":
    main()
