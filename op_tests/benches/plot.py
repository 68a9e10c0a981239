"""Pictures of benchmarks' results: how near each kernel comes to a copy of the bytes it moves, and how fast each layer of a model is."""

from __future__ import annotations

from pathlib import Path
import sys
from typing import Any

_DESCRIPTION = ("shape", "dtype", "layout", "bytes", "wrong", "copy")  # the other keys of a row are times by name
_LINES = {"channel_first": "-", "channel_last": "--"}
_MARKERS = {"float32": "s", "float16": "^", "bfloat16": "o"}


def require_matplotlib() -> None:
    """Leave with an instruction if it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        sys.exit("--plot needs matplotlib: pip install matplotlib, or write --json here and draw elsewhere with --read")


def curves(rows: list[dict]) -> dict[tuple[str, str, str], list[tuple[int, float]]]:
    """Points (bytes moved, percent of copy bandwidth), in order of bytes, by (what was timed, layout, dtype)."""
    found: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    for row in rows:
        for name in row.keys() - set(_DESCRIPTION):
            found.setdefault((name, row["layout"], row["dtype"]), []).append((row["bytes"], 100 * row["copy"] / row[name]))
    return {key: sorted(points) for key, points in sorted(found.items())}


def draw(results: dict, path: Path) -> None:
    """Write the picture of what bench_causal_conv1d.py measured, in the format that the path's ending names."""
    figure, axes = _figure(results)
    drawn = curves(results["rows"])
    names = list(dict.fromkeys(name for name, _, _ in drawn))
    for (name, layout, dtype), points in drawn.items():
        axes.plot(
            [moved for moved, _ in points],
            [share for _, share in points],
            label=f"{name} {layout.replace('_', '-')} {dtype}",
            color=f"C{names.index(name)}",
            linestyle=_LINES[layout],
            marker=_MARKERS[dtype],
        )
    axes.axhline(100, color="black", linewidth=1, label="a copy of the same bytes")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("bytes moved, read and written")
    axes.set_ylabel("% of copy bandwidth")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path)


def draw_layers(results: dict, path: Path) -> None:
    """Write the picture of what bench_conv2d.py measured: TFLOP/s of each layer, ours, torch's, and what the floor allows."""
    rows = results["rows"]
    figure, axes = _figure(results)
    for number, (name, label) in enumerate((("us", "hipconv"), ("torch", "torch"), ("floor", "floor"))):
        places = [i + 0.28 * (number - 1) for i in range(len(rows))]
        axes.bar(places, [row["flops"] / row[name] / 1e6 for row in rows], width=0.26, label=label, color=f"C{number}")
    axes.set_xticks(range(len(rows)), [row["case"] for row in rows], rotation=90, fontsize="x-small")
    axes.set_ylabel("TFLOP/s")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path)


def _figure(results: dict) -> tuple[Any, Any]:
    """A figure that needs no screen, and its axes, titled with where and when the results come from."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(f"{results['card']}, torch {results['torch']}, {results['date']}")
    axes.grid(alpha=0.3)
    return figure, axes
