"""
Regularise an LSTM that overfits
================================

Forty noisy waves to learn from: a plain LSTM begins to learn the noise by heart. The same layer with dropout
integrated out starts from the same weights, takes the same updates and overfits less. Stopped at the best
update for the unseen waves, which nobody knows beforehand, the plain LSTM is a little better on these data.
"""

import matplotlib.pyplot as plt
import torch

import fastdropout as fd

torch.manual_seed(0)


def waves(number):
    """Noisy sines of random frequency and phase, (steps, pieces, 1)."""
    time = torch.arange(31)[:, None]
    clean = torch.sin(time * (0.2 + 0.4 * torch.rand(number)) + 6.3 * torch.rand(number))
    return (clean + 0.4 * torch.randn(31, number))[..., None]


train, test = waves(40), waves(400)


def fit(drop):
    """Test errors during training."""
    torch.manual_seed(1)
    lstm = fd.nn.LSTM(1, 48, drop_hidden=drop)
    out = fd.nn.Linear(48, 1, drop=drop)
    optimizer = torch.optim.Adam([*lstm.parameters(), *out.parameters()], lr=0.01)
    errors = []
    for update in range(200):
        y = out(lstm(train[:-1])[0])
        # With noise, the expected squared error: that of the mean, and the variance.
        loss = (fd.losses.squared_error(y, train[1:]) + y.var).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % 10 == 9:
            with torch.no_grad():
                y = out(lstm(test[:-1])[0])
            errors.append(fd.losses.squared_error(y, test[1:]).mean().item())
    return errors


# %%
# Rates of 0 are the plain LSTM of torch.
results = {drop: fit(drop) for drop in (0.0, 0.3)}
for drop, errors in results.items():
    plt.plot(range(10, 201, 10), errors, marker=".", label=f"drop {drop}")
    print(f"drop {drop}: test error {min(errors):.3f} at best, {errors[-1]:.3f} at the end")
plt.xlabel("updates")
plt.ylabel("squared error on unseen waves")
plt.legend()
assert results[0.3][-1] < results[0.0][-1]
