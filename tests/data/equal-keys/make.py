"""Writes state.pt: two keys of one text, 'a.b'. Run with PyTorch 2.13.0."""

import torch

torch.save({'a.b': torch.zeros(2), 'a': {'b': torch.ones(2)}, 'c': torch.full((2,), 2.0)}, 'state.pt')
