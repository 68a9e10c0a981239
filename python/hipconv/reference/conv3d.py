"""This is what conv3d computes, in plain torch with float64 accumulation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
import torch.nn.functional as F

from ..ops.conv2d.activations import ACTIVATIONS
from ..ops.conv3d.geometry import options
from ..ops.conv3d.padding import last_frames, pad_axis, sequence, sides_of


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    cache: Tensor | None = None,
    time_padding: str | None = None,
    padding_mode: str = "zeros",
    activation: str = "none",
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """3-D convolution of the frames of cache and x together, padded as `hipconv.conv3d` says: cat, pad, convolve, add,
    activate.

    Args:
        as `hipconv.conv3d` has them; any float dtype.

    Returns:
        The result, (batch, out_channels, frames, height, width), float64: not rounded to the dtype of `x`. And the frames that
        the next call's cache has: the last (kernel frames - 1) * dilation of cache and x, in x's dtype.
    """
    if x.dim() == 4:
        batched = [None if tensor is None else tensor[None] for tensor in (cache, residual)]
        out, saved = conv3d(
            x[None], weight, bias, stride, padding, dilation, groups, cache=batched[0], time_padding=time_padding,
            padding_mode=padding_mode, activation=activation, residual=batched[1],
        )  # fmt: skip
        return out[0], saved[0]
    kernel = (weight.shape[2], weight.shape[3], weight.shape[4])
    o = options(kernel, stride, padding, dilation, groups, time_padding, padding_mode, activation)
    frames = sequence(x, cache)
    volume = frames.double()
    for axis, before, after, mode in sides_of(o, kernel[0], frames.shape[2] - x.shape[2]):
        if before or after:
            volume = pad_axis(volume, axis, before, after, mode)
    out = F.conv3d(volume, weight.double(), None, o.stride, 0, o.dilation, o.groups)
    if bias is not None:
        out += bias.double()[:, None, None, None]
    if residual is not None:
        out += residual.double()
    return ACTIVATIONS[activation](out), last_frames(frames, o, kernel[0])
