"""The end of a norm between the convolutions of video autoencoders, with the SiLU behind it, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor
import torch.nn.functional as F

from ... import jit
from ...jit import targets
from ..conv2d.operators import on_cpu
from ..dispatch import stream
from .nearest import enlarged_to


def scaled(
    x: Tensor, scale: Tensor, shift: Tensor, *, silu: bool, first_apart: bool = False, out: Tensor | None = None
) -> Tensor:
    """Return x * scale + shift, activated where `silu` says so. Scale and shift are float32 and may have fewer frames, rows and
    columns, each of which stands for several of x; the first frame for one where it stands apart. x is (batch, channels,
    frames, height, width), `out` may be x itself. No gradient is recorded.

    The kernel rounds once. What it does not serve (x must be channels_last_3d memory of whole 16-byte vectors, its sizes
    multiples of the others') goes through torch.
    """
    if out is None:
        out = torch.empty_like(x)
    scale, shift = (each.contiguous(memory_format=torch.channels_last_3d) for each in (scale, shift))
    if not on_cpu(x):
        module = jit.module("conv3d", targets.of(x.device))
        if module.scaled(out, x, scale, shift, first_apart, silu, stream(x)):
            return out
    if scale.shape[2:].numel() > 1:
        scale, shift = (enlarged_to(each, x.shape[2:], first_apart) for each in (scale, shift))
    result = torch.addcmul(shift, x, scale)
    return out.copy_(F.silu(result, inplace=True) if silu else result)
