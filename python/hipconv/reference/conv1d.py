"""The causal conv1d of rows in plain torch with float64 accumulation."""

from __future__ import annotations

import torch
from torch import Tensor
import torch.nn.functional as F


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None = None, use_silu: bool = False) -> Tensor:
    """Causal depthwise conv1d: ``act(bias[d] + sum_i weight[d, i] * x[b, d, t - width + 1 + i])`` with ``x[..., t < 0] = 0``.

    Args:
        x: (batch, dim, seqlen), any float dtype, any strides.
        weight: (dim, width).
        bias: (dim,), or None or an empty tensor for none.
        use_silu: apply SiLU.

    Returns:
        (batch, dim, seqlen), contiguous, float64: not rounded to the dtype of `x`.
    """
    batch, dim, seqlen = x.shape
    width = weight.shape[1]
    out = torch.zeros(batch, dim, seqlen, dtype=torch.float64, device=x.device)
    if bias is not None and bias.numel():
        out += bias.double()[None, :, None]
    for i in range(width):
        shift = width - 1 - i  # tap i sees the input `shift` tokens back; where there is none it adds nothing
        if shift < seqlen:
            out[..., shift:] += weight[:, i].double()[None, :, None] * x[..., : seqlen - shift].double()
    return F.silu(out) if use_silu else out
