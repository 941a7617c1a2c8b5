"""`Moments`: the one value that flows through everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from fastdropout.checks import check_moments, describe
from fastdropout.rearranging import Rearranging
from fastdropout.registration import register
from fastdropout.renaming import renamed
from fastdropout.serving import Refusal, attribute, readable, serve, serving

# What has no variance, and may shift or scale what has.
Plain = Tensor | float


class Moments(Rearranging):
    """Independent random variables, one an element, kept by their mean and variance.

    A value of zero variance throughout is *certain*. `Moments.certain(x)` remembers that it is, so that
    layers do no work for a variance that is known to be zero; its `var` is still there, made when read.

    >>> x = Moments(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]))
    >>> x
    Moments(mean=tensor([1., 2.]), var=tensor([0.5000, 0.0000]))
    >>> x[0].std
    tensor(0.7071)
    >>> Moments.certain(torch.ones(3)).var
    tensor([0., 0., 0.])

    Shifting and scaling by plain tensors and numbers is exact and has operators. The sum of two random
    variables depends on their correlation, so it has a name that states one:
    `fastdropout.functional.add_independent`.

    >>> x * 2 + 1
    Moments(mean=tensor([3., 5.]), var=tensor([2., 0.]))
    >>> x + x
    Traceback (most recent call last):
    ...
    TypeError: Moments + Moments depends on their correlation: call functional.add_independent(a, b)
    """

    __slots__ = ("_mean", "_owner", "_trail", "_var")
    _mean: Tensor
    _var: Tensor | None  # or a Refusal, made inside of `integrate()` only
    _owner: object | None  # the `integrate()` inside of which it was computed
    _trail: tuple[Moments, Callable[[Tensor], Tensor]] | None  # of which Moments it is a function there

    # Keeps numpy arrays and tensors on the left of an operator from swallowing us element by element.
    __array_ufunc__ = None

    def __init__(self, mean: Tensor, var: Tensor) -> None:
        check_moments(mean, var)
        object.__setattr__(self, "_mean", mean)
        object.__setattr__(self, "_var", var)
        object.__setattr__(self, "_owner", None)
        object.__setattr__(self, "_trail", None)

    @classmethod
    def certain(cls, x: Tensor) -> Moments:
        """The random variable that is always `x`."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise ValueError(f"a certain value must be a floating-point tensor, got {describe(x)}")
        return unchecked_moments(x, None)

    @classmethod
    def stack(cls, items: Sequence[Moments], dim: int = 0) -> Moments:
        """`torch.stack` of means and variances."""
        return _join(torch.stack, items, dim)

    @classmethod
    def cat(cls, items: Sequence[Moments], dim: int = 0) -> Moments:
        """`torch.cat` of means and variances."""
        return _join(torch.cat, items, dim)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self._mean if serving.by is None else readable(self._mean, Tensor.mean, self)

    @property
    def var(self) -> Tensor:
        """The variance, zeros where the value is certain."""
        return readable(self._variance(), Tensor.var, self)

    @property
    def std(self) -> Tensor:
        """The standard deviation."""
        var = self._variance()
        return readable(var if isinstance(var, Refusal) else var.sqrt(), Tensor.std, self)

    def _variance(self) -> Tensor:
        return torch.zeros_like(self._mean) if self._var is None else self._var

    @property
    def is_certain(self) -> bool:
        """Whether the variance is known to be zero without looking at its values."""
        return self._var is None

    @property
    def shape(self) -> torch.Size:
        """The shape of the mean, and so of the variance."""
        return self._mean.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._mean.ndim

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type."""
        return self._mean.dtype

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self._mean.device

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows into the mean or the variance."""
        return self._mean.requires_grad or (isinstance(self._var, Tensor) and self._var.requires_grad)

    def dim(self) -> int:
        """The number of dimensions."""
        return self._mean.dim()

    def numel(self) -> int:
        """The number of elements."""
        return self._mean.numel()

    def size(self, dim: int | None = None) -> Any:
        """The shape, or its length along `dim`."""
        return self._mean.size() if dim is None else self._mean.size(dim)

    def rearrange(self, fn: Callable[[Tensor], Tensor]) -> Moments:
        """Apply to mean and variance a function that only moves or copies elements."""
        x = self if serving.enter is None or self._owner is serving.owner else serving.enter(self)
        return unchecked_moments(fn(x._mean), fn(x._var) if isinstance(x._var, Tensor) else x._var)

    def sum(self, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Moments:
        """The sum over `dim`, by default over all: of independent elements means and variances add."""
        if serving.by is not None:
            return serve(Tensor.sum, self, dim, keepdim)
        return self.rearrange(lambda t: t.sum(dim, keepdim))

    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draw Gaussians with these moments, shape `sample_shape + shape`; differentiable."""
        shape = (*sample_shape, *self.shape)
        if self._var is None:
            return self._mean.expand(shape)
        var = self.var
        s = torch.randn(shape, generator=generator, dtype=self.dtype, device=self.device)
        # The root has an infinite slope at zero, where the draw does not depend on s at all.
        positive = var > 0
        std = torch.where(positive, var, 1).sqrt() * positive
        return self._mean + std * s

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Serve `torch.stack`, `torch.cat` and a tensor left of an operator; say where to go for others."""
        if func in _JOINS:
            return _join(func, *args, **(kwargs or {}))
        if func in _REFLECTED and isinstance(args[1], Moments):
            return getattr(args[1], _REFLECTED[func])(args[0])
        return serve(func, *args, **(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        return attribute(self, name)

    def __getitem__(self, index: Any) -> Moments:
        if serving.by is not None and serving.sources is not None:
            serving.sources.passes("[]", index)
        return self.rearrange(lambda t: t[index])

    def __len__(self) -> int:
        return len(self._mean)

    def __iter__(self) -> Iterator[Moments]:
        """Refuse: `mean, var = x` would split a batch of two. Inside of `integrate()` as a tensor."""
        if serving.by is None:
            raise TypeError(
                "Moments cannot be unpacked or iterated over: take x.mean and x.var, "
                "or x.unbind(dim) for the parts along a dimension"
            )
        return iter(self.unbind())

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("Moments are not one array: take x.mean.numpy() and x.var.numpy()")

    # Inside of `integrate()` every operator is a torch function like others; outside only exact ones exist.

    def __add__(self, other: Plain) -> Moments:
        if serving.by is not None:
            return serve(torch.add, self, other)
        _refuse_random(other, "+", "add_independent(a, b)")
        return _broadcast(self._mean + other, self._var)

    __radd__ = __add__

    def __sub__(self, other: Plain) -> Moments:
        if serving.by is not None:
            return serve(torch.sub, self, other)
        _refuse_random(other, "-", "add_independent(a, -b)")
        return _broadcast(self._mean - other, self._var)

    def __rsub__(self, other: Plain) -> Moments:
        return -self + other

    def __mul__(self, other: Plain) -> Moments:
        if serving.by is not None:
            return serve(torch.mul, self, other)
        _refuse_random(other, "*", "multiply_independent(a, b)")
        return unchecked_moments(self._mean * other, _scaled(self._var, lambda v: v * other**2))

    __rmul__ = __mul__

    def __truediv__(self, other: Plain) -> Moments:
        if serving.by is not None:
            return serve(torch.div, self, other)
        _refuse_random(other, "/", "multiply_independent(a, b)")
        return unchecked_moments(self._mean / other, _scaled(self._var, lambda v: v / other**2))

    def __neg__(self) -> Moments:
        if serving.by is not None:
            return serve(torch.neg, self)
        return unchecked_moments(-self._mean, self._var)

    def __eq__(self, other: object) -> Any:
        """Whether it is the same object; inside of `integrate()` a comparison with plain values."""
        if serving.by is not None and isinstance(other, Tensor | int | float):
            return serve(torch.eq, self, other)
        return self is other

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise TypeError("Moments are neither true nor false: their values are random. Compare .mean instead")

    def __repr__(self) -> str:
        if self._var is None:
            return f"Moments.certain({self._mean!r})"
        return f"Moments(mean={self._mean!r}, var={self._var!r})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Moments cannot be changed: make new ones instead of setting {name!r}")

    __delattr__ = __setattr__  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return unchecked_moments, (self._mean, self._var)


def unchecked_moments(mean: Tensor, var: Tensor | None) -> Moments:
    """Build `Moments` from parts that fit by construction; `None` is the variance of a certain value.

    The maths calls this for its results: looking at the values of every variance would wait for the
    device, and cannot be traced by `torch.compile` or `torch.func`.
    """
    out = object.__new__(Moments)
    object.__setattr__(out, "_mean", mean)
    object.__setattr__(out, "_var", var)
    object.__setattr__(out, "_owner", serving.owner)
    object.__setattr__(out, "_trail", None)
    return out


__getattr__ = renamed(__name__, {"moments": "unchecked_moments"})


def as_moments(x: Tensor | Moments) -> Moments:
    """A tensor as a certain value, `Moments` as they are; what every function of them calls at its door."""
    if isinstance(x, Moments):
        return x
    if not isinstance(x, Tensor):
        raise TypeError(f"expected Moments or a floating-point tensor, got {describe(x)}")
    return Moments.certain(x)


_JOINS = (torch.stack, torch.cat, torch.concat, torch.concatenate)
_REFLECTED = {
    Tensor.add: "__radd__",
    Tensor.__add__: "__radd__",
    Tensor.sub: "__rsub__",
    Tensor.__sub__: "__rsub__",
    Tensor.mul: "__rmul__",
    Tensor.__mul__: "__rmul__",
}


def _join(fn: Callable[..., Tensor], tensors: Sequence[Tensor | Moments], dim: int = 0) -> Moments:
    items = [as_moments(x) for x in tensors]
    mean = fn([x.mean for x in items], dim)
    return unchecked_moments(
        mean, None if all(x.is_certain for x in items) else fn([x.var for x in items], dim)
    )


def _broadcast(mean: Tensor, var: Tensor | None) -> Moments:
    return unchecked_moments(mean, _scaled(var, lambda v: v.expand(mean.shape)))


def _scaled(var: Tensor | None, fn: Callable[[Tensor], Tensor]) -> Tensor | None:
    return fn(var) if isinstance(var, Tensor) else var


def _refuse_random(other: object, operator: str, instead: str) -> None:
    if isinstance(other, Moments):
        raise TypeError(f"Moments {operator} Moments depends on their correlation: call functional.{instead}")
    if not isinstance(other, Tensor | int | float):
        raise TypeError(f"Moments {operator} takes a tensor or a number, got {type(other).__name__}")


register(Moments, unchecked_moments)


def _served_operator(name: str) -> Callable[..., Any]:
    func = getattr(Tensor, name)
    return lambda self, *other: serve(func, self, *other)


for _name in ("matmul", "rmatmul", "pow", "rpow", "rtruediv", "abs", "lt", "le", "gt", "ge", "ne", "setitem"):
    setattr(Moments, f"__{_name}__", _served_operator(f"__{_name}__"))
