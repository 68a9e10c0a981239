"""The norm between the convolutions of Wan's and Qwen-Image's autoencoders, with the SiLU behind it, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor
import torch.nn.functional as F

from ... import jit
from ...jit import targets
from ..conv2d.operators import on_cpu
from ..dispatch import stream


def rms_norm(x: Tensor, weight: Tensor, bias: Tensor | None, scale: float, *, silu: bool, out: Tensor | None = None) -> Tensor:
    """Divide each pixel's channels by the root of their sum of squares, multiply by `scale` and `weight`, add `bias`, and
    activate. x is (batch, channels, frames, height, width), `out` may be x itself. No gradient is recorded.

    In the kernel sums are float32 and the result is rounded once. What it does not serve (x must be channels_last_3d memory of
    whole 16-byte vectors, weights of x's dtype) goes through torch.
    """
    if out is None:
        out = torch.empty_like(x)
    if not on_cpu(x):
        weights = weight.detach().reshape(-1), None if bias is None else bias.detach().reshape(-1)
        module = jit.module("conv3d", targets.of(x.device))
        if module.rms_norm(out, x, *weights, scale, silu, stream(x)):
            return out
    shape = (-1, 1, 1, 1)
    result = F.normalize(x.float(), dim=1).to(x.dtype) * scale * weight.reshape(shape)
    if bias is not None:
        result = result + bias.reshape(shape)
    return out.copy_(F.silu(result) if silu else result)
