"""The forward's kernels for host memory: every length, alignment and instruction set, and threads."""

from __future__ import annotations

from collections.abc import Iterator
import itertools
from pathlib import Path
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
import torch.nn.functional as F

from conv1d.cases import Case, assert_matches, assert_pairs_match, run
from support.backends import EVERYTHING, WAYS, environment
from support.tensors import DTYPES, LAYOUTS, empty_as, mismatch, strided
import hipconv
from hipconv import jit, reference, reference_training, targets

fn: Any = hipconv.causal_conv1d_fn


@pytest.fixture
def cpu() -> Iterator[torch.device]:
    with environment(**WAYS["cpu"]):
        yield torch.device("cpu")


@pytest.mark.parametrize("width", [*range(1, 10), 20])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cpu_kernels_at_every_length_and_alignment(cpu: torch.device, layout: str, width: int) -> None:
    """Vector tails, short rows, both edges of a piece and of a block; each case a view at an odd offset amid poison."""
    combinations = itertools.cycle(itertools.product(DTYPES.values(), DTYPES.values(), (True, False)))
    pairs: dict[tuple[str, torch.dtype], list[tuple[Tensor, Tensor]]] = {}
    for inner in [*range(1, 71), 511, 512, 513, 1025, 1300]:  # along vectors: tokens, or channels
        outer, offset, pitch = 1 + inner % 11, inner % 5, inner + inner % 3
        (dtype, weight_dtype, use_silu), has_bias = next(combinations), inner % 4 > 0
        sizes = (2, outer, inner) if layout == "channel_first" else (2, inner, outer)
        strides = (outer * pitch, pitch, 1) if layout == "channel_first" else (outer * pitch, 1, pitch)
        x, _ = strided(sizes, strides, offset, dtype, cpu, torch.nan)
        x.copy_(torch.randn(sizes))
        weight = (torch.randn(sizes[1], width) / width**0.5).to(weight_dtype)
        bias = torch.randn(sizes[1]).to(weight_dtype) if has_bias else None
        for kernel in ("simd", "openmp"):
            out, buffer = strided(sizes, strides, offset + 1, dtype, cpu, 42.0)
            hipconv.causal_conv1d_fwd(out.fill_(torch.nan), x, weight, bias, use_silu, kernel=kernel)
            expected = reference.causal_conv1d(x, weight, bias, use_silu)
            pairs.setdefault((kernel, dtype), []).append((out.clone().flatten(), expected.flatten()))
            out.fill_(42.0)
            assert (buffer == 42.0).all(), "wrote outside out"
    assert_pairs_match(pairs.values())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1, 40000), (1, 3, 20001), (1, 2000, 33), (2, 5000, 4), (1, 16385, 3)])
def test_few_rows_are_split_among_threads(cpu: torch.device, shape: tuple[int, int, int], layout: str) -> None:
    x, weight, bias, _ = Case(*shape, 4, torch.float32, torch.float16, layout=layout).inputs(cpu)
    split = run(x, weight, bias, True, kernel="simd")
    assert_matches(split, x, weight, bias, True)
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert torch.equal(run(x, weight, bias, True, kernel="simd"), split)
    finally:
        torch.set_num_threads(threads)


def _places(sizes: tuple[int, int, int], dtype: torch.dtype, fill: float) -> Iterator[tuple[str, Tensor, Tensor]]:
    """A view of these sizes in each of many orders and strides, and the buffer that it lies in."""
    batch, dim, seqlen = sizes
    for name, strides in {
        "channel-first": (dim * seqlen, seqlen, 1),
        "channel-last": (dim * seqlen, 1, dim),
        "tokens in twos": (dim * 2 * seqlen, 2 * seqlen, 2),
        "channels in threes": (3 * dim * seqlen, 3, 3 * dim),
        "tokens apart, channels in threes": (3 * dim * (seqlen + 5), 3 * (seqlen + 5), 3),
        "channels outermost": (seqlen, batch * seqlen + 1, 1),
        "batch innermost": (1, batch, batch * dim),
    }.items():
        yield name, *strided(sizes, strides, 3, dtype, torch.device("cpu"), fill)


@pytest.mark.parametrize("dim, seqlen", [(3, 1100), (40, 37), (100, 300), (530, 5)])
@pytest.mark.parametrize("width", [1, 2, 4, 7, 9, 19, 40])
def test_bits_are_the_same_whatever_the_strides(cpu: torch.device, width: int, dim: int, seqlen: int) -> None:
    """Plain rows, and packed ones that continue from a state. The parameters are strided too."""
    for number, dtype in enumerate(DTYPES.values()):
        sizes, use_silu = (2, dim, seqlen), number > 0
        values, weight, bias = torch.randn(sizes).to(dtype), torch.randn(dim, width) / width**0.5, torch.randn(dim)
        state = torch.randn(2, dim, width - 1).to(dtype)
        ids = (torch.rand(2, seqlen) < 0.1).cumsum(-1, dtype=torch.int32) - (torch.rand(2, seqlen) < 0.05).int() * 100
        rows = {"activation": "silu" if use_silu else None, "seq_idx": ids, "initial_states": state if width > 1 else None}
        plain, packed = run(values, weight, bias, use_silu), fn(values, weight, bias, **rows)
        wide = [t.double() for t in (values, weight, bias)]
        for found, held in ((plain, (None, None)), (packed, (ids, state.double()))):  # sums of 40 taps round a little more
            expected = reference_training.causal_conv1d(wide[0], wide[1], wide[2], held[0], held[1], use_silu)[0]
            assert mismatch(found, expected, may_differ=0.003) is None
        apart = torch.randn(dim, 2 * width)[:, ::2].copy_(weight), torch.randn(3 * dim)[::3].copy_(bias)
        for (name, x, _), (to, out, buffer) in itertools.product(_places(sizes, dtype, torch.nan), _places(sizes, dtype, 42.0)):
            out.fill_(torch.nan)
            hipconv.causal_conv1d_fwd(out, x.copy_(values), *apart, use_silu)
            assert torch.equal(out, plain), (dtype, name, to)
            out.fill_(42.0)
            assert (buffer == 42.0).all(), "wrote outside out"
        for name, x, _ in _places(sizes, dtype, torch.nan):
            assert torch.equal(fn(x.copy_(values), weight, bias, **rows), packed), (dtype, name)


def test_infinite_weights_of_taps_that_see_nothing_are_left_out(cpu: torch.device) -> None:
    for width, layout, dim in itertools.product((2, 4, 8, 20), LAYOUTS, (3, 64)):
        weight = torch.full((dim, width), torch.inf)
        weight[:, -1] = 1.0  # a token is alone in its sequence
        x = empty_as(layout, (2, dim, 70), torch.float32, cpu).copy_(torch.randn(2, dim, 70))
        ids = torch.arange(70, dtype=torch.int32).expand(2, 70)
        assert torch.equal(fn(x, weight, seq_idx=ids), x)
        assert torch.equal(run(x, weight)[..., 0], x[..., 0])


def check_isa(isa: str) -> None:
    """In a process of its own: the module built for another instruction set than the host's best."""
    module = jit.module("causal_conv1d", targets.parse(isa))
    for dtype, layout, width in itertools.product(DTYPES.values(), LAYOUTS, (1, 3, 4, 8)):
        x, weight, bias, out = Case(2, 45, 77, width, dtype, dtype, layout=layout).inputs(torch.device("cpu"))
        for kernel in ("simd", "openmp"):
            module.causal_conv1d_fwd(out.fill_(torch.nan), x, weight, bias, True, kernel, 0)
            assert_matches(out, x, weight, bias, True)
        module.causal_conv1d_fwd(out, x, weight, bias, True, "simd", 0)
        for (_, there, _), (_, to, _) in itertools.product(*(_places((2, 45, 77), dtype, torch.nan) for _ in range(2))):
            module.causal_conv1d_fwd(to, there.copy_(x), weight, bias, True, "simd", 0)
            assert torch.equal(to, out)
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        x = bits.view(dtype)[None, None]
        out = torch.empty_like(x)
        module.causal_conv1d_fwd(out, x, torch.ones(1, 1), None, False, "simd", 0)
        assert torch.equal(out.isnan(), x.isnan())
        assert torch.equal(out[~x.isnan()], x[~x.isnan()])
    ends = torch.tensor([-torch.inf, -1e30, -100.0, -87.0, 87.0, 100.0, 1e30, torch.inf, torch.nan])[None, None]
    out = torch.empty_like(ends)
    module.causal_conv1d_fwd(out, ends, torch.ones(1, 1), None, True, "simd", 0)
    assert torch.allclose(out.double(), F.silu(ends.double()), rtol=1e-6, atol=1e-30, equal_nan=True)


_ISAS = targets._usable_isas()  # the best first


@pytest.mark.parametrize("isa", [isa for isa in _ISAS if isa in (_ISAS[0], "avx2") or EVERYTHING])
def test_every_instruction_set_of_the_host(isa: str) -> None:
    program = f"from conv1d.test_forward_cpu import check_isa; check_isa({isa!r})"
    done = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
