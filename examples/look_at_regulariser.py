"""
Look at the regulariser
=======================

Under fast dropout the gradient of a weight has two parts: one by the mean of its unit, as without dropout,
and one by its variance. The second is a weight decay with a coefficient lambda for each weight, which may be
negative. `fastdropout.analysis.decompose` separates them in one backward pass.
"""

import matplotlib.pyplot as plt
import torch

import fastdropout as fd

torch.manual_seed(0)
x = torch.randn(200, 10)
target = (x[:, :1] + 0.5 * x[:, 1:2] > 0).float()
model = fd.nn.Sequential(fd.nn.Linear(10, 30, drop=0.2), fd.nn.Tanh(), fd.nn.Linear(30, 1, drop=0.5))


def loss(network):
    return fd.losses.bernoulli_nll(network(x), target).mean()


# %%
# At the start and after training: how large the regulariser's gradient is, and which weights it rewards.

optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
seen = {}
for update in range(301):
    if update in (0, 300):
        seen[update] = fd.analysis.decompose(model, loss)
        part = seen[update].weights["0.weight"]
        ratio = part.regulariser.norm() / part.loss.norm()
        rewarded = (part.decay < 0).float().mean()
        print(
            f"update {update}: |dR| / |dL| = {ratio:.3f}, lambda < 0 for {rewarded:.0%} of the input weights"
        )
    optimizer.zero_grad()
    loss(model).backward()
    optimizer.step()

# %%
# The two parts add up to the gradient of autograd.

parts = fd.analysis.decompose(model, loss)
total = parts.weights["0.weight"].loss + parts.weights["0.weight"].regulariser
(gradient,) = torch.autograd.grad(loss(model), model[0].weight)
print("largest difference to autograd:", float((total - gradient).abs().max()))

# %%
# Lambda by input: after training, it is smallest for the two inputs that matter.

fig, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", sharex=True)
for axis, (update, found) in zip(axes, seen.items(), strict=True):
    decay = found.weights["0.weight"].decay
    axis.axhline(0, color="0.7", linewidth=0.8)
    axis.plot(range(1, 11), decay.t(), ".", color="C0", alpha=0.4)
    axis.set_title(f"update {update}", loc="left")
    axis.set_xlabel("input")
axes[0].set_ylabel("lambda of its weights")
plt.show()
