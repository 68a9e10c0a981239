"""diffusers' video autoencoders run on hipconv's convolutions as they are, by replace_conv3d, and give what they gave on
torch's.

    python op_tests/run_video_vaes.py
    python op_tests/run_video_vaes.py --full --model AutoencoderKLWan --size 480x832 --frames 17 --dtype bfloat16

Where diffusers is installed, it is used as it is, and nothing is fetched; else it comes from PyPI. Small configurations are
compared in float32, decoded and encoded, on a GPU or on the CPU. --full decodes random latents by models of full size with
random weights, on a GPU, and prints time, peak memory and what part of the time their kernels convolve, normalize and copy:
before, in both layouts, and after.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import importlib.util
import os
from pathlib import Path
import statistics
import tempfile
import time
from typing import Any

import torch
from torch import Tensor

from peers.packages import provide
from support.backends import device_of, use_backend
from support.cli import Table, choice_of
import hipconv

DIFFUSERS = "diffusers==0.42.1"
NEEDS = (
    "huggingface_hub",
    "hf_xet",
    "fsspec",
    "click",
    "safetensors",
    "regex",
    "requests",
    "tqdm",
    "yaml",
    "httpx2",
    "httpcore2",
    "truststore",
    "h11",
    "anyio",
    "sniffio",
    "certifi",
    "idna",
    "urllib3",
    "charset_normalizer",
    "packaging",
    "filelock",
    "importlib_metadata",
    "lazy_importer",
    "zipp",
    "PIL",
)
PACKAGES = {"yaml": "pyyaml", "PIL": "pillow"}
# Kernels by what is in their names; attention's products and the SiLU between layers are neither of these.
KINDS = {
    "copies": ("copy", "memcpy", "memset", "fill", "cat", "nchwtonhwc", "nhwctonchw", "constant_pad", "upsample"),
    "norms": ("norm", "conv3d_scaled", "reduce", "div", "mul", "clamp"),
    "convs": ("conv", "gemm", "winograd", "implicit", "fprop", "cutlass", "xmma", "vol2col"),
}
WAN: dict[str, Any] = {"base_dim": 8, "z_dim": 4, "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}
MODELS: dict[str, dict[str, Any]] = {
    "AutoencoderKLWan": WAN,
    "AutoencoderKLQwenImage": {"base_dim": 8, "z_dim": 4, "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4},
    "AutoencoderKLHunyuanVideo": {
        "block_out_channels": (8, 8, 8, 8),
        "latent_channels": 4,
        "norm_num_groups": 4,
        "layers_per_block": 1,
    },
    "AutoencoderKLCogVideoX": {
        "block_out_channels": (8, 8, 8, 8),
        "latent_channels": 4,
        "norm_num_groups": 4,
        "layers_per_block": 1,
    },
    "AutoencoderKLLTXVideo": {
        "block_out_channels": (8, 8, 8, 8),
        "decoder_block_out_channels": (8, 8, 8, 8),
        "latent_channels": 8,
        "layers_per_block": (1, 1, 1, 1, 1),
        "decoder_layers_per_block": (1, 1, 1, 1, 1),
    },
}
# Channels of the latents of a model of full size, and frames and pixels of a side for each of theirs.
LATENTS = {
    "AutoencoderKLWan": (16, 4, 8),
    "AutoencoderKLQwenImage": (16, 4, 8),
    "AutoencoderKLHunyuanVideo": (16, 4, 8),
    "AutoencoderKLCogVideoX": (16, 4, 8),
    "AutoencoderKLLTXVideo": (128, 8, 32),
}


def results_of(model: Any, video: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of the latents, and the video that they decode to."""
    latents = model.encode(video).latent_dist.mean
    return latents, model.decode(latents).sample


def check(name: str, device: torch.device) -> str | None:
    import diffusers

    torch.manual_seed(0)
    model = getattr(diffusers, name)(**MODELS[name]).to(device).eval()
    video = torch.randn(1, 3, 9, 32, 32, device=device)
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False):
        expected = results_of(model, video)
        report = hipconv.replace_conv3d(model)
        found = results_of(model, video)
        left = [layer.name for layer in report.layers if not layer.replaced]
        report.undo()
        again = results_of(model, video)
    print(
        f"{name}: {report.replaced} of {len(report.layers)} convolutions replaced{', but ' + ', '.join(left) if left else ''}"
    )
    for what, a, b, c in zip(("latents", "video"), found, expected, again, strict=True):
        error = (a - b).abs().max().item() / b.abs().max().item()
        if not (a.shape == b.shape and error < 1e-4):
            return f"{what} are off by {error:.1e} of the largest"
        if not torch.allclose(b, c, atol=1e-5):
            return f"{what} differ after undo()"
    return None if report.replaced else "nothing was replaced"


def shares_of(decode: Callable[[], Tensor]) -> list[float]:
    """Return the part of the time of all kernels that each of KINDS has, and that the others have."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        decode()
        torch.cuda.synchronize()
    times = dict.fromkeys([*KINDS, ""], 0.0)
    for event in profile.key_averages():
        kind = next((kind for kind, names in KINDS.items() if any(name in event.key.lower() for name in names)), "")
        times[kind] += event.self_device_time_total
    return [time / (sum(times.values()) or 1.0) for time in times.values()]


def decode_full(name: str, size: tuple[int, int], frames: int, dtype: torch.dtype) -> None:
    """Time and peak memory of a decode, before and after."""
    import diffusers

    torch.manual_seed(0)
    device = torch.device("cuda")
    model = getattr(diffusers, name)().to(device, dtype).eval()
    channels, of_time, of_side = LATENTS[name]
    shape = (1, channels, (frames - 1) // of_time + 1, size[0] // of_side, size[1] // of_side)
    latents = torch.randn(shape, device=device, dtype=dtype)
    table = Table([(name, 36), ("ms", 9), ("peak GiB", 8), ("off", 8), *((kind, 8) for kind in KINDS), ("other", 8)])
    expected: Tensor | None = None

    def run(title: str, decode: Callable[[], Tensor]) -> None:
        nonlocal expected
        times = []
        torch.cuda.reset_peak_memory_stats()
        for _ in range(4):
            torch.cuda.synchronize()
            began = time.perf_counter()
            result = decode()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - began) * 1e3)
        peak = torch.cuda.max_memory_allocated() / 2**30
        expected = result if expected is None else expected
        off = (result.float() - expected.float()).square().mean().sqrt() / expected.float().square().mean().sqrt()
        shares = [f"{share:.1%}" for share in shares_of(decode)]
        table.row(title, f"{statistics.median(times[1:]):.1f}", f"{peak:.2f}", f"{off.item():.1e}", *shares)

    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=False):
        run("as it is", lambda: model.decode(latents).sample)
        report = hipconv.replace_conv3d(model)
        run("replace_conv3d", lambda: model.decode(latents).sample)
        report.undo()
        for parameter in model.parameters():
            if layout := {5: torch.channels_last_3d, 4: torch.channels_last}.get(parameter.dim()):
                parameter.data = parameter.data.contiguous(memory_format=layout)
        latents = latents.contiguous(memory_format=torch.channels_last_3d)
        run("channels_last_3d", lambda: model.decode(latents).sample)
        hipconv.replace_conv3d(model)
        run("channels_last_3d and replace_conv3d", lambda: model.decode(latents).sample)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument(
        "--backend", type=choice_of("gpu", "cpu", "simt"), default="gpu" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()) / f"hipconv-video-vaes-{os.getuid()}")
    parser.add_argument("--full", action="store_true", help="decode by models of full size, on a GPU")
    parser.add_argument("--size", default="480x832")
    parser.add_argument("--frames", type=int, default=17)
    parser.add_argument("--dtype", type=choice_of("bfloat16", "float16"), default="bfloat16")
    options = parser.parse_args()
    if importlib.util.find_spec("diffusers") is None:
        lacking = {module: PACKAGES.get(module, module) for module in NEEDS if importlib.util.find_spec(module) is None}
        provide(options.directory, diffusers=DIFFUSERS, **lacking)
    with use_backend(options.backend):
        if options.full:
            height, width = (int(side) for side in options.size.split("x"))
            for name in options.model:
                decode_full(name, (height, width), options.frames, getattr(torch, options.dtype))
                torch.cuda.empty_cache()
            return 0
        wrong = {name: problem for name in options.model if (problem := check(name, device_of(options.backend)))}
    print("\n".join(f"{name}: {problem}" for name, problem in wrong.items()) or "all give the same")
    return 1 if wrong else 0
