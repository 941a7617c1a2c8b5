"""`Moments`: the one value that flows through everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fastdropout.serving import Refusal, attribute, readable, serve, serving

# What has no variance, and may shift or scale what has.
Plain = Tensor | float


@final
class Moments:
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

    __slots__ = ("_mean", "_var")
    _mean: Tensor
    _var: Tensor | None  # or a Refusal, made inside of `integrate()` only

    # Keeps numpy arrays and tensors on the left of an operator from swallowing us element by element.
    __array_ufunc__ = None

    def __init__(self, mean: Tensor, var: Tensor) -> None:
        _check(mean, var)
        object.__setattr__(self, "_mean", mean)
        object.__setattr__(self, "_var", var)

    @classmethod
    def certain(cls, x: Tensor) -> Moments:
        """The random variable that is always `x`."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise ValueError(f"a certain value must be a floating-point tensor, got {_describe(x)}")
        return moments(x, None)

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

    def size(self, dim: int | None = None) -> Any:
        """The shape, or its length along `dim`."""
        return self._mean.size() if dim is None else self._mean.size(dim)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Moments:
        """Rearrange: apply to mean and variance a function that only moves or copies elements."""
        return moments(fn(self._mean), fn(self._var) if isinstance(self._var, Tensor) else self._var)

    def detach(self) -> Moments:
        """Cut off the gradient."""
        return self.map(Tensor.detach)

    def clone(self, **kwargs: Any) -> Moments:
        """Copy the tensors; gradients flow through."""
        return self.map(lambda t: t.clone(**kwargs))

    def contiguous(self, **kwargs: Any) -> Moments:
        """Lay the tensors out in order."""
        return self.map(lambda t: t.contiguous(**kwargs))

    def to(self, *args: Any, **kwargs: Any) -> Moments:
        """Convert as `torch.Tensor.to`."""
        return self.map(lambda t: t.to(*args, **kwargs))

    def cpu(self) -> Moments:
        """Move to the CPU."""
        return self.map(Tensor.cpu)

    def double(self) -> Moments:
        """Convert to float64."""
        return self.map(Tensor.double)

    def float(self) -> Moments:
        """Convert to float32."""
        return self.map(Tensor.float)

    def reshape(self, *shape: Any) -> Moments:
        """Reshape as `torch.Tensor.reshape`."""
        return self.map(lambda t: t.reshape(*shape))

    def view(self, *shape: int) -> Moments:
        """View as `torch.Tensor.view`, without copying."""
        return self.map(lambda t: t.view(*shape))

    def expand(self, *shape: Any) -> Moments:
        """Repeat the same variables without copying."""
        return self.map(lambda t: t.expand(*shape))

    def transpose(self, dim0: int, dim1: int) -> Moments:
        """Swap two dimensions."""
        return self.map(lambda t: t.transpose(dim0, dim1))

    def permute(self, *dims: Any) -> Moments:
        """Reorder the dimensions."""
        return self.map(lambda t: t.permute(*dims))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Moments:
        """Flatten a range of dimensions."""
        return self.map(lambda t: t.flatten(start_dim, end_dim))

    def squeeze(self, *dim: Any) -> Moments:
        """Remove a dimension of length one, or all of them."""
        return self.map(lambda t: t.squeeze(*dim))

    def unsqueeze(self, dim: int) -> Moments:
        """Insert a dimension of length one."""
        return self.map(lambda t: t.unsqueeze(dim))

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
        return self.map(lambda t: t[index])

    def __len__(self) -> int:
        return len(self._mean)

    def __iter__(self) -> Iterator[Moments]:
        return (self[i] for i in range(len(self)))

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
        return moments(self._mean * other, _scaled(self._var, lambda v: v * other**2))

    __rmul__ = __mul__

    def __truediv__(self, other: Plain) -> Moments:
        if serving.by is not None:
            return serve(torch.div, self, other)
        _refuse_random(other, "/", "multiply_independent(a, b)")
        return moments(self._mean / other, _scaled(self._var, lambda v: v / other**2))

    def __neg__(self) -> Moments:
        return moments(-self._mean, self._var)

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
        return moments, (self._mean, self._var)


def moments(mean: Tensor, var: Tensor | None) -> Moments:
    """Build `Moments` from parts that fit by construction; `None` is the variance of a certain value.

    The maths calls this for its results: looking at the values of every variance would wait for the
    device, and cannot be traced by `torch.compile` or `torch.func`.
    """
    out = object.__new__(Moments)
    object.__setattr__(out, "_mean", mean)
    object.__setattr__(out, "_var", var)
    return out


def as_moments(x: Tensor | Moments) -> Moments:
    """A tensor as a certain value, `Moments` as they are."""
    return x if isinstance(x, Moments) else Moments.certain(x)


def _check(mean: Tensor, var: Tensor) -> None:
    for name, x in (("mean", mean), ("var", var)):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise ValueError(f"{name} must be a floating-point tensor, got {_describe(x)}")
    for name in ("shape", "dtype", "device"):
        a, b = getattr(mean, name), getattr(var, name)
        if a != b:
            raise ValueError(f"var must have the {name} of mean, {_plain(a)}, got {_plain(b)}")
    if _has_values(var) and not bool((var >= 0).all()):  # also catches NaN
        raise ValueError(f"var must be at least 0, got {var.detach().min().item():.6g}")


def _has_values(x: Tensor) -> bool:
    """Whether the elements can be looked at: not while tracing, and not on the meta device."""
    if torch.compiler.is_compiling() or x.is_meta:
        return False
    return type(x) in (Tensor, torch.nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def _describe(x: object) -> str:
    return f"a tensor of {_plain(x.dtype)}" if isinstance(x, Tensor) else type(x).__name__


def _plain(x: object) -> object:
    return tuple(x) if isinstance(x, torch.Size) else x


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
    return moments(mean, None if all(x.is_certain for x in items) else fn([x.var for x in items], dim))


def _broadcast(mean: Tensor, var: Tensor | None) -> Moments:
    return moments(mean, _scaled(var, lambda v: v.expand(mean.shape)))


def _scaled(var: Tensor | None, fn: Callable[[Tensor], Tensor]) -> Tensor | None:
    return fn(var) if isinstance(var, Tensor) else var


def _refuse_random(other: object, operator: str, instead: str) -> None:
    if isinstance(other, Moments):
        raise TypeError(f"Moments {operator} Moments depends on their correlation: call functional.{instead}")
    if not isinstance(other, Tensor | int | float):
        raise TypeError(f"Moments {operator} takes a tensor or a number, got {type(other).__name__}")


# torch has no public call that registers a class whose number of leaves depends on the instance.
pytree.register_pytree_node(
    Moments,
    lambda x: ([x.mean], True) if x.is_certain else ([x.mean, x._var], False),
    lambda leaves, certain: moments(*leaves, None) if certain else moments(*leaves),  # type: ignore[call-arg]
    serialized_type_name="fastdropout.Moments",
)


def _served_operator(name: str) -> Callable[..., Any]:
    func = getattr(Tensor, name)
    return lambda self, *other: serve(func, self, *other)


for _name in ("matmul", "rmatmul", "pow", "rpow", "rtruediv", "abs", "lt", "le", "gt", "ge", "ne", "setitem"):
    setattr(Moments, f"__{_name}__", _served_operator(f"__{_name}__"))
