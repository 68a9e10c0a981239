"""Small coders of video with the names, attributes and formulas of diffusers' for HunyuanVideo, CogVideoX and LTX, for
replace_conv3d.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
import torch.nn.functional as F

from conv3d.wan import Mixing

# ---- causal convolutions -----------------------------------------------------------------------------------------------------


class HunyuanVideoCausalConv3d(nn.Module):
    def __init__(self, inside: int, outside: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.pad_mode = "replicate"
        self.time_causal_padding = (kernel // 2, kernel // 2, kernel // 2, kernel // 2, kernel - 1, 0)
        self.conv = nn.Conv3d(inside, outside, kernel, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, self.time_causal_padding, mode=self.pad_mode))


class CogVideoXCausalConv3d(nn.Module):
    def __init__(self, inside: int, outside: int, kernel: int, pad_mode: str = "constant") -> None:
        super().__init__()
        self.pad_mode, self.temporal_dim = pad_mode, 2
        self.height_pad = self.width_pad = (kernel - 1) // 2
        self.time_causal_padding = (self.width_pad,) * 4 + (kernel - 1, 0)
        self.conv = nn.Conv3d(
            inside, outside, kernel, padding=0 if pad_mode == "replicate" else (0, self.width_pad, self.height_pad)
        )

    def forward(self, x: Tensor, conv_cache: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        front = self.time_causal_padding[4]
        if self.pad_mode == "replicate":
            return self.conv(F.pad(x, self.time_causal_padding, mode="replicate")), None
        if front:
            earlier = [x[:, :, :1]] * front if conv_cache is None else [conv_cache]
            x = torch.cat([*earlier, x], 2)
        return self.conv(x), x[:, :, -front:].clone() if front else None


class LTXVideoCausalConv3d(nn.Module):
    def __init__(self, inside: int, outside: int, kernel: int, is_causal: bool = True) -> None:
        super().__init__()
        self.is_causal, self.taps = is_causal, kernel
        self.conv = nn.Conv3d(inside, outside, kernel, padding=(0, kernel // 2, kernel // 2))

    def forward(self, x: Tensor) -> Tensor:
        before, behind = (self.taps - 1, 0) if self.is_causal else ((self.taps - 1) // 2,) * 2
        return self.conv(torch.cat([x[:, :, :1].repeat(1, 1, before, 1, 1), x, x[:, :, -1:].repeat(1, 1, behind, 1, 1)], 2))


# ---- HunyuanVideo ------------------------------------------------------------------------------------------------------------


class HunyuanVideoResnetBlockCausal3D(nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.nonlinearity, self.dropout = nn.SiLU(), nn.Dropout(0.1)
        self.norm1, self.norm2 = nn.GroupNorm(4, inside, eps=1e-6), nn.GroupNorm(4, outside, eps=1e-6)
        self.conv1 = HunyuanVideoCausalConv3d(inside, outside, 3)
        self.conv2 = HunyuanVideoCausalConv3d(outside, outside, 3)
        self.conv_shortcut = HunyuanVideoCausalConv3d(inside, outside, 1) if inside != outside else None

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        hidden = self.conv1(self.nonlinearity(self.norm1(x)))
        hidden = self.conv2(self.dropout(self.nonlinearity(self.norm2(hidden))))
        return hidden + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class HunyuanVideoUpsampleCausal3D(nn.Module):
    def __init__(self, channels: int, factor: tuple[float, float, float]) -> None:
        super().__init__()
        self.upsample_factor = factor
        self.conv = HunyuanVideoCausalConv3d(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        """The first frame is not repeated."""
        frames = [F.interpolate(x[:, :, 0], scale_factor=self.upsample_factor[1:]).unsqueeze(2)]
        if x.shape[2] > 1:
            frames.append(F.interpolate(x[:, :, 1:].contiguous(), scale_factor=self.upsample_factor))
        return self.conv(torch.cat(frames, 2))


class HunyuanVideoDecoder3D(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_in = HunyuanVideoCausalConv3d(4, 16, 3)
        self.mid = nn.Sequential(HunyuanVideoResnetBlockCausal3D(16, 16), Mixing())
        self.up = nn.Sequential(
            HunyuanVideoResnetBlockCausal3D(16, 8),
            HunyuanVideoUpsampleCausal3D(8, (1, 2, 2)),
            HunyuanVideoUpsampleCausal3D(8, (2, 2, 2)),
        )
        self.conv_norm_out, self.conv_act = nn.GroupNorm(4, 8, eps=1e-6), nn.SiLU()
        self.conv_out = HunyuanVideoCausalConv3d(8, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv_out(self.conv_act(self.conv_norm_out(self.up(self.mid(self.conv_in(x))))))


class HunyuanVideoModel(nn.Module):
    """A model whose parts are called by methods of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = HunyuanVideoDecoder3D()
        self.post_quant_conv = nn.Conv3d(4, 4, 1)
        self.block, self.computed = "decoder.up.0", "decoder.up.0.norm1, decoder.up.0.nonlinearity"

    def decode(self, latents: Tensor) -> list[Tensor]:
        return [self.decoder(self.post_quant_conv(latents)), self.decoder(latents[:, :, :1])]


# ---- CogVideoX ---------------------------------------------------------------------------------------------------------------

Caches = dict[str, Any]


class CogVideoXSpatialNorm3D(nn.Module):
    def __init__(self, channels: int, latents: int) -> None:
        super().__init__()
        self.norm_layer = nn.GroupNorm(4, channels, eps=1e-6)
        self.conv_y = CogVideoXCausalConv3d(latents, channels, 1)
        self.conv_b = CogVideoXCausalConv3d(latents, channels, 1)

    def forward(self, f: Tensor, zq: Tensor, conv_cache: Caches | None = None) -> tuple[Tensor, Caches]:
        frames, *image = f.shape[2:]
        if frames > 1 and frames % 2 == 1:
            parts = [F.interpolate(zq[:, :, :1], (1, *image)), F.interpolate(zq[:, :, 1:], (frames - 1, *image))]
            zq = torch.cat(parts, 2)
        else:
            zq = F.interpolate(zq, (frames, *image))
        return self.norm_layer(f) * self.conv_y(zq)[0] + self.conv_b(zq)[0], {}


class CogVideoXResnetBlock3D(nn.Module):
    def __init__(self, inside: int, outside: int, latents: int | None, use_conv_shortcut: bool = False) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.use_conv_shortcut = inside, outside, use_conv_shortcut
        self.nonlinearity, self.dropout = nn.SiLU(), nn.Dropout(0.1)
        self.norm1: nn.Module
        self.norm2: nn.Module
        if latents is None:
            self.norm1, self.norm2 = nn.GroupNorm(4, inside, eps=1e-6), nn.GroupNorm(4, outside, eps=1e-6)
        else:
            self.norm1, self.norm2 = CogVideoXSpatialNorm3D(inside, latents), CogVideoXSpatialNorm3D(outside, latents)
        self.conv1, self.conv2 = CogVideoXCausalConv3d(inside, outside, 3), CogVideoXCausalConv3d(outside, outside, 3)
        if inside != outside:
            shortcut = CogVideoXCausalConv3d(inside, outside, 3) if use_conv_shortcut else nn.Conv3d(inside, outside, 1)
            self.conv_shortcut: nn.Module = shortcut

    def forward(
        self, inputs: Tensor, temb: Tensor | None = None, zq: Tensor | None = None, conv_cache: Caches | None = None
    ) -> tuple[Tensor, Caches]:
        earlier, kept = conv_cache or {}, {}
        hidden = self.norm1(inputs) if zq is None else self.norm1(inputs, zq)[0]
        hidden, kept["conv1"] = self.conv1(self.nonlinearity(hidden), conv_cache=earlier.get("conv1"))
        hidden = self.norm2(hidden) if zq is None else self.norm2(hidden, zq)[0]
        hidden = self.dropout(self.nonlinearity(hidden))
        hidden, kept["conv2"] = self.conv2(hidden, conv_cache=earlier.get("conv2"))
        if self.in_channels != self.out_channels and self.use_conv_shortcut:
            inputs, kept["conv_shortcut"] = self.conv_shortcut(inputs, conv_cache=earlier.get("conv_shortcut"))
        elif self.in_channels != self.out_channels:
            inputs = self.conv_shortcut(inputs)
        return hidden + inputs, kept


class CogVideoXUpsample3D(nn.Module):
    def __init__(self, channels: int, compress_time: bool) -> None:
        super().__init__()
        self.conv, self.compress_time = nn.Conv2d(channels, channels, 3, padding=1), compress_time

    def forward(self, x: Tensor) -> Tensor:
        """The first of an odd number of frames is not repeated."""
        frames = x.shape[2]
        times = 2 if self.compress_time and frames > 1 else 1
        x = x.repeat_interleave(times, 2).repeat_interleave(2, 3).repeat_interleave(2, 4)
        x = x[:, :, times - 1 :] if frames % 2 == 1 else x
        images = self.conv(x.transpose(1, 2).flatten(0, 1))
        return images.unflatten(0, (len(x), -1)).transpose(1, 2)


class CogVideoXDecoder3D(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_in = CogVideoXCausalConv3d(4, 16, 3)
        self.blocks = nn.ModuleList(
            [CogVideoXResnetBlock3D(16, 16, 4), CogVideoXResnetBlock3D(16, 8, 4), CogVideoXResnetBlock3D(8, 16, None, True)]
        )
        self.upsamplers = nn.ModuleList([CogVideoXUpsample3D(16, True), CogVideoXUpsample3D(8, False)])
        self.norm_out, self.conv_act = CogVideoXSpatialNorm3D(16, 4), nn.SiLU()
        self.conv_out = CogVideoXCausalConv3d(16, 3, 3)

    def forward(self, sample: Tensor, conv_cache: Caches | None = None) -> tuple[Tensor, Caches]:
        earlier, kept = conv_cache or {}, {}
        x, kept["conv_in"] = self.conv_in(sample, conv_cache=earlier.get("conv_in"))
        for number, block in enumerate(self.blocks):
            zq = None if block.use_conv_shortcut else sample
            x, kept[f"block_{number}"] = block(x, None, zq, conv_cache=earlier.get(f"block_{number}"))
            if number < len(self.upsamplers):
                x = self.upsamplers[number](x)
        x = self.conv_act(self.norm_out(x, sample)[0])
        x, kept["conv_out"] = self.conv_out(x, conv_cache=earlier.get("conv_out"))
        return x, kept


class CogVideoXModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = CogVideoXDecoder3D()
        self.block, self.computed = "decoder.blocks.0", "decoder.blocks.0.norm1.norm_layer, decoder.blocks.0.nonlinearity"

    def decode(self, latents: Tensor) -> list[Tensor]:
        """In chunks of one, two and three frames."""
        results: list[Tensor] = []
        cache: Caches | None = None
        for chunk in (latents, latents[:, :, :2], latents[:, :, 2:]):
            frames, cache = self.decoder(chunk, conv_cache=cache)
            results.append(frames)
        return results


# ---- LTX ---------------------------------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    """The norm of the last axis."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.weight = eps, None

    def forward(self, x: Tensor) -> Tensor:
        return (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


def normalized(norm: nn.Module, x: Tensor) -> Tensor:
    return norm(x.movedim(1, -1)).movedim(-1, 1)


class LTXVideoResnetBlock3d(nn.Module):
    def __init__(self, inside: int, outside: int, has_table: bool = False, has_noise: bool = False) -> None:
        super().__init__()
        self.nonlinearity, self.dropout = nn.SiLU(), nn.Dropout(0.1)
        self.norm1, self.norm2 = RMSNorm(1e-2), RMSNorm(1e-2)
        self.conv1 = LTXVideoCausalConv3d(inside, outside, 3, is_causal=False)
        self.conv2 = LTXVideoCausalConv3d(outside, outside, 3, is_causal=False)
        self.norm3 = nn.LayerNorm(inside) if inside != outside else None
        self.conv_shortcut = LTXVideoCausalConv3d(inside, outside, 1, is_causal=False) if inside != outside else None
        self.scale_shift_table = nn.Parameter(torch.randn(4, inside)) if has_table else None
        self.per_channel_scale1 = nn.Parameter(torch.randn(inside, 1, 1)) if has_noise else None
        self.per_channel_scale2 = None

    def forward(self, x: Tensor, temb: Tensor | None = None, generator: torch.Generator | None = None) -> Tensor:
        hidden, table = normalized(self.norm1, x), self.scale_shift_table
        if table is not None and temb is not None:
            shift_1, scale_1, shift_2, scale_2 = (temb.unflatten(1, (4, -1)) + table[None, ..., None, None, None]).unbind(1)
            hidden = hidden * (1 + scale_1) + shift_1
        hidden = self.conv1(self.nonlinearity(hidden))
        if self.per_channel_scale1 is not None:  # noise in the model
            hidden = hidden + self.per_channel_scale1[None, :, None]
        hidden = normalized(self.norm2, hidden)
        if table is not None and temb is not None:
            hidden = hidden * (1 + scale_2) + shift_2
        hidden = self.conv2(self.dropout(self.nonlinearity(hidden)))
        if self.norm3 is not None and self.conv_shortcut is not None:
            x = self.conv_shortcut(normalized(self.norm3, x))
        return hidden + x


class LTXVideoUpsampler3d(nn.Module):
    """Channels become frames, rows and columns, but for the first frame, which becomes one."""

    def __init__(self, channels: int, residual: bool, upscale_factor: int) -> None:
        super().__init__()
        self.stride, self.residual, self.upscale_factor = (2, 2, 2), residual, upscale_factor
        self.conv = LTXVideoCausalConv3d(channels, channels * 8 // upscale_factor, 3, is_causal=False)

    def forward(self, x: Tensor) -> Tensor:
        def spread(x: Tensor) -> Tensor:
            x = x.unflatten(1, (-1, 2, 2, 2)).permute(0, 1, 5, 2, 6, 3, 7, 4)
            return x.flatten(6, 7).flatten(4, 5).flatten(2, 3)

        out = spread(self.conv(x))[:, :, 1:]
        return out + spread(x).repeat(1, 8 // self.upscale_factor, 1, 1, 1)[:, :, 1:] if self.residual else out


class LTXVideoDecoder3d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv_in = LTXVideoCausalConv3d(4, 16, 3, is_causal=False)
        self.blocks = nn.ModuleList(
            [LTXVideoResnetBlock3d(16, 16, has_table=True), LTXVideoResnetBlock3d(16, 16, has_noise=True)]
        )
        self.up = nn.Sequential(
            LTXVideoUpsampler3d(16, False, 1), LTXVideoUpsampler3d(16, True, 2), LTXVideoResnetBlock3d(8, 16)
        )
        self.norm_out, self.conv_act = RMSNorm(1e-2), nn.SiLU()
        self.conv_out = LTXVideoCausalConv3d(16, 3, 3, is_causal=False)

    def forward(self, x: Tensor, temb: Tensor | None = None) -> Tensor:
        x = self.conv_in(x)
        for block in self.blocks:
            x = block(x, temb, None)
        return self.conv_out(self.conv_act(normalized(self.norm_out, self.up(x))))


class LTXModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = LTXVideoDecoder3d()
        self.block, self.computed = "decoder.blocks.0", "decoder.blocks.0.norm1, decoder.blocks.0.nonlinearity"

    def decode(self, latents: Tensor) -> list[Tensor]:
        temb = torch.linspace(-1, 1, 64, device=latents.device, dtype=latents.dtype)[None, :, None, None, None]
        pair = torch.cat([latents, latents.flip(2)])
        return [self.decoder(latents, temb), self.decoder(pair, torch.cat([temb, -temb]))]
