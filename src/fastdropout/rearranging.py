"""The methods of `torch.Tensor` that move, copy or convert elements, for a value of several tensors."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

from torch import Tensor


class Rearranging:
    """Methods made from one: `rearrange`, which applies a function to each of the tensors."""

    __slots__ = ()
    _mean: Tensor

    def rearrange(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """Apply to all tensors a function that only moves or copies elements."""
        raise NotImplementedError

    def map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """The old name of `rearrange`, until the next version."""
        warnings.warn("Moments.map is now Moments.rearrange", DeprecationWarning, stacklevel=2)
        return self.rearrange(fn)

    def detach(self) -> Self:
        """Cut off the gradient."""
        return self.rearrange(Tensor.detach)

    def clone(self, **kwargs: Any) -> Self:
        """Copy the tensors; gradients flow through."""
        return self.rearrange(lambda t: t.clone(**kwargs))

    def contiguous(self, **kwargs: Any) -> Self:
        """Lay the tensors out in order."""
        return self.rearrange(lambda t: t.contiguous(**kwargs))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Convert as `torch.Tensor.to`."""
        return self.rearrange(lambda t: t.to(*args, **kwargs))

    def cpu(self) -> Self:
        """Move to the CPU."""
        return self.rearrange(Tensor.cpu)

    def double(self) -> Self:
        """Convert to float64."""
        return self.rearrange(Tensor.double)

    def float(self) -> Self:
        """Convert to float32."""
        return self.rearrange(Tensor.float)

    def reshape(self, *shape: Any) -> Self:
        """Reshape as `torch.Tensor.reshape`."""
        return self.rearrange(lambda t: t.reshape(*shape))

    def view(self, *shape: int) -> Self:
        """View as `torch.Tensor.view`, without copying."""
        return self.rearrange(lambda t: t.view(*shape))

    def expand(self, *shape: Any) -> Self:
        """Repeat the same variables without copying."""
        return self.rearrange(lambda t: t.expand(*shape))

    def transpose(self, dim0: int, dim1: int) -> Self:
        """Swap two dimensions."""
        return self.rearrange(lambda t: t.transpose(dim0, dim1))

    def permute(self, *dims: Any) -> Self:
        """Reorder the dimensions."""
        return self.rearrange(lambda t: t.permute(*dims))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Self:
        """Flatten a range of dimensions."""
        return self.rearrange(lambda t: t.flatten(start_dim, end_dim))

    def squeeze(self, *dim: Any) -> Self:
        """Remove a dimension of length one, or all of them."""
        return self.rearrange(lambda t: t.squeeze(*dim))

    def unsqueeze(self, dim: int) -> Self:
        """Insert a dimension of length one."""
        return self.rearrange(lambda t: t.unsqueeze(dim))

    def half(self) -> Self:
        """Convert to float16."""
        return self.rearrange(Tensor.half)

    def bfloat16(self) -> Self:
        """Convert to bfloat16."""
        return self.rearrange(Tensor.bfloat16)

    def cuda(self, *args: Any, **kwargs: Any) -> Self:
        """Move to a GPU as `torch.Tensor.cuda`."""
        return self.rearrange(lambda t: t.cuda(*args, **kwargs))

    def pin_memory(self) -> Self:
        """Copy to memory that a GPU reads fast, as a `DataLoader` asks for."""
        return self.rearrange(Tensor.pin_memory)

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """The parts along `dim`, such as the steps of a sequence, without it."""
        return tuple(self.rearrange(functools.partial(_select, dim, i)) for i in range(self._mean.size(dim)))

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Parts of a length along `dim`, the last one shorter if need be, or of given lengths."""
        return self._parts(self._mean.split(split_size, dim), dim)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """At most so many parts along `dim`, as `torch.Tensor.chunk`."""
        return self._parts(self._mean.chunk(chunks, dim), dim)

    def _parts(self, like: Sequence[Tensor], dim: int) -> tuple[Self, ...]:
        lengths = [part.size(dim) for part in like]
        starts = itertools.accumulate(lengths[:-1], initial=0)
        return tuple(
            self.rearrange(functools.partial(_narrow, dim, start, length))
            for start, length in zip(starts, lengths, strict=True)
        )


def _select(dim: int, index: int, x: Tensor) -> Tensor:
    return x.select(dim, index)


def _narrow(dim: int, start: int, length: int, x: Tensor) -> Tensor:
    return x.narrow(dim, start, length)
