"""Parts that all benches share: shapes, the machine's name, the copy that stands beside a kernel, options, results as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable
import datetime
import json
from pathlib import Path
import subprocess

import torch
from torch import Tensor

import benches.plot
from support import ROOT
from support.cli import choice_of
from hipconv import jit, targets

ROTATED_BYTES = 400 << 20  # several times the largest cache
GPU_SHAPES = ["4x4096x4096", "1x8192x65536", "64x8192x512", "4x512x2048", "8x2048x2048", "2x256x1024"]
CPU_SHAPES = ["4x512x2048"]
WIDTH = 4


def parser_for(description: str | None, *backends: str) -> tuple[argparse.ArgumentParser, str]:
    """A parser with --backend, and the backend that is its default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    backend = "gpu" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--backend", type=choice_of("gpu", "cpu", *backends), default=backend, help=f"default {backend}")
    return parser, backend


def origin(device: torch.device) -> dict[str, str]:
    """Return where and when figures come from: the card, torch's version, the date, the commit."""
    card = (
        torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads, {targets.of(device).arch}"
    )
    return {"card": card, "torch": torch.__version__, "date": datetime.date.today().isoformat(), "commit": commit()}


def commit() -> str:
    """That of the checkout, with "-dirty" if it was edited since; "unknown" where there is no git or checkout."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def heading(origin: dict[str, str]) -> str:
    return f"{origin['card']}, torch {origin['torch']}, {origin['date']}, commit {origin['commit']}"


def write_json(path: Path | None, results: dict) -> None:
    if path:
        path.write_text(json.dumps(results, indent=1) + "\n")


def report(
    options: argparse.Namespace, measure: Callable[[argparse.Namespace], dict], draw: Callable[[dict, Path], None]
) -> int:
    """Measure, or take what --read names, then write what --json and --plot name; the exit status: 1 if a result was wrong."""
    if options.plot:
        benches.plot.require_matplotlib()  # before minutes of measuring
    results = json.loads(options.read.read_text()) if options.read else measure(options)
    write_json(options.json, results)
    if options.plot:
        draw(results, options.plot)
    return 1 if any(row["wrong"] for row in results["rows"]) else 0


def copier(device: torch.device) -> Callable[[Tensor, Tensor], None]:
    """`copy(out, x)` by the copy kernel, on the stream that is current when it is called."""
    copy = jit.module("copy", targets.of(device)).copy
    if device.type == "cpu":
        return lambda out, x: copy(out, x, 0)
    return lambda out, x: copy(out, x, torch.cuda.current_stream().cuda_stream)
