"""The two-dimensional convolution as a layer."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ..arguments import parse_activation, require_kinds
from ..ops.conv2d.activations import ACTIVATIONS
from ..ops.conv2d.forward import conv2d

SERVED = (torch.float32, torch.float16, torch.bfloat16)


class Conv2d(torch.nn.Conv2d):
    """`torch.nn.Conv2d` computed by `hipconv.conv2d`, with an activation and a residual in the same kernel.

    Arguments, parameters, initial values and the state dict are those of `torch.nn.Conv2d`, so checkpoints load either way.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype: as for
            `torch.nn.Conv2d`.
        activation: what follows the sum: "none", "relu", "relu6", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "leaky_relu"
            (slope 0.01) or "hardswish".

    Raises:
        TypeError, ValueError: an argument of the wrong kind, or one that `torch.nn.Conv2d` refuses.
    """

    activation: str

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: str = "none",
    ) -> None:
        parse_activation(activation, ACTIVATIONS)
        require_kinds(Conv2d.__init__, locals())
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device=device,
            dtype=dtype,
        )
        self.activation = activation

    @classmethod
    def from_torch(cls, layer: torch.nn.Conv2d, activation: str = "none") -> Conv2d:
        """A layer with the settings, the mode and the very parameters of `layer`, which shares them from then on."""
        parse_activation(activation, ACTIVATIONS)
        made = cls.__new__(cls)
        torch.nn.Module.__init__(made)
        made.__dict__.update({name: value for name, value in layer.__dict__.items() if not name.startswith("_")})
        made._reversed_padding_repeated_twice = layer._reversed_padding_repeated_twice
        made.weight, made.bias, made.activation = layer.weight, layer.bias, activation
        return made.train(layer.training)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("activation", "none")  # of a layer that was pickled as torch's

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """``activation(conv(input) + residual)``.

        Args:
            input: (batch, in_channels, height, width) or without batch, in any memory layout; the result is in the same. Of
                another dtype than float32, float16 or bfloat16, it goes through torch's own convolution.
            residual: of the shape of the result, or None.

        Raises:
            TypeError, ValueError: what `hipconv.conv2d` raises.
        """
        return self._conv_forward(input, self.weight, self.bias, residual)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None) -> Tensor:
        if isinstance(input, Tensor) and input.dtype not in SERVED:
            result = super()._conv_forward(input, weight, bias)
            return ACTIVATIONS[self.activation](result if residual is None else result + residual)
        return conv2d(
            input, weight, bias, self.stride, self.padding, self.dilation, self.groups,
            activation=self.activation, residual=residual, padding_mode=self.padding_mode,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.activation == "none" else f", activation={self.activation!r}")
