"""What the tests with real PyTorch share: where things are, running fsdpctl, looking through the eyes of real libraries."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback


def skip(why):
    print("SKIPPED: " + why)
    sys.exit(77)


class Harness:
    def __init__(self, options):
        self.o = options
        self.seen = {}
        self.bad = 0
        self.work = tempfile.mkdtemp(prefix="fsdpctl-torch-")

    def fixture(self, name):
        return os.path.join(self.o.fixtures, name)

    def fsdpctl(self, *arguments):
        result = subprocess.run([self.o.fsdpctl, *arguments], capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"fsdpctl {' '.join(arguments)} ended with {result.returncode}: {result.stderr}")
        return result.stdout

    def out(self, name):
        path = os.path.join(self.work, name)
        shutil.rmtree(path, ignore_errors=True)
        if os.path.exists(path):
            os.remove(path)
        return path

    def look(self, path):
        """(tensors, values) as the real libraries load them; sources are looked at once."""
        import json

        import oracle

        if path not in self.seen:
            got = json.loads(json.dumps(oracle.describe_path(path)))
            tensors, values = got["tensors"], got["values"]
            if got["kind"] == "torch-dir":     # file by file; a checkpoint is their union
                tensors = {re.sub(r"^.*?\.bin\.", "", k): v for k, v in tensors.items()}
                values = {re.sub(r"^.*?\.bin\.", "", k): v for k, v in values.items()}
            self.seen[path] = tensors, values
        return self.seen[path]

    def check(self, label, action):
        try:
            problems = action()
        except Exception as e:   # one failing case must not hide the others
            problems = ["".join(traceback.format_exception_only(type(e), e)).strip()[:3000]]
        print(("ok    " if not problems else "FAIL  ") + label, flush=True)
        for line in problems[:10]:
            print("        " + line)
        self.bad += bool(problems)

    def finish(self):
        shutil.rmtree(self.work, ignore_errors=True)
        print(f"{'FAILED' if self.bad else 'passed'}: {self.bad} case(s) differ")
        return 1 if self.bad else 0


def differences(expected, got):
    lines = [f"missing: {k}" for k in expected if k not in got]
    lines += [f"unexpected: {k}" for k in got if k not in expected]
    lines += [f"differs: {k}: {expected[k]} {got[k]}" for k in expected if k in got and expected[k] != got[k]]
    return lines
