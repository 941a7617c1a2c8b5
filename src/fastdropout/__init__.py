"""Deterministic dropout for PyTorch: the noise is integrated out.

>>> import torch, fastdropout as fd
>>> rnn = fd.nn.RNN(88, 400, drop_input=0.1, drop_hidden=0.2)
>>> out = fd.nn.Linear(400, 88, drop=0.5)
>>> hidden, last = rnn(torch.rand(100, 16, 88))
>>> nll = fd.losses.bernoulli_nll(out(hidden), torch.ones(100, 16, 88))
"""

from fastdropout import functional, nn, optim
from fastdropout.functional import losses
from fastdropout.moments import Moments

__version__ = "0.1.0"
__all__ = ["Moments", "functional", "losses", "nn", "optim"]
