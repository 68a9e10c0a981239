"""Small coders of video with the names, attributes and formulas of diffusers' for HunyuanVideo, CogVideoX and LTX, for
replace_conv3d.
"""

from __future__ import annotations

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
