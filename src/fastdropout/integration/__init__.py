"""Any torch network on Moments: rules by torch function, the trace of noise to its sources."""

from fastdropout.integration import rules
from fastdropout.integration.noise import Gains, Noise
from fastdropout.integration.registry import register

__all__ = ["Noise", "integrate", "register", "rules"]


def integrate(*, gains: Gains = "moments", trace: bool = True, train_variance: bool = True) -> Noise:
    """Integrate out the dropout of any network that is called inside of the `with`.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 50), torch.nn.ReLU(), torch.nn.Dropout(0.2))
    >>> with integrate() as noise:
    ...     y = model(torch.ones(2, 3))
    >>> y.mean.shape, y.var.shape, noise.std(y).shape
    (torch.Size([2, 50]), torch.Size([2, 50]), torch.Size([2, 50]))

    Inside, `nn.Dropout` and its kin are active in `train()` and in `eval()` alike, and return Moments; every
    torch function of Moments returns Moments. There are two variances:

    - *diagonal*, `y.var`: units are taken as independent. It comes with the forward pass, and gradients flow
      through it: for training. Too small in trained networks.
    - *traced*, `noise.var(y)`: the sum over all sources of noise, found by autograd, with all correlations
      between units. One backward pass for each output of an example.

    Args:
        gains: `"moments"` follows the noise through the moment rules, whose slopes know the spread of the
            units. `"plain"` follows it through the ordinary network: tensors flow instead of Moments, there
            is no diagonal variance, and no rule is needed for any function.
        trace: keep the sources. False saves their memory where only the diagonal variance is used.
        train_variance: False where the variance needs no gradients (prediction): the trace is cheaper.
    """
    return Noise(gains=gains, trace=trace, train_variance=train_variance)
