"""Decode a video chunk by chunk by causal convolutions, with torch's and with `hipconv.nn.CausalConv3d`.

The decoder has the layers of Wan2.1's, fewer of them, with random weights. torch pads and concatenates the frames before a
chunk with it for each convolution; hipconv reads them where they lie. The frames of both go into one PNG, as two strips; times
and, on a GPU, peak memory are printed.

    python examples/video_vae.py --size 64 --width 32 --frames 4
    python examples/video_vae.py --device cuda --size 480 --frames 8 --out frames.png
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
import sys
from typing import Any

import torch
from torch import Tensor, nn
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "python"))  # found last: an installed hipconv goes first

from images import beside, measured, told, write_png  # noqa: E402

import hipconv  # noqa: E402

LATENTS = 16  # channels
SMALLER = 4  # times as small as the video in rows and columns


class TorchCausalConv3d(nn.Conv3d):
    """A chunk of video, convolved with the frames before it, as models do it by torch alone."""

    def __init__(self, channels: int, out_channels: int, kernel: tuple[int, int, int], padding: tuple[int, int]) -> None:
        super().__init__(channels, out_channels, kernel, padding=(0, *padding))
        self.kept: Tensor | None = None

    def reset(self) -> None:
        self.kept = None

    def step(self, x: Tensor) -> Tensor:
        earlier = self.kernel_size[0] - 1
        if earlier:
            x = F.pad(x, (0, 0, 0, 0, earlier, 0)) if self.kept is None else torch.cat([self.kept, x], dim=2)
            self.kept = x[:, :, -earlier:].clone()
        return self(x)


class RMSNorm(nn.Module):
    """Of the channels of each pixel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=1) * x.shape[1] ** 0.5 * self.weight.view(-1, 1, 1, 1)


class Decoder(nn.Module):
    """Latents (batch, 16, frames, height, width) to frames (batch, 3, frames, 4 height, 4 width), chunk by chunk."""

    def __init__(self, width: int, layer: Any) -> None:
        super().__init__()
        wide, narrow = 2 * width, width
        self.convs: Any = nn.ModuleDict({"head": layer(LATENTS, wide, (3, 3, 3), padding=(1, 1))})
        self.norms: Any = nn.ModuleDict({"tail": RMSNorm(narrow)})
        for stage, channels in enumerate((wide, wide, narrow)):
            before = wide if stage < 2 else narrow
            if stage:
                self.convs[f"up{stage}"] = layer(wide, before, (1, 3, 3), padding=(1, 1))
            for part in "ab":
                self.norms[f"{stage}{part}"] = RMSNorm(channels)
                self.convs[f"{stage}{part}"] = layer(channels, channels, (3, 3, 3), padding=(1, 1))
        self.convs["tail"] = layer(narrow, 3, (3, 3, 3), padding=(1, 1))

    def reset(self) -> None:
        for conv in self.convs.values():
            conv.reset()

    def step(self, z: Tensor) -> Tensor:
        """The next chunk."""
        x = self.convs["head"].step(z)
        for stage in range(3):
            if stage:
                frames = x.shape[2]
                x = F.interpolate(x, size=(frames, 2 * x.shape[3], 2 * x.shape[4]), mode="nearest")
                x = self.convs[f"up{stage}"].step(x)
            y = x
            for part in "ab":
                y = self.convs[f"{stage}{part}"].step(F.silu(self.norms[f"{stage}{part}"](y)))
            x = x + y
        return self.convs["tail"].step(F.silu(self.norms["tail"](x)))

    def forward(self, z: Tensor, chunk: int) -> Tensor:
        self.reset()
        return torch.cat([self.step(part) for part in z.split(chunk, dim=2)], dim=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=128, help=f"rows and columns of a frame, a multiple of {SMALLER}")
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--chunk", type=int, default=2, help="frames that are decoded at a time")
    parser.add_argument("--width", type=int, default=96, help="channels of the last stage")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3, help="the fastest of so many decodes counts")
    parser.add_argument("--out", type=Path, default=Path("frames.png"))
    options = parser.parse_args()
    if options.size % SMALLER:
        parser.error(f"--size: a multiple of {SMALLER}")

    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    layout = torch.channels_last_3d if device.type == "cuda" else torch.contiguous_format
    theirs: Any = Decoder(options.width, TorchCausalConv3d).eval().requires_grad_(False)
    ours: Any = Decoder(options.width, hipconv.nn.CausalConv3d).eval().requires_grad_(False)
    ours.load_state_dict(theirs.state_dict())
    side = options.size // SMALLER
    latents = torch.randn(1, LATENTS, options.frames, side, side).to(device, dtype).contiguous(memory_format=layout)

    videos, times = [], []
    for name, decoder in (("torch  ", theirs), ("hipconv", ours)):
        decoder.to(device, dtype).to(memory_format=layout)
        video, ms, memory = measured(functools.partial(decoder, latents, options.chunk), device, options.rounds)
        decoder.reset()
        videos.append(video.float())
        times.append(ms)
        print(told(name, ms, memory))
    print(f"hipconv is {times[0] / times[1]:.2f} times as fast")

    scale = videos[0].abs().max().clamp_min(1e-6)
    strips = [beside([frame / scale for frame in video[0].unbind(1)]) for video in videos]
    error = ((videos[1] - videos[0]).abs().max() / scale).item()
    white = torch.ones(3, 8, strips[0].shape[2], device=device)
    write_png(options.out, torch.cat([strips[0], white, strips[1]], dim=1))
    print(f"the videos differ by at most {error:.1e} of the largest value; {options.out} shows both")


if __name__ == "__main__":
    main()
