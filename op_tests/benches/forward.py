"""Speed of causal_conv1d_fwd beside a copy kernel of the same bytes, torch's own convolution, and an installed causal_conv1d
package.

    python op_tests/bench_causal_conv1d.py
    python op_tests/bench_causal_conv1d.py --shapes 4x4096x4096 64x8192x512 --dtype bfloat16 --layout channel_last --json
    results.json python op_tests/bench_causal_conv1d.py --read results.json --plot roofline.png

On a GPU a time is that of a kernel: calls are captured into a graph, each on buffers of its own, together larger than any
cache, and the median of the replays is divided by the calls. On the CPU it is the fastest of several calls by the clock. Width
4, bias, SiLU. Host time is what a call of either form keeps Python busy, its launch included and its kernel not waited for.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import functools
import importlib.util
from pathlib import Path

import torch
from torch import Tensor
import torch.nn.functional as F

from benches.measure import CPU_SHAPES, GPU_SHAPES, ROTATED_BYTES, WIDTH, copier, heading, origin, parser_for, report
import benches.plot
from support.backends import device_of
from support.cli import Table, choice_of, flattened, list_of
from support.tensors import DTYPES, LAYOUTS, empty_as, mismatch
from support.timing import host_us, time_us
import hipconv
from hipconv import reference


def bench(shape: tuple[int, int, int], dtype: torch.dtype, layout: str, kernels: list[str], device: torch.device) -> dict:
    """Times in microseconds of one case, by name; `bytes` moved; `wrong` lists kernels whose result is not the reference's."""
    batch, dim, seqlen = shape
    size = batch * dim * seqlen * dtype.itemsize
    copies = max(4, -(-ROTATED_BYTES // (2 * size))) if device.type == "cuda" else 4
    sets = []
    for _ in range(copies):
        x, out = (empty_as(layout, shape, dtype, device) for _ in range(2))
        sets.append((x.normal_(), out))
    weight, bias = torch.randn(dim, WIDTH, device=device, dtype=dtype) / 2, torch.randn(dim, device=device, dtype=dtype)
    expected = reference.causal_conv1d(sets[0][0][:1], weight, bias, True)

    def timed(call: Callable[..., object], pairs: list[tuple[Tensor, Tensor]]) -> float:
        return time_us([functools.partial(call, out, x) for x, out in pairs], device)

    copy = copier(device)
    flat = [(x.mT, out.mT) if layout == "channel_last" else (x, out) for x, out in sets]
    result: dict = {"bytes": 2 * size, "wrong": [], "copy": timed(copy, flat)}
    for kernel in kernels:
        ours = functools.partial(hipconv.causal_conv1d_fwd, weight=weight, bias=bias, use_silu=True, kernel=kernel)
        sets[0][1].fill_(torch.nan)
        try:
            ours(sets[0][1], sets[0][0])
        except ValueError:  # it does not serve this layout
            continue
        if mismatch(sets[0][1][:1], expected):
            result["wrong"].append(kernel)
        result[kernel] = timed(ours, sets)
    result["torch"] = timed(lambda _, x: _torch(x, weight, bias), sets[:2])
    if device.type == "cuda" and importlib.util.find_spec("causal_conv1d"):
        from causal_conv1d import causal_conv1d_fn

        result["causal_conv1d"] = timed(lambda _, x: causal_conv1d_fn(x, weight, bias, activation="silu"), sets)
    if device.type == "cpu":
        result["silu"] = timed(lambda _, x: F.silu(x), sets)
    return result


def host_times(device: torch.device) -> dict[str, float]:
    """Microseconds that a call on eight tokens of eight channels takes before it returns, by the name of what is called."""
    x, weight, bias = (torch.randn(shape, device=device) for shape in ((1, 8, 8), (8, 4), (8,)))
    out = torch.empty_like(x)
    calls: dict[str, Callable[[], object]] = {
        "causal_conv1d_fwd": lambda: hipconv.causal_conv1d_fwd(out, x, weight, bias, True),
        "causal_conv1d": lambda: hipconv.causal_conv1d(x, weight, bias, "silu"),
        "F.silu": lambda: F.silu(x),
    }
    return {name: host_us(call, device) for name, call in calls.items()}


def _torch(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.silu(F.conv1d(x, weight[:, None], bias, padding=WIDTH - 1, groups=x.shape[1])[..., : x.shape[2]])


def main() -> int:
    parser, _ = parser_for(__doc__)
    parser.add_argument("--shapes", type=list_of(str), nargs="+", help="BATCHxDIMxSEQLEN, one or several")
    parser.add_argument("--dtype", type=list_of(choice_of(*DTYPES)), nargs="+", default=[list(DTYPES)])
    parser.add_argument("--layout", type=list_of(choice_of(*LAYOUTS)), nargs="+", default=[list(LAYOUTS)])
    parser.add_argument("--kernel", type=list_of(str), nargs="+", default=[["auto"]])
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--plot", type=Path, help="draw shares of copy bandwidth over bytes moved here; needs matplotlib")
    parser.add_argument("--read", type=Path, help="measure nothing: take the results that --json wrote here")
    options = parser.parse_args()

    return report(options, measure, benches.plot.draw)


def measure(options: argparse.Namespace) -> dict:
    """Every case of the command line, printed as it comes; and the host time of a call."""
    device = device_of(options.backend)
    where = origin(device)
    print(f"{heading(where)}; width {WIDTH}, bias, SiLU; times in us; TB/s counts one read and one write")
    columns = [
        ("BxDxL", 14),
        ("dtype", 8),
        ("layout", 13),
        ("kernel", 8),
        ("us", 9),
        ("TB/s", 6),
        ("copy us", 9),
        ("of copy", 7),
    ]
    table = Table([*columns, ("vs torch", 8), ("vs causal_conv1d", 8), ("vs silu", 7), ("result", 6)])
    rows = []
    for shape_text in flattened(options.shapes) if options.shapes else GPU_SHAPES if options.backend == "gpu" else CPU_SHAPES:
        batch, dim, seqlen = (int(part) for part in shape_text.split("x"))
        for dtype in flattened(options.dtype):
            for layout in flattened(options.layout):
                kernels = flattened(options.kernel)
                result = bench((batch, dim, seqlen), DTYPES[dtype], layout, kernels, device)
                rows.append({"shape": [batch, dim, seqlen], "dtype": dtype, "layout": layout, **result})
                for kernel in kernels:
                    if kernel not in result:
                        continue
                    ours = result[kernel]
                    ratios = (
                        f"{result[peer] / ours:.2f}x" if peer in result else "" for peer in ("torch", "causal_conv1d", "silu")
                    )
                    verdict = "WRONG" if kernel in result["wrong"] else "ok"
                    numbers = (
                        f"{ours:.1f}",
                        f"{result['bytes'] / ours / 1e6:.2f}",
                        f"{result['copy']:.1f}",
                        f"{100 * result['copy'] / ours:.1f} %",
                    )
                    table.row(shape_text, dtype, layout, kernel, *numbers, *ratios, verdict)
    host = host_times(device)
    print("host time of a call, us: " + ", ".join(f"{name} {us:.1f}" for name, us in host.items()))
    return {**where, "host_us": host, "rows": rows}
