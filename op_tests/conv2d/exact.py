"""Convolutions on simt whose sums are exact in any order: small integers, by every matrix unit, in any layout.

Tiles and splits are forced through the binding. What lies around x and the filters is NaN, as is the workspace before a call,
and what lies around the output must not change.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
import contextlib
import random
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
import torch.nn.functional as F

from support.backends import EVERYTHING, environment
from support.cli import list_of
from hipconv import jit, targets

# Every matrix unit, each in another order of threads. (f32 goes without one on all but the first.)
UNITS = {
    "mfma": {"HIPCONV_SIMT_WAVE": "64", "HIPCONV_SIMT_ORDER": "ascending"},
    "mma_sync": {"HIPCONV_SIMT_WAVE": "32", "HIPCONV_SIMT_ORDER": "shuffled:3"},
    "wmma11": {"HIPCONV_SIMT_WAVE": "32", "HIPCONV_SIMT_ORDER": "descending"},
    "wmma12": {"HIPCONV_SIMT_WAVE": "32", "HIPCONV_SIMT_ORDER": "shuffled:1"},
}
# A build of conv2d for simt takes half a minute: those of RDNA's units are nightly. In every run simt/test_simt.py multiplies
# by them.
UNITS_OF_A_RUN = [unit for unit in UNITS if EVERYTHING or not unit.startswith("wmma")]
HALVES = (torch.bfloat16, torch.float16)
DTYPES = (*HALVES, torch.float32)
MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


@contextlib.contextmanager
def running_on(unit: str) -> Iterator[Any]:
    """The conv2d module for a unit, while CPU tensors are sent to it and new memory is NaN."""
    with environment(HIPCONV_BACKEND="simt", HIPCONV_SIMT_MMA=unit, **UNITS[unit]):
        # This fills what torch.empty gives: a workspace of bytes with 0xff, which is NaN in any float.
        torch.use_deterministic_algorithms(True)
        try:
            yield jit.module("conv2d", targets.of(torch.device("cpu")))
        finally:
            torch.use_deterministic_algorithms(False)


def arch_here() -> str:
    """The architecture that CPU tensors are sent to."""
    return targets.of(torch.device("cpu")).arch


class Case(NamedTuple):
    shape: tuple[int, int, int, int]  # N C H W
    filters: tuple[int, int, int]  # K R S
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)  # top, bottom, left, right
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    mode: str = "zeros"
    dtype: torch.dtype = torch.bfloat16
    x_layout: str = "nhwc"  # nhwc, nchw, nchw0: without gaps, or nhwc1: of odd strides, so that nothing is aligned
    weight_layout: str = "krsc"  # krsc, kcrs, kcrs0: without gaps, or krsc1
    out_layout: str = "nhwc"
    out_dtype: torch.dtype | None = None
    bias: bool = False
    residual: bool = False
    activation: str = "none"
    tile: tuple[int, int] = (64, 64)
    split_k: int = 1
    algorithm: str = "implicit_gemm"
    float32_precision: str = "ieee"

    @property
    def out_size(self) -> tuple[int, int]:
        top, bottom, left, right = self.padding
        sizes = zip(self.shape[2:], (top + bottom, left + right), self.filters[1:], self.stride, self.dilation, strict=True)
        height, width = ((size + pad - dilation * (taps - 1) - 1) // stride + 1 for size, pad, taps, stride, dilation in sizes)
        return height, width


def surrounded(shape: tuple[int, ...], layout: str, dtype: torch.dtype, fill: float) -> tuple[Tensor, Tensor]:
    """A view inside a larger tensor of `fill`, and that tensor; 16-byte aligned where the shape allows,
    or by odd strides nowhere.
    """
    a, b, c, d = shape
    if layout == "nchw0":  # images without gaps
        memory = torch.full((a * b * c * d + 16,), fill, dtype=dtype)
        return memory[8:-8].view(shape), memory
    if layout in ("nchw", "kcrs"):
        whole = torch.full((a + 2, b + 2, c + 1, d + 8), fill, dtype=dtype)
        return whole[1:-1, 1:-1, :-1, 8:], whole
    margin = 7 if layout.endswith("1") else 8
    whole = torch.full((a + 2, c + 1, d + 1, b + margin), fill, dtype=dtype)
    return whole[1:-1, :-1, :-1, margin:].permute(0, 3, 1, 2), whole


def integers(shape: tuple[int, ...], layout: str, dtype: torch.dtype, seed: int) -> Tensor:
    view, _ = surrounded(shape, layout, dtype, float("nan"))
    view.copy_(torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed)))
    return view


def filters_of(case: Case) -> Tensor:
    """krsc without a margin between the taps, as torch makes channels_last filters: they can be read in place."""
    k, r, s = case.filters
    shape = (k, case.shape[1] // case.groups, r, s)
    values = integers(shape, "kcrs", case.dtype, 2)
    if case.weight_layout == "kcrs":
        return values
    if case.weight_layout == "kcrs0":
        return values.contiguous()
    offset = 8 if case.weight_layout == "krsc" else 7
    memory = torch.full((values.numel() + 16,), float("nan"), dtype=case.dtype)
    view = memory[offset : offset + values.numel()].view(k, r, s, shape[1]).permute(0, 3, 1, 2)
    return view.copy_(values)


def call_of(module: Any, case: Case) -> Any:
    return module.Call(
        list(case.stride),
        list(case.padding),
        list(case.dilation),
        case.groups,
        case.mode,
        case.activation,
        case.float32_precision,
        list(case.out_size),
        case.out_dtype or case.dtype,
        False,
        case.algorithm,
        arch_here(),
        [*case.tile, case.split_k],
    )


def run(module: Any, case: Case, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return what the kernel makes of a case, and the exact result."""
    k = case.filters[0]
    x, weight = integers(case.shape, case.x_layout, case.dtype, seed), filters_of(case)
    bias = torch.randint(-3, 4, (k,), generator=torch.Generator().manual_seed(3)).to(case.dtype) if case.bias else None
    top, bottom, left, right = case.padding
    padded = F.pad(x.double(), (left, right, top, bottom), mode=MODES[case.mode])
    bias64 = None if bias is None else bias.double()
    expected = F.conv2d(padded, weight.double(), bias64, case.stride, 0, case.dilation, case.groups)
    assert tuple(expected.shape[2:]) == case.out_size
    residual = integers(tuple(expected.shape), case.out_layout, case.dtype, 4) if case.residual else None
    if residual is not None:
        expected = expected + residual.double()
    if case.activation == "relu":
        expected = expected.relu()

    out_dtype = case.out_dtype or case.dtype
    out, whole = surrounded(tuple(expected.shape), case.out_layout, out_dtype, 123.0)
    module.conv2d_out(out, x, weight, bias, residual, call_of(module, case), 0)
    values = out.clone()
    out.fill_(123.0)
    assert bool((whole == 123.0).all()), f"{case} wrote around its output"
    return values, expected.to(out_dtype)


def check(module: Any, case: Case, seed: int = 1) -> None:
    out, expected = run(module, case, seed)
    if not torch.equal(out, expected):
        wrong = (out != expected).nonzero()
        first = tuple(wrong[0].tolist())
        pytest.fail(
            f"{case}: {len(wrong)} of {out.numel()} are wrong, first at {first}: {out[first]}, expected {expected[first]}"
        )


def is_served(module: Any, case: Case, tile: tuple[int, int]) -> bool:
    x, weight = integers(case.shape, case.x_layout, case.dtype, 1), filters_of(case)
    out, _ = surrounded((case.shape[0], case.filters[0], *case.out_size), case.out_layout, case.out_dtype or case.dtype, 0.0)
    return module.conv2d_refusal(out, x, weight, None, None, call_of(module, case._replace(tile=tile))) is None


def check_random_cases(random_case: Callable[[random.Random], Case], module: Any, count: int, seed: int) -> None:
    """Check as many of the cases that `random_case` makes as the module serves."""
    rng, done = random.Random(seed), 0
    while done < count:
        case = random_case(rng)
        if is_served(module, case, case.tile):
            check(module, case, done)
            done += 1


def random_cases_command(description: str | None, check_random_cases: Callable[[Any, int, int], None]) -> None:
    """Check random cases, as many as --cases says, by every unit that --unit names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unit", type=list_of(str), default=list(UNITS), help=f"of {', '.join(UNITS)}; all by default")
    parser.add_argument("--cases", type=int, default=300, help="random cases a unit")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for unit in arguments.unit:
        with running_on(unit) as module:
            check_random_cases(module, arguments.cases, arguments.seed)
            print(f"{unit}: {arguments.cases} random cases are exact", flush=True)
