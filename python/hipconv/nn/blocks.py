"""The blocks of diffusers' AutoencoderKLHunyuanVideo, AutoencoderKLCogVideoX and AutoencoderKLLTXVideo, each run as a whole on
the layers that it has.

A block gets, makes and hands on channels_last_3d memory, of which nothing is laid out anew: a norm is applied in one pass with
the SiLU behind it and overwrites what only the block has, the second convolution adds the residual, and upsampling copies whole
pixels. Which layer is which, names and attributes say; diffusers is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..ops.conv3d.forward import conv3d
from ..ops.conv3d.nearest import enlarged
from ..ops.conv3d.rms_norm import rms_norm
from ..ops.conv3d.scaled import scaled
from .group_norm import factors

Names = Iterator[tuple[str, tuple[str, ...]]]
Cache = dict[str, Any]


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


def _is_resnet(block: Any) -> bool:
    norms = (block.norm1, block.norm2)
    known = all(isinstance(norm, nn.GroupNorm) or _is_spatial_norm(norm) or _is_rms_norm(norm) for norm in norms)
    return known and isinstance(block.nonlinearity, nn.SiLU)


def _of_resnet(name: str, block: Any) -> Names:
    for number in (1, 2):
        inner = ".norm_layer" if _is_spatial_norm(getattr(block, f"norm{number}")) else ""
        yield f"{name}.conv{number}", (f"{name}.norm{number}{inner}", f"{name}.nonlinearity")


def _nothing(name: str, block: Any) -> Names:
    yield from ()


# ---- HunyuanVideo ------------------------------------------------------------------------------------------------------------


def _group_norm(norm: Any, x: Tensor, out: Tensor | None = None) -> Tensor:
    """The group norm and SiLU."""
    return scaled(x, *factors(x, norm.num_groups, norm.weight, norm.bias, norm.eps), silu=True, out=out)


def _hunyuan_resnet(block: Any, x: Tensor) -> Tensor:
    x = _laid_out(x)
    hidden = block.conv1(_group_norm(block.norm1, x))
    _group_norm(block.norm2, hidden, out=hidden)
    return block.conv2(hidden, residual=x if block.conv_shortcut is None else block.conv_shortcut(x))


def _hunyuan_upsample(block: Any, x: Tensor) -> Tensor:
    times, down, across = map(int, block.upsample_factor)
    return block.conv(enlarged(_laid_out(x), (times, down, across), first_apart=True))


def _is_hunyuan_upsample(block: Any) -> bool:
    return all(factor == int(factor) for factor in block.upsample_factor)


# ---- CogVideoX ---------------------------------------------------------------------------------------------------------------


def _is_spatial_norm(norm: Any) -> bool:
    if type(norm).__name__ != "CogVideoXSpatialNorm3D":
        return False
    return all(layer.conv.kernel_size == layer.conv.stride == (1, 1, 1) for layer in (norm.conv_y, norm.conv_b))


def _conditioned(norm: Any, x: Tensor, zq: Tensor | None, silu: bool, out: Tensor | None = None) -> Tensor:
    """The group norm, and what the latents make of each pixel: the convolutions of one tap run on the latents as they are, as
    each of these stands for several pixels."""
    if zq is None:
        return _group_norm(norm, x, out)
    inner, frames = norm.norm_layer, x.shape[2]
    scale, shift = factors(x, inner.num_groups, inner.weight, inner.bias, inner.eps)
    by, more = (conv(zq)[0].float() for conv in (norm.conv_y, norm.conv_b))
    first_apart = frames > 1 and frames % 2 == 1
    return scaled(x, scale * by, torch.addcmul(more, shift, by), silu=silu, first_apart=first_apart, out=out)


def _cogvideox_norm(norm: Any, f: Tensor, zq: Tensor, conv_cache: Cache | None = None) -> tuple[Tensor, Cache]:
    return _conditioned(norm, _laid_out(f), zq, silu=False), {}


def _cogvideox_resnet(
    block: Any, x: Tensor, temb: Tensor | None = None, zq: Tensor | None = None, conv_cache: Cache | None = None
) -> tuple[Tensor, Cache] | None:
    if temb is not None or _is_spatial_norm(block.norm1) != (zq is not None):
        return None
    earlier, kept = conv_cache or {}, {}
    x = _laid_out(x)
    hidden, kept["conv1"] = block.conv1(_conditioned(block.norm1, x, zq, silu=True), conv_cache=earlier.get("conv1"))
    _conditioned(block.norm2, hidden, zq, silu=True, out=hidden)
    if block.in_channels != block.out_channels:
        if block.use_conv_shortcut:
            x, kept["conv_shortcut"] = block.conv_shortcut(x, conv_cache=earlier.get("conv_shortcut"))
        else:
            x = block.conv_shortcut(x)
    x, kept["conv2"] = block.conv2(hidden, conv_cache=earlier.get("conv2"), residual=x)
    return x, kept


def _cogvideox_upsample(block: Any, x: Tensor) -> Tensor:
    frames, conv = x.shape[2], block.conv
    times = 2 if block.compress_time and frames > 1 else 1
    x = enlarged(_laid_out(x), (times, 2, 2), first_apart=frames % 2 == 1)
    return conv3d(x, conv.weight.unsqueeze(2), conv.bias, padding=(0, 1, 1))


def _is_cogvideox_upsample(block: Any) -> bool:
    conv = block.conv
    numbers = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode)
    return type(conv) is nn.Conv2d and numbers == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros")


def _of_cogvideox_upsample(name: str, block: Any) -> Names:
    yield f"{name}.conv", ()


# ---- LTX ---------------------------------------------------------------------------------------------------------------------


def _is_rms_norm(norm: Any) -> bool:
    """Tell whether it is a norm over one axis without a weight: torch.nn.RMSNorm has the name, too, of more axes or no eps."""
    axes = len(getattr(norm, "normalized_shape", "1"))
    return type(norm).__name__ == "RMSNorm" and norm.weight is None and isinstance(norm.eps, float) and axes == 1


def _rms(norm: Any, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, **options: Any) -> Tensor:
    channels = x.shape[1]
    return rms_norm(x, weight, bias, math.sqrt(channels), eps=channels * norm.eps, **options)


def _ltx_norm(norm: Any, x: Tensor) -> Tensor:
    """The norm of a video whose channels are the last axis."""
    return _rms(norm, _laid_out(x.movedim(-1, 1)), silu=False).movedim(1, -1)


def _ltx_resnet(
    block: Any, x: Tensor, temb: Tensor | None = None, generator: torch.Generator | None = None
) -> Tensor | None:  # fmt: skip
    first: tuple[Tensor, ...] = ()
    second: tuple[Tensor, ...] = ()
    if block.scale_shift_table is not None:
        if temb is None or len(x) != 1 or temb.numel() != block.scale_shift_table.numel():
            return None
        shift_1, scale_1, shift_2, scale_2 = (temb.reshape(4, -1) + block.scale_shift_table).unbind()
        first, second = (1 + scale_1, shift_1), (1 + scale_2, shift_2)
    x = _laid_out(x)
    hidden = block.conv1(_rms(block.norm1, x, *first, silu=True))
    _rms(block.norm2, hidden, *second, silu=True, out=hidden)
    if block.norm3 is not None:
        x = block.norm3(x.movedim(1, -1)).movedim(-1, 1)
    return block.conv2(hidden, residual=x if block.conv_shortcut is None else block.conv_shortcut(x))


def _is_ltx_resnet(block: Any) -> bool:
    return _is_resnet(block) and block.per_channel_scale1 is None and block.per_channel_scale2 is None


def _ltx_upsample(block: Any, x: Tensor) -> Tensor:
    x = _laid_out(x)
    out = _channels_to_pixels(block.conv(x), block.stride)
    if block.residual:
        shortcut = _channels_to_pixels(x, block.stride)
        out.unflatten(1, (-1, shortcut.shape[1])).add_(shortcut.unsqueeze(1))
    return out[:, :, block.stride[0] - 1 :]


def _channels_to_pixels(x: Tensor, stride: tuple[int, int, int]) -> Tensor:
    """Neighbouring channels become neighbouring frames, rows and columns."""
    batch, channels, *size = x.shape
    shape = (batch, channels // math.prod(stride), *(old * step for old, step in zip(size, stride, strict=True)))
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
    to = out
    for axis in (2, 1, 0):
        to = to.unflatten(2 + axis, (size[axis], stride[axis]))
    to.copy_(x.unflatten(1, (-1, *stride)).permute(0, 1, 5, 2, 6, 3, 7, 4))
    return out


KINDS = {
    "HunyuanVideoResnetBlockCausal3D": Kind(_hunyuan_resnet, _is_resnet, _of_resnet),
    "HunyuanVideoUpsampleCausal3D": Kind(_hunyuan_upsample, _is_hunyuan_upsample, _nothing),
    "CogVideoXResnetBlock3D": Kind(_cogvideox_resnet, _is_resnet, _of_resnet),
    "CogVideoXSpatialNorm3D": Kind(_cogvideox_norm, _is_spatial_norm, _nothing),
    "CogVideoXUpsample3D": Kind(
        _cogvideox_upsample, _is_cogvideox_upsample, _of_cogvideox_upsample, lambda block: [block.conv.weight]
    ),
    "LTXVideoResnetBlock3d": Kind(_ltx_resnet, _is_ltx_resnet, _of_resnet),
    "LTXVideoUpsampler3d": Kind(_ltx_upsample, lambda block: True, _nothing),
    "RMSNorm": Kind(_ltx_norm, _is_rms_norm, _nothing),
}
