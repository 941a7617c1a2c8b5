"""
Adaptive weight noise
=====================

Gaussian weights with learned variances, in closed form, trained with the paper's optimiser.
"""

import matplotlib.pyplot as plt
import torch

import fastdropout as fd

torch.manual_seed(0)
rnn = fd.nn.RNN(1, 20, weight_noise=True)
out = fd.nn.NoisyLinear(20, 1)
model = torch.nn.ModuleList([rnn, out])
optimizer = fd.optim.RMSprop(model.parameters(), lr=2e-3, momentum=0.9)

time = torch.arange(21) * 0.3
waves = torch.sin(time[:, None] + torch.rand(64) * 6.3)[..., None]
x, target = waves[:-1], waves[1:]


def closure():
    optimizer.zero_grad()
    nll = fd.losses.gaussian_nll(out(rnn(x)[0]), target)
    loss = nll.mean() + fd.nn.weight_noise_kl(model) / (100 * nll.numel())
    loss.backward()
    fd.optim.clip_grad_norm_(model.parameters(), 225.0)
    return loss


losses = [optimizer.step(closure).item() for _ in range(60)]
nats = fd.nn.weight_noise_kl(model).item()
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, description length {nats:.0f} nats")
with torch.no_grad():
    y = out(rnn(x)[0])[:, 0, 0]
plt.plot(target[:, 0, 0], "k.", label="target")
plt.errorbar(range(20), y.mean, 2 * y.std, capsize=3, label="prediction, 2 std")
plt.xlabel("step")
plt.legend()
assert losses[-1] < losses[0] - 0.5
