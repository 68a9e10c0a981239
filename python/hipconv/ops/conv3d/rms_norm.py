"""The norm between the convolutions of Wan's, Qwen-Image's and LTX's autoencoders, with the SiLU behind it, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor
import torch.nn.functional as F

from ... import jit
from ...jit import targets
from ..conv2d.operators import on_cpu
from ..dispatch import stream


def rms_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    scale: float,
    *,
    eps: float = 0.0,
    silu: bool,
    out: Tensor | None = None,
) -> Tensor:
    """Divide each pixel's channels by the root of their sum of squares, to which `eps` is added, multiply by `scale` and
    `weight`, add `bias`, and activate. x is (batch, channels, frames, height, width), `out` may be x itself. No gradient is
    recorded.

    In the kernel sums are float32 and the result is rounded once. What it does not serve (x must be channels_last_3d memory of
    whole 16-byte vectors, weights of x's dtype) goes through torch.
    """
    if out is None:
        out = torch.empty_like(x)
    if not on_cpu(x):
        weights = (None if each is None else each.detach().reshape(-1) for each in (weight, bias))
        module = jit.module("conv3d", targets.of(x.device))
        if module.rms_norm(out, x, *weights, scale, eps, silu, stream(x)):
            return out
    shape = (-1, 1, 1, 1)
    wide = x.float()
    normalized = wide * (wide.square().sum(1, keepdim=True) + eps).rsqrt() if eps else F.normalize(wide, dim=1)
    result = normalized.to(x.dtype) * scale
    if weight is not None:
        result = result * weight.reshape(shape)
    if bias is not None:
        result = result + bias.reshape(shape)
    return out.copy_(F.silu(result) if silu else result)
