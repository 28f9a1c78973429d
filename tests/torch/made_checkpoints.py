"""Checkpoints that real PyTorch makes on the spot, for what no fixture holds."""
import os
import subprocess

from harness import differences


def tied_weights(h):
    def action():
        import torch

        model = torch.nn.ModuleDict({"tok": torch.nn.Embedding(5, 4), "head": torch.nn.Linear(4, 5, bias=False)})
        model["head"].weight = model["tok"].weight
        source, out = h.out("tied.pt"), h.out("tied")
        torch.save({"model": model.state_dict()}, source)
        h.fsdpctl("convert", source, "-o", out, "--to", "hf-dcp", "--world-size", "2")
        tensors, _ = h.look(source)
        return differences({k.removeprefix("model."): v for k, v in tensors.items()}, h.look(out)[0])
    h.check("tied weights -> hf-dcp has both names", action)


def optimizer_by_ids(h):
    """torch.optim finds the state of every parameter, though DCP made text of the ids."""
    def action():
        import torch

        def trained():
            torch.manual_seed(0)
            model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(6)))
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            return model, optimizer

        model, optimizer = trained()
        source, far = h.out("ids.pt"), h.out("ids")
        torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, source)
        h.fsdpctl("convert", source, "-o", far, "--to", "dcp", "--world-size", "2")
        lines = []
        for middle, arguments in (("", []), ("x.safetensors", ["--to", "safetensors"]), ("x.h5", ["--to", "hdf5"])):
            near = far
            if middle:
                near = h.out(middle)
                h.fsdpctl("convert", far, "-o", near, *arguments)
            back = h.out("back.pt")
            h.fsdpctl("convert", near, "-o", back, "--to", "torch")
            loaded = torch.optim.AdamW(model.parameters(), lr=0.5)
            loaded.load_state_dict(torch.load(back)["optim"])
            for name, parameter in model.named_parameters():
                was, now = optimizer.state[parameter], loaded.state[parameter]
                if set(was) != set(now) or not all(torch.equal(was[field], now[field]) for field in was):
                    lines.append(f"{middle}: state of {name}: {sorted(now)}")
        return lines
    h.check("optimizer by ids -> dcp -> torch, loaded by torch.optim", action)


def equal_keys(h):
    """Keys that are the same text are refused, and nothing says that the file is damaged."""
    def action():
        import torch

        lines = []
        for label, state in (("dots", {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}), ("kinds", {0: torch.zeros(1), "0": torch.ones(1)})):
            source = h.out(label + ".pt")
            torch.save(state, source)
            for target, name in (("torch", "o.pt"), ("hdf5", "o.h5"), ("dcp", "o"), ("safetensors", "o.safetensors")):
                out = h.out(name)
                code = subprocess.run([h.o.fsdpctl, "convert", source, "-o", out, "--to", target], capture_output=True).returncode
                if code != 4 or os.path.exists(out):
                    lines.append(f"{label} -> {target} ended with {code}")
            codes = [subprocess.run([h.o.fsdpctl, "verify", flag, source], capture_output=True).returncode for flag in ("--write-manifest", "--data")]
            if codes != [4, 0]:
                lines.append(f"{label}: seal and verify ended with {codes}")
        return lines
    h.check("keys that are the same text", action)


def newer_release(h):
    """torch 2.15 writes six properties of a tensor into .metadata, which no older release can load. Converted, they can."""
    def action():
        import pickle

        import torch
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.metadata import TensorProperties

        source, out = h.out("newer"), h.out("older")
        state = {"model": {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(3, dtype=torch.bfloat16)}, "step": 7}
        dcp.save(state, checkpoint_id=source, no_dist=True)
        path = os.path.join(source, ".metadata")
        with open(path, "rb") as f:
            metadata = pickle.load(f)
        five = TensorProperties.__getstate__
        try:
            TensorProperties.__getstate__ = lambda properties: (*five(properties), (1,))
            with open(path, "wb") as f:
                pickle.dump(metadata, f)
        finally:
            TensorProperties.__getstate__ = five

        try:
            with open(path, "rb") as f:
                pickle.load(f)
            return ["this release of PyTorch reads six properties: nothing is tested"]
        except ValueError:
            pass
        h.fsdpctl("verify", source)
        h.fsdpctl("convert", source, "-o", out, "--to", "dcp")
        got = {"model": {k: torch.zeros_like(v) for k, v in state["model"].items()}, "step": 0}
        dcp.load(got, checkpoint_id=out, no_dist=True)
        same = got["step"] == 7 and all(torch.equal(got["model"][k], v) for k, v in state["model"].items())
        return [] if same else [f"loaded {got}"]
    h.check("2.15's .metadata -> dcp, loaded by an older release", action)


def made_checkpoints(h):
    tied_weights(h)
    optimizer_by_ids(h)
    equal_keys(h)
    newer_release(h)
