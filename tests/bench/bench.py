"""make bench: fsdpctl beside PyTorch, Hugging Face and cp, on data that real PyTorch wrote.

    bench.py --fsdpctl BINARY --floor BINARY [--work DIR] [--runs 5] [--only NAME] [--json FILE]

Every contest: one discarded warm-up of each contestant, then alternating runs, medians, peak memory. Outputs are removed before and
synced inside the timed part. Ratios count; absolute figures depend on the machine.
"""
import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def remove(path):
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)
    if os.path.exists(path + ".fsdpctl.json"):
        os.remove(path + ".fsdpctl.json")


def timed(command, out=None):
    """(seconds, peak MiB) of a process, output synced inside."""
    if out:
        remove(out)
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    stderr = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if out:
        subprocess.run(["sync", "-f", os.path.dirname(out)], check=True)
    seconds = time.perf_counter() - start
    if child.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}: {stderr.decode()[-2000:]}")
    return seconds, usage.ru_maxrss / 1024


class Bench:
    def __init__(self, options):
        self.o = options
        self.rows = []

    def data(self, kind):
        path = os.path.join(self.o.work, kind)
        if not os.path.exists(path + ".made"):
            print(f"making data: {kind}", file=sys.stderr)
            command = [sys.executable, "-W", "ignore", os.path.join(HERE, "data.py"), kind, path, self.o.fsdpctl]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            open(path + ".made", "w").close()
        return path

    def out(self, name):
        return os.path.join(self.o.work, "out-" + name)

    def ours(self, *arguments, out=None):
        command = [self.o.fsdpctl, *arguments]
        if out:
            command += ["-o", out]
        return lambda: timed(command, out)

    def peer(self, operation, src, out=None):
        def run():
            command = [sys.executable, "-W", "ignore", os.path.join(HERE, "peers.py"), operation, src] + ([out] if out else [])
            result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout.splitlines()[-1])
            return result["seconds"], result["peak_mib"]
        return run

    def copy(self, src, out):
        return lambda: timed(["cp", "-r", src, out], out)

    def floor(self, what, src):
        def run():
            seconds = subprocess.run([self.o.floor, what, src, "2"], check=True, capture_output=True).stdout
            return float(seconds), 0.0
        return run

    def contest(self, name, kind, entries, runs=None):
        """entries(data): (ours, {label: (run, target ratio or None)}). Ratio = rival's time / ours. Data is made for chosen contests only."""
        if self.o.only and self.o.only not in name:
            return
        ours, rivals = entries(self.data(kind) if kind else None)
        contestants = {"fsdpctl": ours, **{label: run for label, (run, _) in rivals.items()}}
        seconds, peaks = {k: [] for k in contestants}, {k: 0.0 for k in contestants}
        for label, run in contestants.items():
            run()
        for _ in range(runs or self.o.runs):
            for label, run in contestants.items():
                s, peak = run()
                seconds[label].append(s)
                peaks[label] = max(peaks[label], peak)
        mine = statistics.median(seconds["fsdpctl"])
        print(f"\n{name}\n  {'fsdpctl':<34}{mine:9.3f} s   {peaks['fsdpctl']:7.0f} MiB")
        row = {"name": name, "seconds": mine, "peak_mib": peaks["fsdpctl"], "rivals": {}}
        for label, (_, target) in rivals.items():
            theirs = statistics.median(seconds[label])
            ratio = theirs / mine
            aim = "" if target is None else f"  target {target:g}x{'' if ratio >= target else '   MISSED'}"
            peak = f"{peaks[label]:7.0f} MiB" if peaks[label] else " " * 11
            print(f"  {label:<34}{theirs:9.3f} s   {peak}   ratio {ratio:6.2f}{aim}", flush=True)
            row["rivals"][label] = {"seconds": theirs, "peak_mib": peaks[label], "ratio": ratio, "target": target}
        self.rows.append(row)
        for label in os.listdir(self.o.work):
            if label.startswith("out-"):
                remove(os.path.join(self.o.work, label))

    def run(self):
        self.contest("start-up: fsdpctl --version (at most 0.010 s)", None, lambda _: (self.ours("--version"), {}), runs=20)
        self.contest("inspect: 100,000 tensors in 200,000 pieces", "many", self.inspect_many, runs=2 * self.o.runs)
        self.contest("many: 100,000 x 1 KiB, DCP -> torch", "many", self.many_to_torch, runs=1)
        self.contest("many: DCP -> safetensors, read back", "many", self.many_to_safetensors)
        self.contest("big: DCP -> torch, 2 GiB, 4 ranks", "big", self.big_to_torch)
        self.contest("big: DCP -> safetensors", "big", self.big_to_safetensors)
        self.contest("hf: per-rank safetensors -> safetensors", "hf", self.consolidate)
        self.contest("big: reshard 4 -> 3, row shards", "big", lambda src: self.reshard(src, 0.9))
        self.contest("col: reshard 8 -> 3, column shards", "col", lambda src: self.reshard(src, 0.6))
        self.contest("verify --data, warm", "big", self.verify)
        self.contest("plan: 1,024 -> 768 ranks x 1,000 tensors (at most 2 s, 300 MiB)", "plan",
                     lambda src: (self.ours("reshard", src, "--world-size", "768", "--dry-run", out=self.out("plan")), {}))

    # ---- the contests: fsdpctl, and its rivals

    def convert(self, src, to, *more, out):
        return self.ours("convert", src, "--to", to, *more, out=self.out(out))

    def inspect_many(self, src):
        return self.ours("inspect", src), {"read_metadata, warm interpreter": (self.peer("read_metadata", src), 20)}

    def many_to_torch(self, src):
        return (self.convert(src, "torch", "--no-read-back", out="many.pt"),
                {"dcp_to_torch_save": (self.peer("dcp_to_torch", src, self.out("peer.pt")), 50)})

    def many_to_safetensors(self, src):
        return self.convert(src, "safetensors", out="many.safetensors"), {}

    def big_to_torch(self, src):
        return (self.convert(src, "torch", "--no-read-back", out="big.pt"),
                {"dcp_to_torch_save": (self.peer("dcp_to_torch", src, self.out("peer.pt")), 3.5),
                 "cp + sync": (self.copy(src, self.out("cp")), 0.9),
                 "fsdpctl with read-back": (self.convert(src, "torch", out="rb.pt"), None)})

    def big_to_safetensors(self, src):
        return (self.convert(src, "safetensors", "--part", "model", "--no-read-back", out="big.safetensors"),
                {"load all + save_file": (self.peer("merge_weights", src, self.out("peer")), 3)})

    def consolidate(self, src):
        return (self.convert(src, "safetensors", "--no-read-back", out="hf.safetensors"),
                {"consolidate_safetensors_files": (self.peer("consolidate", src, self.out("peer")), 1.5)})

    def reshard(self, src, copy_target):
        return (self.ours("reshard", src, "--world-size", "3", "--no-read-back", out=self.out("w3")),
                {"cp + sync": (self.copy(src, self.out("cp")), copy_target),
                 "dcp.load + dcp.save, one process": (self.peer("dcp_reshard", src, self.out("peer")), 3)})

    def verify(self, src):
        return (self.ours("verify", "--data", src),
                {"pread + CRC-64 + CRC-32, 2 threads": (self.floor("crc", src), 0.85), "pread, 2 threads": (self.floor("read", src), None)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fsdpctl", required=True)
    parser.add_argument("--floor", required=True)
    parser.add_argument("--work", default=os.path.join(tempfile.gettempdir(), "fsdpctl-bench"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="contests whose name contains this")
    parser.add_argument("--json", help="write the figures here")
    options = parser.parse_args()
    options.work = os.path.abspath(options.work)
    os.makedirs(options.work, exist_ok=True)
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    torch = importlib.metadata.version("torch")       # not imported: a child's peak memory begins with its parent's

    print(f"{os.cpu_count()} cores, {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB, {platform.system()}, "
          f"torch {torch}; data in {options.runs} runs each, medians")
    bench = Bench(options)
    bench.run()
    if options.json:
        with open(options.json, "w") as f:
            json.dump(bench.rows, f, indent=1)


if __name__ == "__main__":
    main()
