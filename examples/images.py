"""What the examples of images and videos share: pictures from files and as PNG files, times, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
import struct
import sys
import time
from typing import Any
import zlib

import torch
from torch import Tensor


def pixels(image: Tensor) -> Tensor:
    """Bytes, (height, width, 3), of an image (3, height, width) whose values are from -1 to 1."""
    return ((image.detach().float().cpu().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(1, 2, 0).contiguous()


def read_image(path: Path) -> Tensor:
    """An image (3, height, width) from 0 to 1, of any file that Pillow reads; SystemExit where that is missing or cannot."""
    try:
        from PIL import Image
    except ImportError:
        sys.exit(f"{path}: reading an image needs Pillow (`pip install pillow`)")
    try:
        with Image.open(path) as picture:
            data, (width, height) = picture.convert("RGB").tobytes(), picture.size
    except OSError as error:
        sys.exit(f"{path}: Pillow cannot read it: {error}")
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(height, width, 3)
    return rows.permute(2, 0, 1).float() / 255


def beside(images: Sequence[Tensor], gap: int = 8) -> Tensor:
    """Images (3, height, width) of one height, beside each other on white."""
    white = images[0].new_ones(3, images[0].shape[1], gap)
    return torch.cat([part for image in images for part in (image, white)][:-1], dim=2)


def write_png(path: Path, image: Tensor) -> None:
    """Write an image (3, height, width) of values from -1 to 1."""
    rows = pixels(image)
    height, width, _ = rows.shape
    lines = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in rows)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits of red, green and blue
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))


def measured(call: Callable[[], Tensor], device: torch.device, rounds: int) -> tuple[Tensor, float, int]:
    """What a call returns, the milliseconds of the fastest of `rounds` calls after a first one, and the bytes that it needs
    at most beside what was there before; zero bytes on a CPU, where nobody counts them.
    """
    on_gpu = device.type == "cuda"
    result = call()  # which compiles what is missing
    times, most = [], 0
    for _ in range(rounds):
        before = 0
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        started = time.perf_counter()
        result = call()
        if on_gpu:
            torch.cuda.synchronize()
            most = torch.cuda.max_memory_allocated() - before
        times.append((time.perf_counter() - started) * 1e3)
    return result, min(times), most


class Shares:
    """How long the layers of some kinds take in a call of a model, and in which layout they get their first argument.

    On a GPU each layer is between two events of the stream, so that what the host does beside does not count.
    """

    def __init__(self, model: torch.nn.Module, call: Callable[[], object], device: torch.device, **kinds: type) -> None:
        self.layouts: dict[str, Counter[str]] = {name: Counter() for name in kinds}
        spans: list[tuple[str, Any, Any]] = []
        started: list[Any] = []

        def now() -> Any:
            if device.type != "cuda":
                return time.perf_counter()
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event

        def before(name: str, args: tuple) -> None:
            self.layouts[name][layout_of(args[0])] += 1
            started.append(now())

        def after(name: str) -> None:
            spans.append((name, started.pop(), now()))

        hooks = []
        for layer in model.modules():
            for name in (name for name, kind in kinds.items() if isinstance(layer, kind)):
                hooks.append(layer.register_forward_pre_hook(lambda _, args, name=name: before(name, args)))
                hooks.append(layer.register_forward_hook(lambda *_, name=name: after(name)))
        begin = now()
        call()
        spans.append(("all", begin, now()))
        for hook in hooks:
            hook.remove()
        if device.type == "cuda":
            torch.cuda.synchronize()
        self.ms: dict[str, float] = dict.fromkeys(["all", *kinds], 0.0)
        for name, first, last in spans:
            self.ms[name] += first.elapsed_time(last) if device.type == "cuda" else (last - first) * 1e3

    def __str__(self) -> str:
        parts = []
        for name, layouts in self.layouts.items():
            counts = ", ".join(f"{count} {layout}" for layout, count in layouts.items())
            parts.append(f"{name} {self.ms[name]:.2f} ms, {self.ms[name] / self.ms['all']:.0%} ({counts})")
        return "; ".join(parts)


def layout_of(image: Tensor) -> str:
    """Return the memory layout of a tensor (batch, channels, height, width)."""
    last, first = image.is_contiguous(memory_format=torch.channels_last), image.is_contiguous()
    return "either" if first and last else "channels_last" if last else "contiguous" if first else "other"


def told(name: str, milliseconds: float, memory: int) -> str:
    """A line for one way to compute."""
    return f"{name}: {milliseconds:.1f} ms" + (f", {memory / 1e6:.0f} MB at most" if memory else "")
