"""Packed sequences of moments."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.nn.utils.rnn import pad_packed_sequence as _pad

from fastdropout.moments import Moments, unchecked_moments


class PackedMoments(PackedSequence):
    """A `PackedSequence` whose `data` are `Moments`; `mean` and `var` are packed sequences of tensors.

    So `out(hidden.data)` works as it does for tensors, and so does `pad_packed_sequence(hidden.mean)` of
    torch; `pad_packed_sequence` of this module pads both moments.

    >>> import torch, fastdropout as fd
    >>> packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    >>> hidden, last = fd.nn.RNN(2, 4, drop_hidden=0.2)(packed)
    >>> type(hidden).__name__, hidden.data.shape
    ('PackedMoments', torch.Size([4, 4]))
    """

    @property
    def _moments(self) -> Moments:
        return self.data  # type: ignore[return-value]  # torch declares a tensor here

    @property
    def mean(self) -> PackedSequence:
        """The means, packed."""
        return PackedSequence(self._moments.mean, *self[1:])

    @property
    def var(self) -> PackedSequence:
        """The variances, packed."""
        return PackedSequence(self._moments.var, *self[1:])


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, total_length: int | None = None
) -> tuple[Moments, Tensor]:
    """`torch.nn.utils.rnn.pad_packed_sequence` of moments; padding is certain to be zero.

    >>> import torch, fastdropout as fd
    >>> packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    >>> hidden, lengths = fd.nn.pad_packed_sequence(fd.nn.RNN(2, 4, drop_hidden=0.2)(packed)[0])
    >>> hidden.shape, lengths.tolist()
    (torch.Size([3, 2, 4]), [3, 1])
    """
    data: Any = sequence.data
    if not isinstance(data, Moments):
        mean, lengths = _pad(sequence, batch_first=batch_first, total_length=total_length)
        return Moments.certain(mean), lengths
    rest = sequence[1:]
    mean, lengths = _pad(PackedSequence(data.mean, *rest), batch_first=batch_first, total_length=total_length)
    if data.is_certain:
        return Moments.certain(mean), lengths
    var, _ = _pad(PackedSequence(data.var, *rest), batch_first=batch_first, total_length=total_length)
    return unchecked_moments(mean, var), lengths
