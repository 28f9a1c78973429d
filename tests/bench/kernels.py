"""make bench, kernels: one optimizer step of fsdpctl beside PyTorch's, on the same tensors with the same number of threads.

    kernels.py --bench BINARY [--threads 2] [--elements N] [--tensors N] [--runs 15] [--json FILE]

The contestants alternate, each in a process of its own that stays; medians; ratio = PyTorch's time / ours. PyTorch does what a
mixed-precision step needs: FP32 gradients from 16-bit ones, GradScaler's unscale with its found-inf check, clip_grad_norm_, fused
AdamW, and the copy of the masters into the 16-bit parameters.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SCALE = 1024.0


def sizes(elements, tensors):
    """As in kernels.cpp."""
    result, left = [], elements
    for i in range(tensors - 1):
        even = elements // tensors
        result.append(min(left, even // 2 + even * i // tensors))
        left -= result[-1]
    return result + [left]


class Ours:
    def __init__(self, options, gradient):
        self.process = subprocess.Popen(
            [options.bench, "--serve", "--threads", str(options.threads), "--elements", str(options.elements),
             "--tensors", str(options.tensors), "--gradient", gradient],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit("the kernel benchmark did not start")

    def seconds(self, operation):
        self.process.stdin.write(operation + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class PyTorch:
    def __init__(self, options, gradient):
        import torch

        self.torch = torch
        torch.set_num_threads(options.threads)
        torch.manual_seed(1)
        shapes = sizes(options.elements, options.tensors)
        dtype = getattr(torch, gradient)
        self.given = [(torch.rand(n) * 16 - 8).to(dtype) for n in shapes]
        self.masters = [torch.rand(n) * 2 - 1 for n in shapes]
        self.parameters = [w.bfloat16() for w in self.masters]
        for w in self.masters:
            w.grad = torch.zeros_like(w)
        self.optimizer = torch.optim.AdamW(self.masters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def unscale(self):
        """FP32 gradients, unscaled; whether one is not finite."""
        torch = self.torch
        gradients = [w.grad for w in self.masters]
        torch._foreach_copy_(gradients, self.given)
        found, inverse = torch.zeros(1), torch.full((1,), 1 / SCALE)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)
        return gradients, found.item()

    def unscale_and_norm(self):
        gradients, _ = self.unscale()
        self.torch.nn.utils.get_total_norm(gradients, foreach=True).item()

    def norm(self):
        """Found-inf and norm of the scaled gradients, nothing written: PyTorch's own shortest way."""
        self.torch.nn.utils.get_total_norm(self.given, foreach=True).item()

    def adamw(self):
        self.optimizer.step()
        self.torch._foreach_copy_(self.parameters, self.masters)

    def chain(self):
        self.unscale()
        self.torch.nn.utils.clip_grad_norm_(self.masters, 1.0, foreach=True)
        self.adamw()

    def seconds(self, operation):
        start = time.perf_counter()
        with self.torch.no_grad():
            getattr(self, operation)()
        return time.perf_counter() - start


CONTESTS = [  # name, gradients, our operation, PyTorch's, target ratio
    ("whole step: found-inf, norm, clip, AdamW, copy", "bfloat16", "chain", "chain", 1.5),
    ("whole step, FP32 gradients", "float32", "chain", "chain", 1.5),
    ("unscale and norm, BF16 to FP32", "bfloat16", "unscale", "unscale_and_norm", 2.0),
    ("unscale and norm, FP16 to FP32", "float16", "unscale", "unscale_and_norm", 2.0),
    ("unscale and norm, FP32", "float32", "unscale", "unscale_and_norm", 2.0),
    ("norm alone, BF16", "bfloat16", "norm", "norm", None),
    ("norm alone, FP32", "float32", "norm", "norm", None),
    ("AdamW and copy", "float32", "adamw", "adamw", None),
]


def contest(options, name, gradient, ours, theirs, target, rivals):
    if gradient not in rivals:
        for pair in rivals.values():
            pair[0].close()
        rivals.clear()
        rivals[gradient] = (Ours(options, gradient), PyTorch(options, gradient))
    us, them = rivals[gradient]
    mine, others = [], []
    us.seconds(ours), them.seconds(theirs)
    for _ in range(options.runs):
        mine.append(us.seconds(ours))
        others.append(them.seconds(theirs))
    a, b = statistics.median(mine), statistics.median(others)
    aim = "" if target is None else f"   target {target:g}x{'' if b / a >= target else '   MISSED'}"
    print(f"{name:<48}{a * 1e3:9.1f} ms   PyTorch {b * 1e3:9.1f} ms   ratio {b / a:5.2f}{aim}", flush=True)
    return {"name": name, "seconds": a, "pytorch": b, "ratio": b / a, "target": target}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", required=True, help="fsdpctl_kernel_bench")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--elements", type=int, default=32 << 20)
    parser.add_argument("--tensors", type=int, default=100)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--only", default="", help="contests whose name contains this")
    parser.add_argument("--json", help="write the figures here")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    print(f"kernels: {options.elements} elements in {options.tensors} tensors, {options.threads} threads each, "
          f"medians of {options.runs}")
    rivals = {}
    rows = [contest(options, *c, rivals) for c in sorted(CONTESTS, key=lambda c: c[1]) if options.only in c[0]]
    for pair in rivals.values():
        pair[0].close()
    if options.json:
        with open(options.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
