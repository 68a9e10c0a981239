"""The causal three-dimensional convolution as a layer, which keeps the frames that the next chunk sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..arguments import describe, parse_activation, require_kinds
from ..ops.conv2d import precision
from ..ops.conv2d.activations import ACTIVATIONS
from ..ops.conv3d.forward import conv3d


class CausalConv3d(torch.nn.Conv3d):
    """`hipconv.conv3d` of video, causal in time: an output frame sees its own input frame and those before it.

    Parameters, initial values and the state dict are those of `torch.nn.Conv3d`. `forward` takes a whole video; `step` takes it
    chunk by chunk and keeps the last (kernel frames - 1) * dilation input frames, so that the chunks together are the whole.
    The frames are read where they lie: two buffers take turns, and no concatenation is made. They are no part of the state
    dict.

    Args:
        in_channels, out_channels, kernel_size, stride, dilation, groups, bias, device, dtype: as for `torch.nn.Conv3d`. With a
            stride in time, a chunk has a multiple of it of frames, or the next one begins between two outputs.
        padding: rows and columns on each side: an int, or a pair (height, width).
        padding_mode: "zeros", "reflect", "replicate" or "circular", of rows and columns.
        time_padding: what stands before the first frame: "zeros", or "first" for the first frame again.
        activation: what follows the sum, as for `hipconv.conv3d`.
        float32_precision: how float32 is multiplied on a GPU, as for `hipconv.conv3d`; None for what torch's settings say.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, or one that `torch.nn.Conv3d` refuses.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        time_padding: str = "zeros",
        activation: str = "none",
        float32_precision: str | None = None,
    ) -> None:
        parse_activation(activation, ACTIVATIONS)
        precision.check(float32_precision)
        require_kinds(CausalConv3d.__init__, locals())
        if time_padding not in ("zeros", "first"):
            raise ValueError(f"time_padding: got {describe(time_padding)}, expected 'zeros' or 'first'")
        sides = tuple(padding) if isinstance(padding, Sequence) else (padding, padding)
        if len(sides) != 2:
            raise ValueError(f"padding: got {describe(padding)}, expected an int or a pair (height, width)")
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            (0, *sides),
            dilation,
            groups,
            bias,
            padding_mode,
            device=device,
            dtype=dtype,
        )
        self.time_padding, self.activation, self.float32_precision = time_padding, activation, float32_precision
        self._caches: list[Tensor | None] = [None, None]  # the one that the next step reads, the one that it writes

    def reset(self) -> None:
        """Forget the frames: the next step is the first of a video."""
        self._caches = [None, None]

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """``activation(conv(input) + residual)`` of a whole video; what `step` keeps stays as it is.

        Args:
            input: (batch, in_channels, frames, height, width) or without batch, float32, float16 or bfloat16, in any memory
                layout; the result is in the same.
            residual: of the shape of the result, or None.

        Raises:
            TypeError, ValueError: what `hipconv.conv3d` raises.
        """
        return self._conv3d(input, residual)

    def step(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """The same of the next chunk of a video. One without frames, which gives none, leaves what is kept as it is.

        Records no gradient: call it under ``torch.no_grad()``.

        Raises:
            TypeError, ValueError: what `hipconv.conv3d` raises; a chunk of another size, dtype or device than the one before,
                without a `reset()` between them. The frames that are kept stay as they were then.
        """
        history = (self.kernel_size[0] - 1) * self.dilation[0]
        if history == 0:
            return self._conv3d(input, residual)
        cache, spare = self._caches
        shape = [*input.shape[:-3], history, *input.shape[-2:]]
        if cache is not None and (list(cache.shape), cache.dtype, cache.device) != (shape, input.dtype, input.device):
            raise ValueError(
                f"input: got shape {tuple(input.shape)}, {input.dtype} on {input.device}, expected a chunk of the video whose "
                f"frames {tuple(cache.shape)}, {cache.dtype} on {cache.device}, are kept. For another video call reset() first."
            )
        if spare is None:
            spare = torch.empty(shape, dtype=input.dtype, device=input.device, memory_format=_layout(input))
        result = self._conv3d(input, residual, cache, spare)
        self._caches = [spare, cache]
        return result

    def _conv3d(
        self, x: Tensor, residual: Tensor | None, cache: Tensor | None = None, cache_out: Tensor | None = None
    ) -> Tensor:
        return conv3d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups, cache=cache, cache_out=cache_out,
            time_padding=self.time_padding, padding_mode=self.padding_mode, activation=self.activation, residual=residual,
            float32_precision=self.float32_precision,
        )  # fmt: skip

    def extra_repr(self) -> str:
        text = f"{super().extra_repr()}, time_padding={self.time_padding!r}"
        text += "" if self.activation == "none" else f", activation={self.activation!r}"
        return text + ("" if self.float32_precision is None else f", float32_precision={self.float32_precision!r}")


def _layout(x: Tensor) -> torch.memory_format:
    last = x.dim() == 5 and x.is_contiguous(memory_format=torch.channels_last_3d) and not x.is_contiguous()
    return torch.channels_last_3d if last else torch.contiguous_format
