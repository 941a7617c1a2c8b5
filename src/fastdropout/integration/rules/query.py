"""What is asked of the mean only: shapes and types, comparisons; and what random values cannot answer."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from fastdropout.integration.context import note_once
from fastdropout.integration.registry import method, name_of, rule, words
from fastdropout.integration.values import means
from fastdropout.integration.where import module_path

_PROPERTIES = words(
    """
    shape dtype device ndim layout is_cuda is_cpu is_meta is_mps is_xpu is_sparse is_quantized is_nested
    is_mkldnn is_leaf requires_grad names itemsize nbytes grad_fn output_nr _version is_sparse_csr
    is_vulkan is_ort is_ipu is_xla is_maia is_mtia
    """
)
_METHODS = words(
    """
    dim size numel nelement stride storage_offset is_contiguous element_size is_floating_point
    is_complex is_signed get_device __len__ ndimension is_inference is_conj is_neg is_same_size data_ptr
    dim_order is_shared is_pinned new_zeros new_ones new_full new_empty new_tensor has_names
    """
)
_FUNCTIONS = words(
    """
    is_floating_point is_complex numel is_same_size zeros_like ones_like full_like empty_like rand_like
    randn_like is_conj is_neg is_inference
    """
)


@rule(
    *[getattr(Tensor, name).__get__ for name in _PROPERTIES if hasattr(Tensor, name)],
    *[method(name) for name in _METHODS],
    *[getattr(torch, name) for name in _FUNCTIONS],
    kind="plain",
    generic=True,
)
def describe(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Answered by the mean: shapes, types, and new tensors of the same kind."""
    return func(*means(args), **means(kwargs))


_DECISIONS = words(
    """
    eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__ less less_equal greater greater_equal
    not_equal isnan isinf isfinite isclose argmax argmin argsort sign sgn signbit logical_not nonzero
    any all count_nonzero searchsorted bucketize allclose equal heaviside round floor ceil trunc isreal
    long int short bool
    """
)


@rule(
    *[method(name) for name in _DECISIONS],
    *[getattr(torch, name, None) for name in _DECISIONS if not name.startswith("_")],
    kind="plain",
    generic=True,
)
def decide(func: Any, *args: Any, **kwargs: Any) -> Any:
    """A comparison or an index: made at the mean, and then certain. A note says so, once."""
    path = module_path()
    note_once(
        name_of(func),
        "%s of random values%s is taken at the mean: the noise does not change its result.",
        name_of(func),
        f" in {path}" if path else "",
    )
    return func(*means(args), **means(kwargs))


_VALUES = words(
    """
    item tolist numpy __bool__ __int__ __float__ __complex__ __index__ __array__ data __contains__
    storage untyped_storage backward share_memory_
    """
)


@rule(
    *[method(name) for name in _VALUES if name != "data"],
    Tensor.data.__get__,  # type: ignore[attr-defined]
    kind="plain",
    generic=True,
)
def refuse(func: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """The value of something random."""
    path = module_path()
    raise TypeError(
        f"{name_of(func)}{f' in {path}' if path else ''} asks for the value of Moments, which is random: "
        "take .mean or .var first, or leave this out while the noise is integrated"
    )
