"""Speed of conv2d on the layers of image models, beside torch's own convolution and what the card could do at best.

    python op_tests/bench_conv2d.py --model flux2_vae --dtype bfloat16 --layout nhwc
    python op_tests/bench_conv2d.py --model resnet50 --batch 1,32 --num-layers 5 --activation relu --json results.json --plot
    layers.png python op_tests/bench_conv2d.py --model timm --only depthwise --batch 1,32 --summary --part 1/4 --json
    depthwise.json python op_tests/bench_conv2d.py --model sd35_vae --miopen-solvers

On a GPU a time is that of the kernels: calls are captured into a graph, each on an input and output of its own, together larger
than any cache, and the median of the replays is divided by the calls; ours and torch's replays take turns. On the CPU it is the
fastest of several calls by the clock. Bias, and the activation that --activation names. torch's time is that of F.conv2d, by
cuDNN's or MIOpen's fastest algorithm (torch.backends.cudnn.benchmark), and the same activation. The floor is the longer of the
products at the card's dense peak, or for depthwise layers its plain peak of f32, and a copy of the bytes, as a copy kernel does
it in the same run. Sums of a model count a layer as often as the model calls it. --part 2/5 measures every fifth layer from the
second on, and with it --json adds to the file what it does not have yet. --miopen-solvers (ROCm) names what MIOpen runs, from
its log.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import functools
import json
import os
from pathlib import Path
import re
import subprocess
import sys

import torch
from torch import Tensor
import torch.nn.functional as F

from benches.measure import ROTATED_BYTES, copier, heading, origin, parser_for, report, write_json
import benches.plot
from conv2d.cases import (
    ACTIVATIONS,
    LAYER_KINDS,
    LAYOUTS,
    MODELS,
    RANDOM_MODELS,
    TIMM_MODELS,
    Case,
    kind_of_layer,
    mismatch_conv2d,
    model_layers,
)
from support.backends import device_of, use_backend
from support.cli import Table, choice_of, flattened, list_of
from support.tensors import DTYPES
from support.timing import in_turn_us, time_us
import hipconv
from hipconv import targets
from hipconv.ops.conv2d.activations import ACTIVATIONS as TORCH_ACTIVATIONS
from hipconv.ops.conv2d.precision import PRECISIONS

MOST_CALLS = 200  # of a graph

# Dense peaks by the vendors' data sheets, TFLOP/s: of 16-bit matrix products, of f32 ones, of TF32 ones.
PEAKS = {
    "gfx90a": (191.5, 47.9, 47.9),  # one of the two chips of a card
    "gfx942": (1307.4, 163.4, 653.7),
    "gfx950": (2516.6, 157.3, 157.3),
    "gfx1100": (122.8, 61.4, 61.4),
    "gfx1151": (59.4, 29.7, 29.7),
    "gfx1201": (194.6, 48.7, 48.7),
    "sm_80": (312.0, 19.5, 156.0),
    "sm_90": (989.4, 66.9, 494.7),
}


def bench(case: Case, algorithm: str, device: torch.device, copy_rate: float, float32_precision: str = "ieee") -> dict:
    """Times of one layer in microseconds; `wrong` says what is wrong with the result, or None."""
    arguments = case.inputs(device) | {"float32_precision": float32_precision}
    plan = hipconv.conv2d_plan(**arguments, algorithm=algorithm)
    result = hipconv.conv2d(**arguments, algorithm=algorithm)
    plain = functools.partial(_by_torch, activation=case.activation, **{name: arguments[name] for name in _PLAIN})
    exact = {name: value.float() if isinstance(value, Tensor) else value for name, value in arguments.items()}
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=False, allow_tf32=False):
        expected = _by_torch(exact["x"], activation=case.activation, **{name: exact[name] for name in _PLAIN})
    wrong = mismatch_conv2d(result, arguments, expected.double())
    size = sum(t.numel() * t.element_size() for t in (arguments["x"], result))
    copies = min(MOST_CALLS, max(4, -(-ROTATED_BYTES // size))) if device.type == "cuda" else 2
    inputs = [arguments["x"], *(torch.empty_like(arguments["x"]).normal_() for _ in range(copies - 1))]
    del exact, expected, result

    def calls_of(convolve: Callable[[Tensor], Tensor]) -> list[Callable[[], object]]:
        kept: list[Tensor] = []  # the results, or the next call would write where this one did

        def call(x: Tensor) -> None:
            kept.append(convolve(x))

        return [functools.partial(call, x) for x in inputs]

    rest = {name: value for name, value in arguments.items() if name != "x"}
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=float32_precision == "tf32"):
        ours, theirs = in_turn_us([calls_of(lambda x: hipconv.conv2d(x, **rest, algorithm=algorithm)), calls_of(plain)], device)
    peaks = PEAKS.get(targets.of(device).arch, (float("inf"),) * 3)
    on_matrices = kind_of_layer(case) != "depthwise"
    peak = (
        peaks[1]
        if not on_matrices
        else peaks[0]
        if case.dtype != torch.float32
        else peaks[2 if plan.float32_precision == "tf32" else 1]
    )
    return {
        "case": str(case),
        "plan": plan.form,
        "us": ours,
        "torch": theirs,
        "floor": max(plan.flops / peak / 1e6, plan.bytes_moved / copy_rate),
        "flops": plan.flops,
        "bytes": plan.bytes_moved,
        "wrong": wrong,
    }


_PLAIN = ("weight", "bias", "stride", "padding", "dilation", "groups")


def _by_torch(x: Tensor, *, activation: str, **rest) -> Tensor:
    return TORCH_ACTIVATIONS[activation](
        F.conv2d(x, **{"input" if name == "x" else name: value for name, value in rest.items()})
    )


def copy_rate(device: torch.device) -> float:
    """Bytes, read and written together, that a copy kernel moves in a microsecond."""
    size = (256 if device.type == "cuda" else 64) << 20
    pairs = [
        (torch.empty(size, dtype=torch.uint8, device=device), torch.ones(size, dtype=torch.uint8, device=device))
        for _ in range(2)
    ]
    copy = copier(device)
    return 2 * size / time_us([functools.partial(copy, out, x) for out, x in pairs], device)


# ---- what MIOpen runs --------------------------------------------------------------------------------------------------------

_LAYER = "hipconv layer "
_SOLVER = re.compile(r"(?:Chosen Algorithm: |solver_id = (?:\d+/)?|Solver: |solution: )(\w+)")


def solvers_in(log: str) -> dict[int, str]:
    """The solver that MIOpen names last for each layer, in a log with a line "hipconv layer <number>" before each."""
    found = {}
    for part in log.split(_LAYER)[1:]:
        number, _, lines = part.partition("\n")
        if names := _SOLVER.findall(lines):
            found[int(number)] = names[-1]
    return found


def miopen_solvers(cases: list[Case]) -> dict[int, str]:
    """By the number of the case: from a process of its own whose MIOpen says what it does."""
    program = (
        "import json, sys, torch, torch.nn.functional as F\n"
        "torch.backends.cudnn.benchmark = True\n"
        "for number, (x, weight, stride, padding, dilation, dtype, last) in enumerate(json.load(sys.stdin)):\n"
        "    dtype, layout = getattr(torch, dtype), torch.channels_last if last else torch.contiguous_format\n"
        "    x, weight = (torch.randn(s, device='cuda').to(dtype).contiguous(memory_format=layout) for s in (x, weight))\n"
        f"    print('{_LAYER}' + str(number), file=sys.stderr, flush=True)\n"
        "    F.conv2d(x, weight, None, stride, padding, dilation)\n"
        "    torch.cuda.synchronize()\n"
    )
    layers = [
        (
            (c.N, c.C, c.H, c.W),
            (c.K, c.C, c.R, c.S),
            c.stride,
            c.padding,
            c.dilation,
            str(c.dtype)[len("torch.") :],
            c.layout == "nhwc",
        )
        for c in cases
    ]
    variables = {"MIOPEN_ENABLE_LOGGING": "1", "MIOPEN_LOG_LEVEL": "6"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(layers),
        capture_output=True,
        text=True,
        env=os.environ | variables,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"--miopen-solvers: {done.stderr[-2000:]}")
    return solvers_in(done.stderr)


# ---- the command -------------------------------------------------------------------------------------------------------------


def main() -> int:
    parser, _ = parser_for(__doc__, "simt")
    models = (*dict.fromkeys((*MODELS, *TIMM_MODELS)), "timm", *RANDOM_MODELS)
    parser.add_argument(
        "--model",
        type=list_of(choice_of(*models)),
        nargs="+",
        default=[["resnet50"]],
        help="timm: the 20 of timm; random_…: 200 layers that no model need have",
    )
    parser.add_argument(
        "--only", type=list_of(choice_of(*LAYER_KINDS)), nargs="+", default=[LAYER_KINDS], help="kinds of layers"
    )
    parser.add_argument("--num-layers", type=int, help="only the first of each model")
    parser.add_argument("--batch", type=list_of(int), nargs="+", default=[[1]])
    parser.add_argument("--dtype", type=list_of(choice_of(*DTYPES)), nargs="+", default=[["bfloat16"]])
    parser.add_argument("--layout", type=choice_of(*LAYOUTS, "both"), default="both")
    parser.add_argument("--activation", type=choice_of(*ACTIVATIONS), default="none")
    parser.add_argument("--algorithm", default="auto", help="default: the library's choice")
    parser.add_argument("--part", type=part_of, default=(1, 1), help="2/5: of five parts of the layers the second")
    parser.add_argument("--summary", action="store_true", help="print a line a model, and no layers")
    parser.add_argument(
        "--float32-precision", type=choice_of(*PRECISIONS), default="ieee", help="of float32, torch's too; default ieee"
    )
    parser.add_argument("--json", type=Path, help="write the results here, with --part beside those of other parts")
    parser.add_argument("--plot", type=Path, help="draw TFLOP/s of each layer here; needs matplotlib")
    parser.add_argument("--read", type=Path, help="measure nothing: take the results that --json wrote here")
    parser.add_argument(
        "--miopen-solvers", action="store_true", help="on ROCm: name the solver that MIOpen picks for each layer"
    )
    options = parser.parse_args()

    if options.miopen_solvers and not torch.version.hip:
        parser.error(f"--miopen-solvers needs a ROCm build of torch; this one is {torch.__version__}")
    return report(options, measure, benches.plot.draw_layers)


def part_of(text: str) -> tuple[int, int]:
    """An argparse type: which of how many parts."""
    part, _, parts = text.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"got '{text}', expected a part of parts, like 2/5")
    return int(part), int(parts)


def layers(options: argparse.Namespace) -> list[tuple[str, int, Case]]:
    """Model, calls and convolution of each layer that the command line names."""
    named = dict.fromkeys(flattened(options.model))
    models = dict.fromkeys(m for name in named for m in (TIMM_MODELS if name == "timm" else (name,)))
    every = [
        (model, calls, case._replace(N=batch, dtype=DTYPES[dtype], layout=layout, activation=options.activation))
        for model in models
        for batch in flattened(options.batch)
        for dtype in flattened(options.dtype)
        for layout in (LAYOUTS if options.layout == "both" else (options.layout,))
        for case, calls in model_layers(model)[: options.num_layers]
        if kind_of_layer(case) in flattened(options.only)
    ]
    part, parts = options.part
    return every[part - 1 :: parts]


def measure(options: argparse.Namespace) -> dict:
    """Every layer of the command line, printed as it comes, then the sums."""
    device = device_of(options.backend)
    resumes = options.part != (1, 1) and options.json is not None
    rows = json.loads(options.json.read_text())["rows"] if resumes and options.json.exists() else []
    measured = {(row["model"], row["case"]) for row in rows}
    with use_backend(options.backend):
        where = origin(device)
        rate = copy_rate(device)
        print(f"{heading(where)}; a copy moves {rate / 1e6:.2f} TB/s; bias, activation {options.activation}")
        cases = [layer for layer in layers(options) if (layer[0], str(layer[2])) not in measured]
        solvers = miopen_solvers([case for *_, case in cases]) if options.miopen_solvers else {}
        times = [("us", 9), ("TFLOP/s", 7), ("torch us", 9), ("vs torch", 8), ("floor us", 8), ("of floor", 8)]
        columns = [("layer", 62), ("plan", 30), *times]
        table = None if options.summary else Table([*columns, ("result", 6), *([("MIOpen", 30)] if solvers else [])])
        known = {row["case"]: row for row in rows}  # models share layers
        for number, (model, calls, case) in enumerate(cases):
            if str(case) not in known:
                known[str(case)] = bench(case, options.algorithm, device, rate, options.float32_precision)
            row = {**known[str(case)], "model": model, "calls": calls}
            row |= {"miopen": solvers.get(number)} if solvers else {}
            rows.append(row)
            if table:
                table.row(
                    case, row["plan"], *_numbers([row]), row["wrong"] or "ok", *([row["miopen"] or "?"] if solvers else [])
                )
            if resumes:
                write_json(options.json, {**where, "bytes_per_us": rate, "rows": rows})
        if table:
            for title, sum_of in _groups(rows).items():
                table.row(f"sum of {title}", "", *_numbers(sum_of), "", *([""] if solvers else []))
        else:
            summarise(rows)
    return {**where, "bytes_per_us": rate, "rows": rows}


def summarise(rows: list[dict]) -> None:
    """A line a model: how long all its calls take, ours and torch's, and the layer where ours is worst beside torch's."""
    table = Table([("model", 56), ("us", 9), ("torch us", 9), ("ratio", 6), ("worst", 6), ("layer", 70), ("wrong", 5)])
    for title, of_group in _groups(rows).items():
        ours, theirs = (sum(row[name] * row["calls"] for row in of_group) for name in ("us", "torch"))
        worst = max(of_group, key=lambda row: row["us"] / row["torch"])
        ratio, wrong = worst["us"] / worst["torch"], sum(row["wrong"] is not None for row in of_group)
        table.row(title, f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}", f"{ratio:.2f}", worst["case"], wrong)


def _groups(rows: list[dict]) -> dict[str, list[dict]]:
    """The rows that differ in their sizes only: of a model, batch, dtype and layout."""
    groups: dict[str, list[dict]] = {}
    for row in rows:
        image, _, dtype, layout = row["case"].split(" ")[:4]
        groups.setdefault(f"{row['model']}, batch {image.split('x')[0]}, {dtype}, {layout}", []).append(row)
    return groups


def _numbers(rows: list[dict]) -> tuple[str, ...]:
    weights = [row.get("calls", 1) if len(rows) > 1 else 1 for row in rows]
    ours, theirs, floor, flops = (
        sum(row[name] * weight for row, weight in zip(rows, weights, strict=True)) for name in ("us", "torch", "floor", "flops")
    )
    ratio, share = theirs / ours, 100 * floor / ours
    return f"{ours:.1f}", f"{flops / ours / 1e6:.3g}", f"{theirs:.1f}", f"{ratio:.2f}x", f"{floor:.1f}", f"{share:.0f} %"
