"""conv2d in plain torch with float64 accumulation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
import torch.nn.functional as F

from ..ops.conv2d.activations import ACTIVATIONS


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
    padding_mode: str = "zeros",
) -> Tensor:
    """2-D convolution: ``act(bias[k] + sum_{c, r, s} weight[k, c, r, s] * x[n, c, p stride + r dilation, q stride + s dilation]
    + residual[n, k, p, q])`` of the padded x, c over the channels of filter k's group.

    Args:
        x: (batch, channels, height, width), or without batch, any float dtype, any strides.
        weight: (out_channels, channels / groups, kernel height, kernel width).
        padding: an int, a pair (height, width), (top, bottom, left, right), "same" or "valid".
        activation, padding_mode: as `hipconv.conv2d` has them.

    Returns:
        (batch, out_channels, out height, out width), or without batch, float64: not rounded to the dtype of `x`.
    """
    if x.dim() == 3:
        batched = None if residual is None else residual[None]
        return conv2d(
            x[None],
            weight,
            bias,
            stride,
            padding,
            dilation,
            groups,
            activation=activation,
            residual=batched,
            padding_mode=padding_mode,
        )[0]
    if padding == "same":
        missing = [n * (taps - 1) for n, taps in zip(_pair(dilation), weight.shape[2:], strict=True)]
        sides = [missing[1] // 2, -(-missing[1] // 2), missing[0] // 2, -(-missing[0] // 2)]
    elif isinstance(padding, str):
        sides = [0, 0, 0, 0]
    elif not isinstance(padding, Sequence) or len(padding) < 3:
        (height, width) = _pair(padding)
        sides = [width, width, height, height]
    else:
        sides = [*padding[2:], *padding[:2]]
    padded = (
        F.pad(x.double(), sides, mode="constant" if padding_mode == "zeros" else padding_mode) if any(sides) else x.double()
    )
    out = F.conv2d(padded, weight.double(), None, _pair(stride), 0, _pair(dilation), groups)
    if bias is not None:
        out += bias.double()[:, None, None]
    if residual is not None:
        out += residual.double()
    return ACTIVATIONS[activation](out)


def _pair(value: int | Sequence[int]) -> list[int]:
    return [value[0], value[-1]] if isinstance(value, Sequence) else [value, value]
