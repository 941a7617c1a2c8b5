"""
Error bars of a stock network
=============================

A network of `torch.nn` modules is trained as usual, with sampled dropout. Afterwards `integrate` gives the
mean and the standard deviation under its dropout without sampling.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import fastdropout as fd

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(1, 64),
    nn.Tanh(),
    nn.Dropout(0.1),
    nn.Linear(64, 64),
    nn.Tanh(),
    nn.Dropout(0.1),
    nn.Linear(64, 1),
)
x = torch.rand(60, 1) * 4 - 2
target = torch.sin(2 * x) + 0.1 * torch.randn_like(x)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(300):
    loss = nn.functional.mse_loss(model(x), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# One line, no sampling; then the same by 500 masks.
grid = torch.linspace(-4, 4, 81)[:, None]
y = fd.integrate(model)(grid)
with torch.no_grad():
    masks = model.train()(grid.expand(500, 81, 1))

line, mean, std = grid[:, 0], y.mean[:, 0], y.std[:, 0]
plt.fill_between(line, mean - 2 * std, mean + 2 * std, alpha=0.3, label="integrated, 2 std")
plt.plot(line, mean)
for sign in (-2, 2):
    plt.plot(
        line, masks.mean(0)[:, 0] + sign * masks.std(0)[:, 0], "k:", label="500 masks" if sign > 0 else None
    )
plt.plot(x, target, ".", label="data")
plt.legend()
ratio = (y.std / masks.std(0)).mean()
print(f"integrated over sampled standard deviation: {ratio:.2f}")
assert 0.8 < ratio < 1.25

# %%
# Module by module, with the variance that takes units as independent beside it.
print(fd.check(model, grid[::8], masks=200))
