"""The blocks of diffusers' AutoencoderKLHunyuanVideo, AutoencoderKLCogVideoX and AutoencoderKLLTXVideo, each run as a whole on
the layers that it has.

A block gets, makes and hands on channels_last_3d memory, of which nothing is laid out anew: group norms stay in it, SiLU
overwrites what the norm made, residuals are added by the second convolution, and upsampling copies whole pixels. Which layer is
which, names and attributes say; diffusers is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
import torch.nn.functional as F

from . import group_norm
from .nearest import enlarged

Names = Iterator[tuple[str, tuple[str, ...]]]


class Kind(NamedTuple):
    """A class of blocks."""

    run: Callable[..., Any]
    """Compute what its forward returns; None for a call that is left to it. No gradient is recorded."""
    is_known: Callable[[Any], bool]
    """Tell whether a block is made of what diffusers makes it of."""
    computed_with: Callable[[str, Any], Names]
    """Name each convolution that is computed with other layers, and those layers, for a block of this name."""
    image_weights: Callable[[Any], list[Tensor]] = lambda block: []
    """Return the weights of the two-dimensional convolutions that `run` computes."""


def _laid_out(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last_3d)


def _normalized(norm: Any, x: Tensor) -> Tensor:
    """The group norm of a video in channels_last_3d, in that memory."""
    if x.is_cuda and group_norm.LARGE <= x[0].numel() < group_norm.MOST:
        return group_norm.normalized(x, norm.num_groups, norm.weight, norm.bias, norm.eps)
    return _laid_out(F.group_norm(x, norm.num_groups, norm.weight, norm.bias, norm.eps))


def _is_group_norm(norm: Any) -> bool:
    return isinstance(norm, nn.GroupNorm)


def _of_resnet(name: str, block: Any) -> Names:
    for number in (1, 2):
        yield f"{name}.conv{number}", (f"{name}.norm{number}", f"{name}.nonlinearity")


def _nothing(name: str, block: Any) -> Names:
    yield from ()


# ---- HunyuanVideo ------------------------------------------------------------------------------------------------------------


def _hunyuan_resnet(block: Any, x: Tensor) -> Tensor:
    x = _laid_out(x)
    hidden = block.conv1(F.silu(_normalized(block.norm1, x), inplace=True))
    hidden = F.silu(_normalized(block.norm2, hidden), inplace=True)
    return block.conv2(hidden, residual=x if block.conv_shortcut is None else block.conv_shortcut(x))


def _is_hunyuan_resnet(block: Any) -> bool:
    return isinstance(block.nonlinearity, nn.SiLU) and _is_group_norm(block.norm1) and _is_group_norm(block.norm2)


def _hunyuan_upsample(block: Any, x: Tensor) -> Tensor:
    times, down, across = map(int, block.upsample_factor)
    return block.conv(enlarged(_laid_out(x), (times, down, across), first_apart=True))


def _is_hunyuan_upsample(block: Any) -> bool:
    return all(factor == int(factor) for factor in block.upsample_factor)


KINDS = {
    "HunyuanVideoResnetBlockCausal3D": Kind(_hunyuan_resnet, _is_hunyuan_resnet, _of_resnet),
    "HunyuanVideoUpsampleCausal3D": Kind(_hunyuan_upsample, _is_hunyuan_upsample, _nothing),
}
