"""
Sensor noise at the input
=========================

Inputs may be `Moments` too: measurements with known error bars. The network passes them on, without sampling.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import fastdropout as fd

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 32), nn.GELU(), nn.Linear(32, 1))
readings, errors = torch.randn(6, 3), torch.tensor([0.1, 0.05, 0.3])  # standard deviations of three sensors

x = fd.Moments(readings, errors.square().expand(6, 3))
y = fd.integrate(model)(x)

# %%
# The same by drawing 20,000 readings.
with torch.no_grad():
    drawn = model(readings + errors * torch.randn(20_000, 6, 3))
for i in range(6):
    print(f"integrated {y.mean[i].item():+.3f} +- {y.std[i].item():.4f}", end="    ")
    print(f"drawn {drawn[:, i].mean():+.3f} +- {drawn[:, i].std():.4f}")
plt.errorbar(range(6), y.mean[:, 0], 2 * y.std[:, 0], fmt="o", capsize=4, label="integrated, 2 std")
plt.violinplot(drawn[:, :, 0].T.tolist(), range(6), showextrema=False)
plt.xlabel("example")
plt.ylabel("output (violins: drawn readings)")
plt.legend()
assert (y.std / drawn.std(0) - 1).abs().max() < 0.1
