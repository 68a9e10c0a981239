"""A small encoder and decoder of video with the names, attributes and formulas of diffusers' for Wan, for replace_conv3d."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
import torch.nn.functional as F

Cache = list[Any]


class WanCausalConv3d(nn.Conv3d):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        t, h, w = (int(side) for side in self.padding)
        self._padding = (w, w, h, h, 2 * t, 0)
        self.padding = (0, 0, 0)

    def forward(self, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
        front = self._padding[4]
        if cache_x is not None and front > 0:
            x, front = torch.cat([cache_x, x], 2), front - cache_x.shape[2]
        return super().forward(F.pad(x, (*self._padding[:4], front, 0)))


class WanRMS_norm(nn.Module):
    def __init__(self, channels: int, bias: bool = False) -> None:
        super().__init__()
        self.channel_first, self.scale = True, channels**0.5
        self.gamma = nn.Parameter(1 + torch.randn(channels, 1, 1, 1) / 4)
        self.bias: Any = nn.Parameter(torch.randn(channels, 1, 1, 1)) if bias else 0.0

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.float(), dim=1).to(x.dtype) * self.scale * self.gamma + self.bias


def convolved(conv: nn.Module, x: Tensor, cache: Cache, index: list[int]) -> Tensor:
    """With the last two frames before x, of which x leaves its own."""
    slot, index[0] = index[0], index[0] + 1
    earlier = cache[slot]
    cache[slot] = (x if earlier is None else torch.cat([earlier, x], 2))[:, :, -2:].clone()
    return conv(x, earlier)


class WanResidualBlock(nn.Module):
    def __init__(self, inside: int, outside: int, bias: bool = False) -> None:
        super().__init__()
        self.nonlinearity = nn.SiLU()
        self.norm1, self.norm2 = WanRMS_norm(inside, bias), WanRMS_norm(outside)
        self.conv1 = WanCausalConv3d(inside, outside, 3, padding=1)
        self.conv2 = WanCausalConv3d(outside, outside, 3, padding=1)
        self.dropout = nn.Dropout(0.0)
        self.conv_shortcut = WanCausalConv3d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor, feat_cache: Cache, feat_idx: list[int]) -> Tensor:
        hidden = convolved(self.conv1, self.nonlinearity(self.norm1(x)), feat_cache, feat_idx)
        return self.conv_shortcut(x) + convolved(self.conv2, self.nonlinearity(self.norm2(hidden)), feat_cache, feat_idx)


class Repeated(nn.Module):
    """The shortcut around a block of Wan2.2: each pixel again in the frames, rows and columns that come from it."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.frames = frames

    def forward(self, x: Tensor, first_chunk: bool = False) -> Tensor:
        x = x.repeat_interleave(self.frames, 2).repeat_interleave(2, 3).repeat_interleave(2, 4)
        return x[:, :, self.frames - 1 :] if first_chunk else x


class Pooled(nn.Module):
    """The same of a block that makes frames, rows and columns fewer."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.frames = frames

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 0, 0, -x.shape[2] % self.frames, 0))
        return F.avg_pool3d(x, (self.frames, 2, 2))


class WanResample(nn.Module):
    def __init__(self, channels: int, outside: int, mode: str) -> None:
        super().__init__()
        self.mode = mode
        self.resample: nn.Module
        if mode.startswith("upsample"):
            enlarge = nn.Upsample(scale_factor=(2.0, 2.0), mode="nearest-exact")
            self.resample = nn.Sequential(enlarge, nn.Conv2d(channels, outside, 3, padding=1))
        else:
            self.resample = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(channels, channels, 3, stride=(2, 2)))
        if mode == "upsample3d":
            self.time_conv = WanCausalConv3d(channels, channels * 2, (3, 1, 1), padding=(1, 0, 0))
        elif mode == "downsample3d":
            self.time_conv = WanCausalConv3d(channels, channels, (3, 1, 1), stride=(2, 1, 1))

    def forward(self, x: Tensor, feat_cache: Cache, feat_idx: list[int]) -> Tensor:
        slot = feat_idx[0]
        feat_idx[0] += self.mode.endswith("3d")
        if self.mode == "upsample3d":
            earlier = feat_cache[slot]
            if earlier is None:  # the first frame is not doubled, and the time convolution does not see it
                feat_cache[slot] = "Rep"
            else:
                earlier = x[:, :, :0] if isinstance(earlier, str) else earlier
                feat_cache[slot] = torch.cat([torch.zeros_like(x[:, :, :1]), earlier, x], 2)[:, :, -2:].clone()
                x = self.time_conv(x, earlier).unflatten(1, (2, -1)).permute(0, 2, 3, 1, 4, 5).flatten(2, 3)
        frames = x.transpose(1, 2)
        x = self.resample(frames.flatten(0, 1)).unflatten(0, frames.shape[:2]).transpose(1, 2)
        if self.mode == "downsample3d":
            earlier, feat_cache[slot] = feat_cache[slot], x[:, :, -1:].clone()
            x = x if earlier is None else self.time_conv(torch.cat([earlier, x], 2))
        return x


class WanUpBlock(nn.Module):
    def __init__(self, inside: int, outside: int, mode: str | None, is_residual: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([WanResidualBlock(inside, outside, bias=True), WanResidualBlock(outside, outside)])
        after = outside if is_residual else outside // 2
        upsampler = None if mode is None else WanResample(outside, after, mode)
        self.avg_shortcut = Repeated(2 if mode == "upsample3d" else 1) if is_residual and mode else None
        self.upsamplers = None if upsampler is None else nn.ModuleList([upsampler])

    def forward(self, x: Tensor, feat_cache: Cache, feat_idx: list[int], first_chunk: bool) -> Tensor:
        before = x
        for resnet in self.resnets:
            x = resnet(x, feat_cache, feat_idx)
        if self.upsamplers is not None:
            x = self.upsamplers[0](x, feat_cache, feat_idx)
        return x if self.avg_shortcut is None else x + self.avg_shortcut(before, first_chunk=first_chunk)


class Mixing(nn.Module):
    """Something between two blocks that looks at a frame as a whole, as attention does."""

    def forward(self, x: Tensor) -> Tensor:
        return x + x.mean((3, 4), keepdim=True)


class WanMidBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([WanResidualBlock(channels, channels) for _ in range(2)])
        self.attentions = nn.ModuleList([Mixing()])

    def forward(self, x: Tensor, feat_cache: Cache, feat_idx: list[int]) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x, feat_cache, feat_idx)), feat_cache, feat_idx)


class WanDecoder3d(nn.Module):
    """Each frame of latents becomes four, but for the first, which becomes one."""

    def __init__(self, inside: int = 4, widths: Sequence[int] = (16, 16, 8), is_residual: bool = False) -> None:
        super().__init__()
        self.conv_in = WanCausalConv3d(inside, widths[0], 3, padding=1)
        self.mid_block = WanMidBlock(widths[0])
        self.up_blocks, before = nn.ModuleList(), widths[0]
        for width, mode in zip(widths, ("upsample3d", "upsample3d", None), strict=True):
            self.up_blocks.append(WanUpBlock(before, width, mode, is_residual))
            before = width if is_residual else width // 2
        self.nonlinearity, self.norm_out = nn.SiLU(), WanRMS_norm(widths[-1])
        self.conv_out = WanCausalConv3d(widths[-1], 3, 3, padding=1)

    def forward(
        self, x: Tensor, feat_cache: Cache, feat_idx: list[int], first_chunk: bool = False
    ) -> Tensor:  # fmt: skip
        x = self.mid_block(convolved(self.conv_in, x, feat_cache, feat_idx), feat_cache, feat_idx)
        for block in self.up_blocks:
            x = block(x, feat_cache, feat_idx, first_chunk)
        return convolved(self.conv_out, self.nonlinearity(self.norm_out(x)), feat_cache, feat_idx)


class WanResidualDownBlock(nn.Module):
    def __init__(self, channels: int, mode: str) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([WanResidualBlock(channels, channels)])
        self.downsampler = WanResample(channels, channels, mode)
        self.avg_shortcut = Pooled(2 if mode == "downsample3d" else 1)

    def forward(self, x: Tensor, feat_cache: Cache, feat_idx: list[int]) -> Tensor:
        hidden = self.downsampler(self.resnets[0](x, feat_cache, feat_idx), feat_cache, feat_idx)
        return hidden + self.avg_shortcut(x)


class WanEncoder3d(nn.Module):
    """The first frame becomes one of latents, and then each two."""

    def __init__(self, is_residual: bool = False) -> None:
        super().__init__()
        self.conv_in = WanCausalConv3d(3, 8, 3, padding=1)
        self.down_blocks = nn.ModuleList()
        for mode in ("downsample2d", "downsample3d"):
            if is_residual:
                self.down_blocks.append(WanResidualDownBlock(8, mode))
            else:
                self.down_blocks += [WanResidualBlock(8, 8), Mixing(), WanResample(8, 8, mode)]
        self.mid_block = WanMidBlock(8)
        self.nonlinearity, self.norm_out = nn.SiLU(), WanRMS_norm(8)
        self.conv_out = WanCausalConv3d(8, 4, 3, padding=1)

    def forward(self, x: Tensor, feat_cache: Cache, feat_idx: list[int]) -> Tensor:
        x = convolved(self.conv_in, x, feat_cache, feat_idx)
        for block in self.down_blocks:
            x = block(x) if isinstance(block, Mixing) else block(x, feat_cache, feat_idx)
        x = self.mid_block(x, feat_cache, feat_idx)
        return convolved(self.conv_out, self.nonlinearity(self.norm_out(x)), feat_cache, feat_idx)


class Autoencoder(nn.Module):
    """Encodes a video, or decodes latents, chunk by chunk."""

    def __init__(self, is_residual: bool = False) -> None:
        super().__init__()
        self.encoder = WanEncoder3d(is_residual)
        self.decoder = WanDecoder3d(widths=(16, 16, 16) if is_residual else (16, 16, 8), is_residual=is_residual)

    def encode(self, video: Tensor) -> tuple[list[Tensor], Cache]:
        cache = new_cache(self)
        sizes = [1, *[4] * ((video.shape[2] - 1) // 4)]
        return [self.encoder(chunk, feat_cache=cache, feat_idx=[0]) for chunk in video.split(sizes, 2)], cache

    def forward(self, latents: Tensor) -> tuple[list[Tensor], Cache]:
        cache = new_cache(self)
        chunks = [
            self.decoder(chunk, feat_cache=cache, feat_idx=[0], first_chunk=number == 0)
            for number, chunk in enumerate(latents.split(1, 2))
        ]
        return chunks, cache


def new_cache(model: nn.Module) -> Cache:
    return [None] * sum(isinstance(module, WanCausalConv3d) for module in model.modules())
