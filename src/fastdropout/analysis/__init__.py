"""What fast dropout does to a network: its gradient as training loss and regulariser, weight by weight.

>>> import torch, fastdropout as fd
>>> net = fd.nn.Sequential(fd.nn.Linear(3, 4, drop=0.2), fd.nn.Tanh(), fd.nn.Linear(4, 1, drop=0.5))
>>> x, z = torch.ones(5, 3), torch.zeros(5, 1)
>>> parts = fd.analysis.decompose(net, lambda net: fd.losses.bernoulli_nll(net(x), z).mean())
>>> sorted(parts.weights)
['0.weight', '2.weight']
"""

from fastdropout.analysis.decomposition import Call, Decomposition, Part, Regimes, decompose
from fastdropout.analysis.sampling import sampled_moments

__all__ = ["Call", "Decomposition", "Part", "Regimes", "decompose", "sampled_moments"]
