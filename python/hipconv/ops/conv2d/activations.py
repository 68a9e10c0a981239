"""The activations of conv2d, by name, and their gradients: what CPU tensors,
the reference and the backward compute them with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
import torch.nn.functional as F

LEAKY_SLOPE = 0.01

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda v: v,
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky_relu": lambda v: F.leaky_relu(v, LEAKY_SLOPE),
    "hardswish": F.hardswish,
}

ROUNDED_FIRST = ("none", "relu", "relu6")
"""Activations that give the same whether what they are applied to was rounded before or the result is rounded after."""


def _silu_gradient(dy: Tensor, v: Tensor) -> Tensor:
    """By operations that can be differentiated again, which torch's own operator cannot."""
    s = torch.sigmoid(v)
    return dy * (s * (1 + v * (1 - s)))


_FROM_OUTPUT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda dy, y: torch.ops.aten.threshold_backward(dy, y, 0),
    "relu6": lambda dy, y: torch.ops.aten.hardtanh_backward(dy, y, 0, 6),
    "sigmoid": torch.ops.aten.sigmoid_backward,
    "tanh": torch.ops.aten.tanh_backward,
    "leaky_relu": lambda dy, y: torch.ops.aten.leaky_relu_backward(dy, y, LEAKY_SLOPE, True),
}
_FROM_INPUT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gelu": lambda dy, v: torch.ops.aten.gelu_backward(dy, v),
    "gelu_tanh": lambda dy, v: torch.ops.aten.gelu_backward(dy, v, approximate="tanh"),
    "silu": _silu_gradient,
    "hardswish": torch.ops.aten.hardswish_backward,
}


def read_by_gradient(
    name: str, bias: Tensor | None, residual: Tensor | None, output: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """A call's tensors, but None for those that `gradient` of activation `name` does not read: nothing keeps them, and their
    owner may write into them. Bias and residual are read where the sum is made again.
    """
    sums_again = name in _FROM_INPUT
    return bias if sums_again else None, residual if sums_again else None, output if name in _FROM_OUTPUT else None


def gradient(name: str, dy: Tensor, output: Tensor | None, preactivation: Callable[[], Tensor]) -> Tensor:
    """The gradient before activation `name` from that behind it; `preactivation` is asked only if the output does not tell."""
    if name == "none":
        return dy
    if name in _FROM_OUTPUT:
        assert output is not None
        return _FROM_OUTPUT[name](dy, output)
    return _FROM_INPUT[name](dy, preactivation())
