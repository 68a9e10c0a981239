"""Speed of conv3d on the layers of video decoders, beside torch's own convolution and what the card could do at best.

    python op_tests/bench_conv3d.py --model wan21_vae_720p --layout both --json results.json

A layer is called as a decoder calls it, chunk by chunk: ours reads the frames of a chunk before from its cache and writes the
next call's; torch's gets all frames in one tensor, so that its time is of the convolution alone, without the copies around it;
with --unfold, taps of time are also unfolded into channels for F.conv2d, as engines do on AMD. On a GPU times are of graph
replays that take turns. torch's is that of cuDNN's or MIOpen's fastest algorithm (torch.backends.cudnn.benchmark). The floor is
the longer of the products at the card's dense peak and a copy of the bytes. The sum counts a layer as often as the model calls
it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
import functools
from pathlib import Path

import torch
from torch import Tensor
import torch.nn.functional as F

from benches.conv2d import PEAKS, copy_rate
from benches.measure import heading, origin, parser_for, write_json
from conv2d.cases import outside_gates
from conv3d.cases import LAYOUTS, MODELS, Case, model_layers
from support.backends import device_of, use_backend
from support.cli import Table, choice_of, flattened, list_of
from support.tensors import DTYPES
from support.timing import in_turn_us
import hipconv
from hipconv import targets
from hipconv.ops.conv2d.precision import PRECISIONS

COPIES = 3  # of the inputs and results, which together are larger than any cache


def bench(
    case: Case, algorithm: str, device: torch.device, rate: float, unfolds: bool, float32_precision: str = "ieee"
) -> dict:
    """Times of one layer in microseconds; `wrong` says what is wrong with the result, or None."""
    asked = {"float32_precision": float32_precision}
    inputs = [case.inputs(device, seed, device.type) | asked for seed in range(COPIES)]
    plan = hipconv.conv3d_plan(**inputs[0], algorithm=algorithm)
    frames = [torch.cat([a["cache"], a["x"]], 2).contiguous(memory_format=_format(case)) for a in inputs]
    weight, bias = inputs[0]["weight"], inputs[0]["bias"]
    ours = [functools.partial(hipconv.conv3d, **a, algorithm=algorithm) for a in inputs]
    spatial = case.padding[1:]

    def unfolded(x: Tensor) -> Tensor:
        taps = case.kernel[0]
        out = x.shape[2] - taps + 1
        stacked = torch.cat([x[0, :, i : i + out].transpose(0, 1) for i in range(taps)], 1)
        if case.layout == "ndhwc":
            stacked = stacked.contiguous(memory_format=torch.channels_last)
        return F.conv2d(stacked, weight.transpose(1, 2).flatten(1, 2), bias, 1, spatial)

    theirs = [functools.partial(F.conv3d, x, weight, bias, 1, (0, *spatial)) for x in frames]
    groups: list[list[Callable[[], object]]] = [_kept(ours), _kept(theirs)]
    if unfolds:
        groups.append(_kept([functools.partial(unfolded, x) for x in frames]))
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=float32_precision == "tf32"):
        times = in_turn_us(groups, device)
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False):
        expected = F.conv3d(frames[0].float(), weight.float(), bias.float(), 1, (0, *spatial)).double()
    result = ours[0]()
    rounds = plan.float32_precision == "tf32"
    wrong = outside_gates(result, expected, expected, weight[0].numel(), False, rounds)
    if wrong is None and not torch.equal(inputs[0]["cache_out"], frames[0][:, :, -case.history :]):
        wrong = "cache_out is not the last frames"
    peaks = PEAKS.get(targets.of(device).arch, (float("inf"),) * 3)
    peak = peaks[0 if case.dtype != torch.float32 else 2 if rounds else 1]
    return {
        "case": str(case),
        "plan": plan.form,
        "us": times[0],
        "torch": times[1],
        "unfolded": times[2] if unfolds else None,
        "floor": max(plan.flops / peak / 1e6, plan.bytes_moved / rate),
        "flops": plan.flops,
        "wrong": wrong,
    }


def _format(case: Case) -> torch.memory_format:
    return torch.channels_last_3d if case.layout == "ndhwc" else torch.contiguous_format


def _kept(calls: Sequence[Callable[[], object]]) -> list[Callable[[], object]]:
    """Calls whose results are kept, or the next one would write where the one before did."""
    kept: list[object] = []

    def keep(call: Callable[[], object]) -> None:
        if len(kept) >= 2 * COPIES:
            kept.clear()
        kept.append(call())

    return [functools.partial(keep, call) for call in calls]


def main() -> int:
    parser, _ = parser_for(__doc__, "simt")
    parser.add_argument("--model", type=list_of(choice_of(*MODELS)), nargs="+", default=[list(MODELS)])
    parser.add_argument("--dtype", type=choice_of(*DTYPES), default="bfloat16")
    parser.add_argument(
        "--float32-precision", type=choice_of(*PRECISIONS), default="ieee", help="of float32, torch's too; default ieee"
    )
    parser.add_argument("--layout", type=choice_of(*LAYOUTS, "both"), default="both")
    parser.add_argument("--num-layers", type=int, help="only the first of each model")
    parser.add_argument("--layers", type=list_of(str), nargs="+", help="only these, as C>K: 96>3,96>96")
    parser.add_argument("--shrink", type=int, default=1, help="divide height and width by this")
    parser.add_argument("--algorithm", default="auto", help="default: the library's choice")
    parser.add_argument("--unfold", action="store_true", help="also time F.conv2d of time taps unfolded into channels")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    results = measure(options)
    write_json(options.json, results)
    return 1 if any(row["wrong"] for row in results["rows"]) else 0


def measure(options: argparse.Namespace) -> dict:
    """Every layer of the command line, printed as it comes, then the sums."""
    device = device_of(options.backend)
    rows = []
    with use_backend(options.backend):
        where, rate = origin(device), copy_rate(device)
        print(f"{heading(where)}; a copy moves {rate / 1e6:.2f} TB/s")
        table = Table(
            [
                ("layer", 46),
                ("plan", 24),
                ("us", 8),
                ("TFLOP/s", 7),
                ("torch", 8),
                ("ratio", 5),
                ("unfold", 8),
                ("floor", 7),
                ("", 4),
            ]
        )
        for model in flattened(options.model):
            for layout in LAYOUTS if options.layout == "both" else (options.layout,):
                of_model = []
                for case, calls in model_layers(model)[: options.num_layers]:
                    if options.layers and f"{case.C}>{case.K}" not in flattened(options.layers):
                        continue
                    small = case._replace(H=case.H // options.shrink, W=case.W // options.shrink)
                    row = bench(
                        small._replace(dtype=DTYPES[options.dtype], layout=layout),
                        options.algorithm,
                        device,
                        rate,
                        options.unfold,
                        options.float32_precision,
                    )
                    of_model.append(row | {"model": model, "layout": layout, "calls": calls})
                    kernel = "x".join(map(str, case.kernel))
                    text = f"{case.C}>{case.K} {kernel} T{case.T} {small.H}x{small.W} {layout} x{calls}"
                    unfold = f"{row['unfolded']:.0f}" if row["unfolded"] else ""
                    rates = f"{row['us']:.0f}", f"{row['flops'] / row['us'] / 1e6:.0f}", f"{row['torch']:.0f}"
                    table.row(
                        text,
                        row["plan"],
                        *rates,
                        f"{row['us'] / row['torch']:.2f}",
                        unfold,
                        f"{row['floor']:.0f}",
                        row["wrong"] or "ok",
                    )
                if not of_model:
                    continue
                sums = [sum(row[name] * row["calls"] for row in of_model) / 1e3 for name in ("us", "torch", "floor")]
                print(
                    f"{model} {layout}: ours {sums[0]:.1f} ms, torch {sums[1]:.1f} ms ({sums[0] / sums[1]:.2f}), floor "
                    f"{sums[2]:.1f} ms"
                )
                rows += of_model
    return {**where, "bytes_per_us": rate, "rows": rows}
