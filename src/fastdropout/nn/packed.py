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
    """`torch.nn.utils.rnn.pad_packed_sequence` of moments; padding is certain to be zero."""
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
