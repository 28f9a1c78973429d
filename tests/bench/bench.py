"""make bench: fsdpctl beside PyTorch, Hugging Face and cp, on data that real PyTorch wrote.

    bench.py --fsdpctl BINARY --floor BINARY [--work DIR] [--runs 5] [--only NAME] [--json FILE]

Every contest: one discarded warm-up of each contestant, then alternating runs, medians, peak memory. Outputs are removed before and
synced inside the timed part. Ratios count; absolute figures depend on the machine.
"""
import argparse
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
            subprocess.run([sys.executable, os.path.join(HERE, "data.py"), kind, path], check=True, stderr=subprocess.DEVNULL)
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

    def contest(self, name, ours, rivals, runs=None):
        """rivals: {label: (run, target ratio or None)}; the first contestant is fsdpctl. Ratio = rival's time / ours."""
        if self.o.only and self.o.only not in name:
            return
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
        self.contest("start-up: fsdpctl --version (at most 0.010 s)", self.ours("--version"), {}, runs=20)
        many = self.data("many")
        self.contest("inspect: 100,000 tensors in 200,000 pieces", self.ours("inspect", many),
                     {"read_metadata, warm interpreter": (self.peer("read_metadata", many), 20)})
        out = self.out("many.pt")
        self.contest("many: 100,000 x 1 KiB, DCP -> torch", self.ours("convert", many, "--to", "torch", "--no-read-back", out=out),
                     {"dcp_to_torch_save": (self.peer("dcp_to_torch", many, self.out("peer.pt")), 50)}, runs=1)
        self.contest("many: DCP -> safetensors, read back", self.ours("convert", many, "--to", "safetensors", out=self.out("many.safetensors")), {})
        big = self.data("big")
        read_back = (self.ours("convert", big, "--to", "torch", out=self.out("rb.pt")), None)
        self.contest("big: DCP -> torch, 2 GiB, 4 ranks", self.ours("convert", big, "--to", "torch", "--no-read-back", out=self.out("big.pt")),
                     {"dcp_to_torch_save": (self.peer("dcp_to_torch", big, self.out("peer.pt")), 3.5),
                      "cp + sync": (self.copy(big, self.out("cp")), 0.9), "fsdpctl with read-back": read_back})
        self.contest("big: DCP -> safetensors", self.ours("convert", big, "--to", "safetensors", "--part", "model", "--no-read-back",
                                                         out=self.out("big.safetensors")),
                     {"load all + save_file": (self.peer("merge_weights", big, self.out("peer")), 3)})
        hf = self.data("hf")
        self.contest("hf: per-rank safetensors -> safetensors", self.ours("convert", hf, "--to", "safetensors", "--no-read-back",
                                                                         out=self.out("hf.safetensors")),
                     {"consolidate_safetensors_files": (self.peer("consolidate", hf, self.out("peer")), 1.5)})
        self.contest("big: reshard 4 -> 3, row shards", self.ours("reshard", big, "--world-size", "3", "--no-read-back", out=self.out("w3")),
                     {"cp + sync": (self.copy(big, self.out("cp")), 0.9),
                      "dcp.load + dcp.save, one process": (self.peer("dcp_reshard", big, self.out("peer")), 3)})
        col = self.data("col")
        self.contest("col: reshard 8 -> 3, column shards", self.ours("reshard", col, "--world-size", "3", "--no-read-back", out=self.out("w3")),
                     {"cp + sync": (self.copy(col, self.out("cp")), 0.6),
                      "dcp.load + dcp.save, one process": (self.peer("dcp_reshard", col, self.out("peer")), 3)})
        self.contest("verify --data, warm", self.ours("verify", "--data", big),
                     {"pread + CRC-64 + CRC-32, 2 threads": (self.floor("crc", big), 0.85), "pread, 2 threads": (self.floor("read", big), None)})
        plan = self.data("plan")
        self.contest("plan: 1,024 -> 768 ranks x 1,000 tensors (at most 2 s, 300 MiB)",
                     self.ours("reshard", plan, "--world-size", "768", "--dry-run", out=self.out("plan")), {})


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
    import torch

    print(f"{os.cpu_count()} cores, {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB, {platform.system()}, "
          f"torch {torch.__version__}; data in {options.runs} runs each, medians")
    bench = Bench(options)
    bench.run()
    if options.json:
        with open(options.json, "w") as f:
            json.dump(bench.rows, f, indent=1)


if __name__ == "__main__":
    main()
