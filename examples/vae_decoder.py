"""Decode an image by an autoencoder as Stable Diffusion has it, before and after `hipconv.replace_conv2d`.

The decoder has random weights, or those of --weights (a state dict of this file's `Decoder`). Both images, and ten times their
difference, go into one PNG beside each other; times and, on a GPU, peak memory are printed, and for both what convolutions and
norms take of a decode, and in which layout they get their images.

    python examples/vae_decoder.py --size 128 --width 32
    python examples/vae_decoder.py --device cuda --size 1024 --out decoded.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
import sys

import torch
from torch import Tensor, nn
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "python"))  # found last: an installed hipconv goes first

from images import Shares, beside, measured, told, write_png  # noqa: E402

import hipconv  # noqa: E402

LATENTS = 4  # channels
SMALLER = 8  # times as small as the image in each direction


class Residual(nn.Module):
    """Norm, SiLU, convolution, twice, beside a shortcut."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, channels), nn.GroupNorm(32, out_channels)
        self.conv1 = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out_channels, 1) if channels != out_channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class Attention(nn.Module):
    """One head over all pixels, beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.flatten(2).mT.unsqueeze(1) for each in self.qkv(self.norm(x)).chunk(3, dim=1))
        y = F.scaled_dot_product_attention(q, k, v).squeeze(1).mT.reshape(x.shape)
        return x + self.out(y)


class Decoder(nn.Module):
    """Latents (batch, 4, height, width) to images (batch, 3, 8 height, 8 width), by channels of 4, 4, 2 and 1 times `width`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        most = 4 * width
        self.head = nn.Conv2d(LATENTS, most, 3, padding=1)
        self.middle = nn.Sequential(Residual(most, most), Attention(most), Residual(most, most))
        stages: list[nn.Module] = []
        channels = most
        for number, of_stage in enumerate((most, most, 2 * width, width)):
            if number:
                stages += [nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(channels, channels, 3, padding=1)]
            for _ in range(3):
                stages.append(Residual(channels, of_stage))
                channels = of_stage
        self.stages = nn.Sequential(*stages)
        self.tail = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, z: Tensor) -> Tensor:
        return self.tail(self.stages(self.middle(self.head(z))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help=f"rows and columns of the image, a multiple of {SMALLER}")
    parser.add_argument("--width", type=int, default=128, help="channels of the last stage, a multiple of 32")
    parser.add_argument("--weights", type=Path, help="a state dict; random weights without")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3, help="the fastest of so many decodes counts")
    parser.add_argument("--out", type=Path, default=Path("decoded.png"))
    options = parser.parse_args()
    if options.size % SMALLER or options.width % 32:
        parser.error(f"--size: a multiple of {SMALLER}, and --width: one of 32")

    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    decoder = Decoder(options.width).eval().requires_grad_(False)
    if options.weights:
        decoder.load_state_dict(torch.load(options.weights, weights_only=True))
    decoder = decoder.to(device, dtype)
    latents = torch.randn(1, LATENTS, options.size // SMALLER, options.size // SMALLER).to(device, dtype)

    kinds = {"convolutions": nn.Conv2d, "norms": nn.GroupNorm}
    before, torch_ms, torch_memory = measured(lambda: decoder(latents), device, options.rounds)
    torch_shares = Shares(decoder, lambda: decoder(latents), device, **kinds)
    replacement = hipconv.replace_conv2d(decoder)
    after, ms, memory = measured(lambda: decoder(latents), device, options.rounds)
    shares = Shares(decoder, lambda: decoder(latents), device, **kinds)
    print(f"{replacement.replaced} of {len(replacement.layers)} convolutions are replaced")
    print(told("torch  ", torch_ms, torch_memory))
    print(f"  {torch_shares}")
    print(told("hipconv", ms, memory) + f", {torch_ms / ms:.2f} times as fast")
    print(f"  {shares}")

    scale = before.float().abs().max().clamp_min(1e-6)  # random weights make images of any size
    images = [(each.float() / scale)[0] for each in (before, after)]
    error = (images[1] - images[0]).abs().max().item()
    write_png(options.out, beside([*images, 10 * (images[1] - images[0])]))
    print(f"the images differ by at most {error:.1e} of the largest value; {options.out} shows both, and ten times that")


if __name__ == "__main__":
    main()
