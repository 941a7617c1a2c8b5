"""
Swap torch.nn.RNN
=================

Replace `torch.nn.RNN` by `fastdropout.nn.RNN`: the weights of one load into the other.
"""

import matplotlib.pyplot as plt
import torch

import fastdropout as fd

torch.manual_seed(0)
plain = torch.nn.RNN(88, 100, num_layers=2, batch_first=True)

rnn = fd.nn.RNN(88, 100, num_layers=2, batch_first=True, drop_input=0.1, drop_hidden=0.2, drop_between=0.1)
rnn.load_state_dict(plain.state_dict())  # the same names and shapes
out = fd.nn.Linear(100, 88, drop=0.5)

x = (torch.rand(8, 50, 88) < 0.05).float()
hidden, last = rnn(x[:, :-1])  # Moments instead of tensors
nll = fd.losses.bernoulli_nll(out(hidden), x[:, 1:])  # element-wise, like reduction="none"
loss = nll.sum(-1).mean()
loss.backward()
plt.plot(hidden.std.detach().mean((0, 2)))
plt.xlabel("step")
plt.ylabel("mean standard deviation of the hidden units")
print(f"{loss.item():.2f} nats per step; a deterministic gradient of norm {rnn.weight_hh_l0.grad.norm():.3f}")
