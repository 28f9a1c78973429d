"""Writes optimizers.json: every class of torch.optim, what a fresh one lists in its group and what one step leaves in its state.

    python make.py > optimizers.json

Made with PyTorch 2.13.0 on a CPU.
"""
import json
import warnings

import torch

warnings.filterwarnings("ignore")
CLASSES = ["ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "LBFGS", "Muon", "NAdam", "RAdam", "RMSprop",
           "Rprop", "SGD", "SparseAdam"]


def one_step(optim, param, sparse):
    def closure():
        optim.zero_grad()
        grad = torch.ones_like(param)
        param.grad = grad.to_sparse() if sparse else grad
        return (param * 2).sum()

    optim.step(closure)


def main():
    out = {"torch": torch.__version__.split("+")[0], "classes": {}}
    for name in CLASSES:
        param = torch.nn.Parameter(torch.ones(3, 2))
        extra = {"momentum": 0.9} if name == "SGD" else {}
        optim = getattr(torch.optim, name)([param], **extra)
        one_step(optim, param, name == "SparseAdam")
        saved = optim.state_dict()
        group = {k: v if isinstance(v, (bool, type(None))) else "number" for k, v in saved["param_groups"][0].items() if k != "params"}
        fields = list(saved["state"][0]) if saved["state"] else []
        out["classes"][name] = {"group": list(group.items()), "fields": fields}
    print(json.dumps(out, indent=1))


main()
