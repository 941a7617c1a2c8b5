"""Attention, decomposed into products, a softmax and the dropout of its weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdropout.integration.registry import rule


def _noisy(*args: Any, dropout_p: float = 0.0, **_: Any) -> bool:
    """Whether the dropout of the weights makes noise of plain tensors."""
    return (args[4] if len(args) > 4 else dropout_p) > 0


def _noisy_heads(*args: Any, dropout_p: float = 0.0, **_: Any) -> bool:
    return (args[10] if len(args) > 10 else dropout_p) > 0


@rule(F.scaled_dot_product_attention, kind="composite", begins=True, noisy=_noisy, how="composed of rules")
def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """softmax(Q K' / sqrt(d) + mask) V, with the weights dropped with probability `dropout_p`."""
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scores = torch.matmul(query * scale, key.transpose(-2, -1))
    length, total = query.size(-2), key.size(-2)
    if is_causal:
        allowed = torch.ones(length, total, dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if attn_mask is not None:
        scores = (
            scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        )
    weights = torch.softmax(scores, -1)
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    return torch.matmul(weights, value)


@rule(
    F.multi_head_attention_forward, kind="composite", begins=True, noisy=_noisy_heads, how="composed of rules"
)
def multi_head_attention_forward(
    query: Any, key: Any, value: Any, embed_dim_to_check: int, num_heads: int, in_proj_weight: Any,
    in_proj_bias: Any, bias_k: Any, bias_v: Any, add_zero_attn: bool, dropout_p: float, out_proj_weight: Any,
    out_proj_bias: Any, training: bool = True, key_padding_mask: Any = None, need_weights: bool = True,
    attn_mask: Any = None, use_separate_proj_weight: bool = False, q_proj_weight: Any = None,
    k_proj_weight: Any = None, v_proj_weight: Any = None, static_k: Any = None, static_v: Any = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> Any:  # fmt: skip
    """`torch.nn.MultiheadAttention`: (length, batch, features), or without the batch."""
    batched = query.ndim == 3
    if not batched:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    if static_k is not None or static_v is not None:
        raise TypeError("attention with static_k or static_v has no moment rule")
    length, batch = query.shape[:2]
    if use_separate_proj_weight:
        projections = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        projections = in_proj_weight.chunk(3)
    biases = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), projections, biases, strict=True))
    if bias_k is not None:
        k, v = torch.cat([k, bias_k.repeat(1, batch, 1)]), torch.cat([v, bias_v.repeat(1, batch, 1)])
    q, k, v = (x.reshape(x.shape[0], batch * num_heads, -1).transpose(0, 1) for x in (q, k, v))
    if add_zero_attn:
        zero = torch.zeros(batch * num_heads, 1, k.shape[-1], dtype=k.dtype, device=k.device)
        k, v = torch.cat([k, zero], 1), torch.cat([v, zero], 1)
    scores = torch.bmm(q * (1 / math.sqrt(q.shape[-1])), k.transpose(1, 2))
    mask = _mask(attn_mask, key_padding_mask, batch, num_heads, k.shape[1], q)
    if mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, -1)
    dropped = F.dropout(weights, dropout_p) if dropout_p else weights
    out = torch.bmm(dropped, v).transpose(0, 1).reshape(length, batch, -1)
    out = F.linear(out, out_proj_weight, out_proj_bias)
    shown = None
    if need_weights:
        shown = weights.reshape(batch, num_heads, length, -1)
        shown = shown.mean(1) if average_attn_weights else shown
    if batched:
        return out, shown
    return out.squeeze(1), None if shown is None else shown.squeeze(0)


def _mask(
    attn_mask: Tensor | None, padding: Tensor | None, batch: int, heads: int, total: int, like: Any
) -> Tensor | None:
    """Both masks as one that is added, shape (batch * heads or 1, length, total)."""
    mask = None
    if attn_mask is not None:
        mask = _additive(attn_mask, like)
        mask = mask if mask.ndim == 3 else mask.unsqueeze(0)
        mask = F.pad(mask, (0, total - mask.shape[-1]))
    if padding is not None:
        shut = F.pad(_additive(padding, like), (0, total - padding.shape[-1]))
        shut = shut[:, None, None, :].expand(batch, heads, 1, total).reshape(batch * heads, 1, total)
        mask = shut if mask is None else mask + shut
    return mask


def _additive(mask: Tensor, like: Any) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -math.inf)
