"""Run timm's models on hipconv's convolutions, by `hipconv.replace_conv2d`, beside torch's.

    python op_tests/run_timm_models.py                            # on a GPU, bf16, batch 32; without one small images on the
    CPU python op_tests/run_timm_models.py --model resnet50 --batch 1 --dtype float16

Weights are random, batch norms have random statistics. A model runs as it is, with batch norms folded and activations fused
into hipconv's convolutions, and, for comparison, as torch runs it with the same batch norms folded. Results are compared with
the model's own in float32. timm comes from PyPI into a temporary directory, unless this Python has it; timm needs torchvision,
which has to be there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
import contextlib
import copy
import importlib.util
from pathlib import Path
import statistics
import tempfile
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn.utils.fusion import fuse_conv_bn_eval

from peers.packages import provide
from support.cli import Table, choice_of, flattened, list_of
from support.tensors import DTYPES
import hipconv

FAMILIES = [
    "resnet50",
    "convnext_tiny",
    "efficientnet_b0",
    "mobilenetv3_large_100",
    "regnety_032",
    "densenet121",
    "resnext50_32x4d",
    "repvgg_b0",
    "cspdarknet53",
    "mixnet_s",
]
# Bounds are parts of the largest logit. TF32 is torch's default on GPUs.
BOUND = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 8e-2}


def run(name: str, batch: int, size: int, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """A model's largest error beside that of torch, what was replaced, and milliseconds in three ways."""
    import timm

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval().to(device)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    x = torch.randn(batch, 3, size, size, device=device)
    with torch.inference_mode(), _exactly():
        expected = model(x)
    model = _in_channels_last(model.to(dtype))
    x = x.to(dtype, memory_format=torch.channels_last)
    ways = {"torch": model, "folded": _folded(copy.deepcopy(model)), "ours": copy.deepcopy(model)}
    report = hipconv.replace_conv2d(ways["ours"], fold_batchnorm=True)
    errors = {}
    with torch.inference_mode():
        for way, each in ways.items():
            errors[way] = ((each(x).float() - expected).abs().max() / expected.abs().max()).item()
        times = _milliseconds({way: _captured(each, x) for way, each in ways.items()}, device)
    taken_in = sum(len(layer.taken_in) for layer in report.layers)
    return {"errors": errors, "ms": times, "replaced": report.replaced, "of": len(report.layers), "taken_in": taken_in}


@contextlib.contextmanager
def _exactly() -> Any:
    """Convolutions of float32 are ones of float32."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


def _in_channels_last(model: torch.nn.Module) -> torch.nn.Module:
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _folded(model: torch.nn.Module) -> torch.nn.Module:
    """The model with batch norms folded by torch's own function, where its graph shows them behind a convolution."""
    with contextlib.suppress(Exception):
        graph = fx.Tracer().trace(model)
        for node in graph.nodes:
            before = node.args[0] if node.op == "call_module" and node.args else None
            if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
                continue
            conv, norm = (model.get_submodule(str(n.target)) for n in (before, node))
            if type(conv) is torch.nn.Conv2d and type(norm) is torch.nn.BatchNorm2d:
                for target, module in ((before.target, fuse_conv_bn_eval(conv, norm)), (node.target, torch.nn.Identity())):
                    parent, _, own = str(target).rpartition(".")
                    setattr(model.get_submodule(parent), own, module)
    return _in_channels_last(model)


def _captured(model: torch.nn.Module, x: Tensor) -> Callable[[], object]:
    """A call of the model; on a GPU a graph of it, so that the host's time does not count."""
    if not x.is_cuda:
        return lambda: model(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    return graph.replay


def _milliseconds(calls: dict[str, Callable[[], object]], device: torch.device, rounds: int = 7) -> dict[str, float]:
    """Medians of calls that take turns; none on the CPU, where hipconv's conv2d is torch's."""
    if device.type != "cuda":
        return dict.fromkeys(calls, float("nan"))
    found: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(rounds):
        for way, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            found[way].append(begin.elapsed_time(end))
    return {way: statistics.median(times) for way, times in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=list_of(str), nargs="+", default=[FAMILIES])
    parser.add_argument("--dtype", type=choice_of(*DTYPES), default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--batch", type=int, default=32 if torch.cuda.is_available() else 1)
    parser.add_argument("--size", type=int, default=224 if torch.cuda.is_available() else 64, help="pixels a side")
    options = parser.parse_args()
    device, dtype = torch.device("cuda" if torch.cuda.is_available() else "cpu"), DTYPES[options.dtype]
    torch.backends.cudnn.benchmark = True
    wrong = 0
    with tempfile.TemporaryDirectory() as directory:
        if importlib.util.find_spec("timm") is None:
            provide(Path(directory), "timm")
        columns = [("model", 24), ("replaced", 9), ("taken in", 8), ("error", 9), ("torch's", 9)]
        table = Table([*columns, ("torch ms", 9), ("folded", 8), ("ours", 8), ("torch/ours", 10), ("folded/ours", 11)])
        for name in flattened(options.model):
            found = run(name, options.batch, options.size, dtype, device)
            errors, ms = found["errors"], found["ms"]
            wrong += not errors["ours"] <= max(BOUND[dtype], 2 * errors["torch"])
            figures = [f"{errors[way]:.1e}" for way in ("ours", "torch")] + [
                f"{ms[way]:.3f}" for way in ("torch", "folded", "ours")
            ]
            ratios = [f"{ms[way] / ms['ours']:.2f}" for way in ("torch", "folded")]
            table.row(name, f"{found['replaced']}/{found['of']}", found["taken_in"], *figures, *ratios)
    print(f"{wrong} models are wrong")
    return 1 if wrong else 0
