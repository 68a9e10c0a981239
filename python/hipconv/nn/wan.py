"""The encoders and decoders of diffusers' AutoencoderKLWan and AutoencoderKLQwenImage, run as a whole on the layers that they
have.

What such a coder makes and hands on is its own, so that much of what diffusers copies needs no copy here: the norm and SiLU
in front of a convolution are one pass; two frames of a convolution's input are the next chunk's cache as they are; a residual
block adds to its input in place; the two halves of a time convolution write every other frame; and frames are enlarged one by
one. Which layer is which, names and attributes say; diffusers is not imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.conv3d.forward import conv3d
from ..ops.conv3d.nearest import enlarged
from ..ops.conv3d.rms_norm import rms_norm

CODERS = ("WanDecoder3d", "QwenImageDecoder3d", "WanEncoder3d", "QwenImageEncoder3d")
_CACHED = 2  # frames: what filters of three taps see before a chunk
Cache = list[Any]  # of each convolution in the order of their calls: None, "Rep", or the frames before the next chunk


# ---- what is served ----------------------------------------------------------------------------------------------------------


def is_known(coder: Any) -> bool:
    """Tell whether an encoder or a decoder is made of what diffusers makes it of."""
    if not all(_KNOWN.get(_kind(module), lambda _: True)(module) for module in coder.modules()):
        return False
    blocks = [*coder.mid_block.resnets, *(resnet for block in _blocks(coder) for resnet in getattr(block, "resnets", ()))]
    known = all(_kind(block) == "ResidualBlock" for block in blocks) and _kind(coder.norm_out) == "RMS_norm"
    return known and isinstance(coder.nonlinearity, nn.SiLU)


def _blocks(coder: Any) -> nn.ModuleList:
    return coder.up_blocks if _kind(coder) == "Decoder3d" else coder.down_blocks


def _kind(module: Any) -> str:
    return type(module).__name__.removeprefix("Wan").removeprefix("QwenImage")


def _enlarges(module: Any) -> bool:
    return _kind(module) == "Resample" and module.mode.startswith("upsample")


def _is_known_resample(module: Any) -> bool:
    if not _enlarges(module):
        return module.mode.startswith("downsample")  # whose own forward is called
    enlarge, conv = module.resample
    is_even = enlarge.mode == "nearest-exact" and enlarge.size is None and enlarge.scale_factor == (2.0, 2.0)
    numbers = (conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode)
    return is_even and type(conv) is nn.Conv2d and numbers == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros")


_KNOWN = {
    "CausalConv3d": lambda layer: layer.dilation == (1, 1, 1) and layer.groups == 1 and layer._padding[4] in (0, 2),
    "RMS_norm": lambda layer: layer.channel_first,
    "ResidualBlock": lambda block: (
        isinstance(block.nonlinearity, nn.SiLU)
        and block.conv1.kernel_size == block.conv2.kernel_size == (3, 3, 3)
        and block.conv1.stride == block.conv2.stride == (1, 1, 1)
        and block.conv1._padding == block.conv2._padding == (1, 1, 1, 1, 2, 0)
    ),
    "Resample": _is_known_resample,
}


def computed_with(name: str, coder: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name each convolution that is computed with other layers, and those layers."""
    for own, module in coder.named_modules(prefix=name):
        if _kind(module) == "ResidualBlock":
            yield f"{own}.conv1", (f"{own}.norm1", f"{own}.nonlinearity")
            yield f"{own}.conv2", (f"{own}.norm2", f"{own}.nonlinearity")
        elif _enlarges(module):
            yield f"{own}.resample.1", (f"{own}.resample.0",)
    yield f"{name}.conv_out", (f"{name}.norm_out", f"{name}.nonlinearity")


def image_weights(coder: Any) -> list[Tensor]:
    """Return the weights of the two-dimensional convolutions that `run` computes."""
    return [module.resample[1].weight for module in coder.modules() if _enlarges(module)]


# ---- what it does ------------------------------------------------------------------------------------------------------------


def run(
    coder: Any, x: Tensor, feat_cache: Cache | None = None, feat_idx: list[int] | None = None, first_chunk: bool = False
) -> Tensor | None:
    """Return what its forward returns for the frames x, and leave the caches that it leaves, from feat_idx[0] on; None without
    caches."""
    if feat_cache is None:
        return None
    slots = _Slots(feat_cache, [0] if feat_idx is None else feat_idx)
    x = slots.convolve(slots.take(), coder.conv_in, x.clone(memory_format=torch.channels_last_3d))
    if _kind(coder) == "Decoder3d":
        x = _mid(coder.mid_block, x, slots)
        for block in coder.up_blocks:
            x = _up(block, x, slots, first_chunk)
    else:
        for block in coder.down_blocks:
            x = _down(block, x, slots)
        x = _mid(coder.mid_block, x, slots)
    return slots.convolve(slots.take(), coder.conv_out, _norm(coder.norm_out, x))


class _Slots:
    """The caches of a call, which convolutions take in their order."""

    def __init__(self, cache: Cache, index: list[int]) -> None:
        self.cache, self.index = cache, index

    def take(self) -> int:
        self.index[0] += 1
        return self.index[0] - 1

    def convolve(self, slot: int, layer: Any, x: Tensor, **options: Any) -> Tensor:
        """Convolve frames that are nobody else's: they are the next cache if they are as many as it has."""
        earlier = self.cache[slot]
        kept, options = self.next_cache(earlier, x, options)
        result = _convolve(layer, layer.weight, layer.bias, x, cache=earlier, **options)
        self.cache[slot] = kept
        return result

    @staticmethod
    def next_cache(earlier: Tensor | None, x: Tensor, options: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The next cache, and the options of the call that writes it if it has to be written."""
        frames = x.shape[2]
        if frames == _CACHED or (frames < _CACHED and earlier is None):
            return x, options
        shape = (*x.shape[:2], _CACHED, *x.shape[3:])
        kept = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
        return kept, {**options, "cache_out": kept}


def _convolve(layer: Any, weight: Tensor, bias: Tensor | None, x: Tensor, **options: Any) -> Tensor:
    left, right, top, bottom, *_ = layer._padding
    return conv3d(x, weight, bias, padding=(0, 0, top, bottom, left, right), time_padding="zeros", **options)


def _norm(layer: Any, x: Tensor, out: Tensor | None = None) -> Tensor:
    bias = layer.bias if isinstance(layer.bias, Tensor) else None
    return rms_norm(x, layer.gamma, bias, layer.scale, silu=True, out=out)


def _residual(block: Any, x: Tensor, slots: _Slots) -> Tensor:
    """Add the block's convolutions to its shortcut, in place. Two frames go through both of them before the next two, so that
    what is made in between is small."""
    first, second = slots.take(), slots.take()
    sum_ = x if isinstance(block.conv_shortcut, nn.Identity) else block.conv_shortcut(x)
    for begin in range(0, x.shape[2], _CACHED):
        frames = slice(begin, begin + _CACHED)
        hidden = slots.convolve(first, block.conv1, _norm(block.norm1, x[:, :, frames]))
        _norm(block.norm2, hidden, out=hidden)
        part = sum_[:, :, frames]
        slots.convolve(second, block.conv2, hidden, residual=part, out=part)
    return sum_


def _mid(block: Any, x: Tensor, slots: _Slots) -> Tensor:
    first, *others = block.resnets
    x = _residual(first, x, slots)
    for attention, resnet in zip(block.attentions, others, strict=True):
        if attention is not None:
            x = attention(x).contiguous(memory_format=torch.channels_last_3d)
        x = _residual(resnet, x, slots)
    return x


def _down(block: Any, x: Tensor, slots: _Slots) -> Tensor:
    if _kind(block) == "ResidualBlock":
        return _residual(block, x, slots)
    if _kind(block) == "ResidualDownBlock":
        before = x.clone()
        for resnet in block.resnets:
            x = _residual(resnet, x, slots)
        x = x if block.downsampler is None else _down(block.downsampler, x, slots)
        return x.add_(block.avg_shortcut(before))
    caches = {"feat_cache": slots.cache, "feat_idx": slots.index} if _kind(block) == "Resample" else {}
    return block(x, **caches).contiguous(memory_format=torch.channels_last_3d)


def _up(block: Any, x: Tensor, slots: _Slots, first_chunk: bool) -> Tensor:
    shortcut = getattr(block, "avg_shortcut", None)
    before = None if shortcut is None else x.clone()
    for resnet in block.resnets:
        x = _residual(resnet, x, slots)
    upsampler = block.upsampler if hasattr(block, "upsampler") else (block.upsamplers or [None])[0]
    if upsampler is not None:
        x = _enlarged(upsampler, _more_frames(upsampler, x, slots) if upsampler.mode == "upsample3d" else x)
    return x if shortcut is None else x.add_(shortcut(before, first_chunk=first_chunk))


def _more_frames(block: Any, x: Tensor, slots: _Slots) -> Tensor:
    """Make two frames of each, by the halves of the filters; of the first frame of a video, one."""
    slot = slots.take()
    earlier = slots.cache[slot]
    if earlier is None:
        slots.cache[slot] = "Rep"
        return x
    if isinstance(earlier, str):
        earlier = None
    layer, channels, frames = block.time_conv, x.shape[1], x.shape[2]
    out = _empty(x, channels, frames * 2, x.shape[3], x.shape[4])
    kept, options = slots.next_cache(earlier, x, {})
    for half in range(2):
        filters = slice(half * channels, (half + 1) * channels)
        bias = None if layer.bias is None else layer.bias[filters]
        _convolve(layer, layer.weight[filters], bias, x, cache=earlier, out=out[:, :, half::2], **(options if half else {}))
    slots.cache[slot] = kept
    return out


def _enlarged(block: Any, x: Tensor) -> Tensor:
    """Double rows and columns of each frame, and convolve it."""
    layer = block.resample[1]
    out = _empty(x, layer.out_channels, x.shape[2], x.shape[3] * 2, x.shape[4] * 2)
    weight = layer.weight.unsqueeze(2)
    for frame in range(x.shape[2]):
        at = slice(frame, frame + 1)
        conv3d(enlarged(x[:, :, at], (1, 2, 2)), weight, layer.bias, padding=(0, 1, 1), out=out[:, :, at])
    return out


def _empty(x: Tensor, *shape: int) -> Tensor:
    return torch.empty((x.shape[0], *shape), dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
