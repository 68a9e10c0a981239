"""Pictures of benchmarks' results: how near each kernel comes to a copy of the bytes it moves, and how fast each layer of a
model is.

    python op_tests/bench_plot.py    # draws the pictures of the documentation again, docs/plots/*.svg, from docs/data/*.json

What the benches write with --json may take the place of a file of docs/data. A picture names the data that it was drawn from.
"""

from __future__ import annotations

from collections.abc import Callable
import hashlib
import json
import math
from pathlib import Path
import statistics
import sys
from typing import Any

from support import ROOT

DOCS = ROOT / "docs"

_DESCRIPTION = ("shape", "dtype", "layout", "bytes", "wrong", "copy", "commit")  # the other keys of a row are times by name
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


def draw_valleys(results: dict, path: Path, **saving: Any) -> None:
    """Write the picture of bench_valleys.py's results: the median share of the floor for each form and each value of
    an axis.
    """
    rows = [row for row in results["rows"] if row["bytes"] >= 16_000_000]
    forms = list(dict.fromkeys((row["op"], row["form"]) for row in rows))
    axes_of = ("width", "dtype", "weights", "layout", "states", "mix", "dim", "seqlen")
    found = sorted(
        {(axes_of.index(axis), row[axis]) for row in rows for axis in axes_of if axis in row},
        key=lambda cell: (cell[0], str(cell[1]).zfill(6)),
    )
    shares: dict[tuple, list[float]] = {}
    for row in rows:
        for number, value in found:
            if row.get(axes_of[number]) == value:
                shares.setdefault((row["op"], row["form"], number, value), []).append(100 * row["floor_us"] / row["us"])
    table = [[statistics.median(shares.get((*form, *cell), [math.nan])) for cell in found] for form in forms]
    figure, axes = _figure(results, (2.5 + 0.22 * len(found), 2.5 + 0.25 * len(forms)))
    image = axes.imshow(table, vmin=0, vmax=100, cmap="RdYlGn", aspect="auto")
    axes.set_xticks(
        range(len(found)), [f"{axes_of[number]} {value}" for number, value in found], rotation=90, fontsize="xx-small"
    )
    axes.set_yticks(range(len(forms)), [f"{op}, {form}" for op, form in forms], fontsize="x-small")
    figure.colorbar(image, label="% of the floor, median")
    figure.savefig(path, **saving)


# ---- the documentation's -----------------------------------------------------------------------------------------------------


def draw_roofline(results: dict, path: Path, **saving: Any) -> None:
    """Write the picture of bench_causal_conv1d.py's results as bandwidth over bytes, beside the copy's and torch's."""
    figure, axes = _figure(results, (8, 4.5))
    looks = {
        "copy": ("black", "_", "a copy of the same bytes"),
        "auto": ("C0", "o", "hipconv"),
        "torch": ("C1", "s", "F.conv1d and F.silu"),
    }
    for name, (color, marker, label) in looks.items():
        points = sorted((row["bytes"] / 1e6, row["bytes"] / row[name] / 1e6) for row in results["rows"] if name in row)
        axes.scatter(*zip(*points, strict=True), color=color, marker=marker, label=label, s=60 if name == "copy" else 18)
    _plain_log(axes.set_xscale, axes.xaxis, 10)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("MB moved, read and written")
    axes.set_ylabel("TB/s")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, **saving)


def draw_lengths(results: dict, path: Path, **saving: Any) -> None:
    """Write the picture of bench_causal_conv1d.py's results as shares of copy over the length of a row."""
    figure, axes = _figure(results, (8, 4.5))
    for layout in _LINES:
        points = sorted(
            (row["shape"][2], 100 * row["copy"] / row["auto"]) for row in results["rows"] if row["layout"] == layout
        )
        if points:
            axes.plot(*zip(*points, strict=True), _LINES[layout], marker="o", linewidth=0.7, label=layout.replace("_", "-"))
    axes.axhline(100, color="black", linewidth=1, label="a copy of the same bytes")
    _plain_log(axes.set_xscale, axes.xaxis, 2)
    axes.set_ylim(0, 105)
    axes.set_xlabel("tokens of a row (batch 64, dim 8192, bfloat16)")
    axes.set_ylabel("% of copy bandwidth")
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(path, **saving)


def draw_decode(results: dict, path: Path, **saving: Any) -> None:
    """Write the picture of bench_causal_conv1d_update.py's results: the time of one token a row over the number of rows."""
    figure, axes = _figure(results, (8, 4.5))
    for number, state in enumerate(dict.fromkeys(row["state"] for row in results["rows"])):
        rows = [row for row in results["rows"] if row["state"] == state and row["case"] == "decode"]
        for name, line in (("auto", "o-"), ("copy", "_")):
            points = sorted((row["batch"], row[name]) for row in rows if name in row)
            label = f"({state.replace(',', ', ')})" + (", a copy of its bytes" if name == "copy" else "")
            size = 14 if name == "copy" else 5
            axes.plot(*zip(*points, strict=True), line, color=f"C{number}", label=label, linewidth=0.7, markersize=size)
    _plain_log(axes.set_xscale, axes.xaxis, 2)
    _plain_log(axes.set_yscale, axes.yaxis, 2)
    axes.set_xlabel("rows, a token each (dim 8192, bfloat16)")
    axes.set_ylabel("us a call")
    figure.legend(loc="outside lower center", ncols=3, fontsize="small", title="memory layout of the state")
    figure.savefig(path, **saving)


def draw_beside_torch(results: dict, path: Path, **saving: Any) -> None:
    """Write the picture of bench_conv2d.py's results: how many times as fast as F.conv2d models and their longest
    layers are.
    """
    layers, sums = _beside_torch(results)
    longest = sorted(layers, key=lambda name: -max(torch for _, torch in layers[name].values()))[:20]
    drawn = sums | {name: layers[name] for name in longest}
    figure, axes = _figure(results, (8, 1.6 + 0.3 * len(drawn)))
    _bars_beside_torch(axes, drawn)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(path, **saving)


def draw_overview(conv1d: dict, conv2d: dict, path: Path, **saving: Any) -> None:
    """Write the README's picture: the forward's share of copy bandwidth beside torch's, and conv2d beside F.conv2d."""
    figure, (left, right) = _figure(conv1d, (11, 3.9), columns=2)
    rows = [row for row in conv1d["rows"] if row["dtype"] == "bfloat16" and row["layout"] == "channel_first" and "torch" in row]
    for number, (name, label) in enumerate((("auto", "hipconv"), ("torch", "F.conv1d and F.silu"))):
        places = [i + 0.4 * (number - 0.5) for i in range(len(rows))]
        left.barh(places, [100 * row["copy"] / row[name] for row in rows], height=0.38, label=label, color=f"C{number}")
    left.axvline(100, color="black", linewidth=1, label="a copy of the same bytes")
    left.set_yticks(range(len(rows)), [" x ".join(map(str, row["shape"])) for row in rows])
    left.invert_yaxis()
    left.set_xlabel("% of copy bandwidth")
    left.set_title("causal conv1d, bfloat16, channel-first, width 4, bias, SiLU", fontsize="small")
    _bars_beside_torch(right, _beside_torch(conv2d)[1])
    right.set_title("conv2d, bfloat16, bias", fontsize="small")
    for axes in (left, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=3, fontsize="x-small", frameon=False)
    figure.suptitle(_title(conv1d), fontsize="medium")
    figure.savefig(path, **saving)


def draw_scaling(inputs: dict, path: Path, **saving: Any) -> None:
    """Write the picture of the model of many devices: how many times as fast as one they are, by benches/scaling.py."""
    from benches import scaling

    figure, (left, right) = _figure(inputs, (11, 4.2), columns=2)
    for axes, curves_of, title in (
        (
            left,
            scaling.conv1d_curves(inputs),
            f"causal conv1d, dim {inputs['conv1d']['dim']}, width {inputs['conv1d']['width']}, forward",
        ),
        (right, scaling.conv2d_curves(inputs), "conv2d 3x3, layers of an image decoder, forward"),
    ):
        for number, (label, points) in enumerate(curves_of.items()):
            axes.plot(*zip(*points, strict=True), color=f"C{number}", marker="o", linewidth=1, label=label)
        axes.plot([1, 64], [1, 64], color="black", linewidth=0.7, label="as many times as devices")
        _plain_log(axes.set_xscale, axes.xaxis, 2)
        _plain_log(axes.set_yscale, axes.yaxis, 2)
        axes.set_xlabel("devices")
        axes.set_ylabel("times as fast as one")
        axes.set_title(title, fontsize="small")
        axes.legend(fontsize="x-small")
    figure.suptitle("A model, not a measurement", fontsize="medium")
    figure.savefig(path, **saving)


Times = dict[str, dict[str, tuple[float, float]]]  # ours and F.conv2d's by layout, of layers or of all layers of a model


def _beside_torch(results: dict) -> tuple[Times, Times]:
    layers: Times = {}
    sums: Times = {}
    for row in results["rows"]:
        image, *words = row["case"].split(" ")
        layout = "nhwc" if "nhwc" in words else "nchw"
        layer = " ".join([image, *(word for word in words if word not in ("nhwc", "nchw", "bfloat16"))])
        if not row["case"].startswith("all of "):
            layers.setdefault(layer, {})[layout] = (row["us"], row["torch"])
        if "model" in row:
            whole = sums.setdefault(f"all of {row['model']}, batch {image.split('x')[0]}", {})
            ours, theirs = whole.get(layout, (0.0, 0.0))
            whole[layout] = (ours + row["us"], theirs + row["torch"])
        elif row["case"].startswith("all of "):
            sums.setdefault(layer, {})[layout] = (row["us"], row["torch"])
    return layers, sums


def _bars_beside_torch(axes: Any, times: Times) -> None:
    for number, (layout, label) in enumerate((("nhwc", "channels_last"), ("nchw", "contiguous"))):
        drawn = [
            (i + 0.4 * (number - 0.5), by[layout][1] / by[layout][0]) for i, by in enumerate(times.values()) if layout in by
        ]
        bars = axes.barh(*zip(*drawn, strict=True), height=0.38, label=f"hipconv, {label}", color=("C0", "C9")[number])
        axes.bar_label(bars, fmt="%.2f", fontsize="x-small", padding=2)
    axes.axvline(1, color="black", linewidth=1, label="F.conv2d, cudnn.benchmark")
    axes.margins(x=0.1)
    axes.set_yticks(range(len(times)), times, fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as F.conv2d")


def _plain_log(set_scale: Callable[..., None], axis: Any, base: int) -> None:
    from matplotlib.ticker import FuncFormatter

    set_scale("log", base=base)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


# Pictures of docs/plots, by what draws them and the files of docs/data that it takes.
PICTURES: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "overview.svg": (draw_overview, ("conv1d_forward.json", "conv2d_layers.json")),
    "conv1d_roofline.svg": (draw_roofline, ("conv1d_forward.json",)),
    "conv1d_lengths.svg": (draw_lengths, ("conv1d_lengths.json",)),
    "conv2d_layers.svg": (draw_beside_torch, ("conv2d_layers.json",)),
    "decode.svg": (draw_decode, ("decode.json",)),
    "scaling.svg": (draw_scaling, ("scaling.json",)),
}


def draw_picture(name: str, directory: Path) -> None:
    """Write one of PICTURES, the same bytes from the same data, with a note of what that is."""
    from matplotlib import rc_context

    function, files = PICTURES[name]
    metadata = {"Date": None, "Description": data_of(name)}
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        function(*(json.loads((DOCS / "data" / file).read_text()) for file in files), directory / name, metadata=metadata)


def data_of(name: str) -> str:
    """The data files of a picture with their SHA-256."""
    files = PICTURES[name][1]
    return ", ".join(f"{file} {hashlib.sha256((DOCS / 'data' / file).read_bytes()).hexdigest()}" for file in files)


def _figure(results: dict, size: tuple[float, float] = (10, 6), columns: int = 1) -> tuple[Any, Any]:
    """A figure that needs no screen, and its axes, titled with where and when the results come from."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for one in axes:
        one.grid(alpha=0.3)
    if columns > 1:
        return figure, axes
    axes[0].set_title(_title(results))
    return figure, axes[0]


def _title(results: dict) -> str:
    return f"{results['card']}, torch {results['torch']}, {results['date']}, commit {results.get('commit', 'unknown')}"


def main() -> int:
    require_matplotlib()
    for picture in PICTURES:
        draw_picture(picture, DOCS / "plots")
    return 0
