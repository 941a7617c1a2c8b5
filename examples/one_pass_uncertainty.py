"""
One pass against many masks
===========================

One pass gives what Monte-Carlo dropout needs many for: the mean and the variance under dropout.
"""

import matplotlib.pyplot as plt
import torch

import fastdropout as fd

torch.manual_seed(0)


def network(method):
    torch.manual_seed(1)
    return fd.nn.Sequential(
        fd.nn.Linear(10, 200, drop=0.1, method=method),
        fd.nn.ReLU(),
        fd.nn.Linear(200, 200, drop=0.5, method=method),
        fd.nn.ReLU(),
        fd.nn.Linear(200, 1, drop=0.5, method=method),
    )


x = torch.randn(5, 10)
with torch.no_grad():
    once = network("moments")(x)
    masks = network("mask")  # the same weights, with masks drawn
    drawn = masks(x.expand(5000, 5, 10)).mean
for i in range(5):
    once_i, drawn_i = once[i], drawn[:, i]
    print(f"one pass {once_i.mean.item():+.4f} +- {once_i.std.item():.4f}", end="    ")
    print(f"5000 masks {drawn_i.mean():+.4f} +- {drawn_i.std():.4f}")
plt.errorbar(range(5), once.mean[:, 0], 2 * once.std[:, 0], fmt="o", capsize=4, label="one pass, 2 std")
plt.violinplot(drawn[:, :, 0].T.tolist(), range(5), showextrema=False)
plt.xlabel("example")
plt.ylabel("output (violins: 5000 masks)")
plt.legend()
assert (once.std / drawn.std(0) - 1).abs().max() < 0.1
