"""Every launcher on tensors near the limits of sizes and memory: no launch exceeds what HIP's grids and blocks can have.

A dimension has fewer than 2^32 work-items on AMD, grid times block; NVIDIA ends at 2^31 - 1 blocks in x and 65,535 in y and z;
a block has 1024 threads. simt refuses other launches (`launchable` in csrc/compat/simt/simt/runtime.cpp), and here it only
checks them, so that the tensors may be larger than the machine's memory: nothing touches them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from support.backends import environment
from support.tensors import LAYOUTS, untouched
import hipconv
from hipconv import jit, serving, targets

MOST = 2**31 - 1  # of an int32 size
BYTES = 2**40  # of a tensor at most; addresses end at 2^47


@pytest.fixture(params=["64", "32"], autouse=True)
def wave(request: pytest.FixtureRequest) -> Iterator[None]:
    with environment(HIPCONV_BACKEND="simt", HIPCONV_SIMT_WAVE=request.param, HIPCONV_SIMT_ORDER="none"):
        yield


def module(name: str):
    return jit.module(name, targets.of(torch.device("cpu")))


def rows(layout: str, shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """(batch, dim, seqlen), dense and untouched."""
    _, dim, seqlen = shape
    return untouched(shape, (dim * seqlen, seqlen, 1) if layout == "channel_first" else (dim * seqlen, 1, dim), dtype)


ROWS = [  # batch, dim, seqlen: each as large as it gets, alone and with others that do not divide anything
    (MOST, 1, 1),
    (1, MOST, 1),
    (1, 1, MOST),
    (MOST // 8, 8, 9),
    (3, MOST // 8, 8),
    (8, 24, MOST // 64),
    (70_001, 4096, 24),
    (65_536, 65_536, 8),
    (3, 262_147, 65_537),
    (131_075, 129, 4_099),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_rows(shape: tuple[int, int, int], dtype: torch.dtype, layout: str) -> None:
    """Forward, and where a row may have a state or sequences of its own, what makes the other outputs; backward."""
    x, out = rows(layout, shape, dtype), rows(layout, shape, dtype)
    batch, dim, seqlen = shape
    for width in (2, 4, 9):
        weight = untouched((dim, width), (width, 1), dtype)
        for kernel in hipconv.causal_conv1d_plan(x, weight, activation="silu", out=out).serves:
            hipconv.causal_conv1d_fwd(out, x, weight, None, True, kernel=kernel)
    weight = untouched((dim, 4), (4, 1), dtype)
    state = [untouched((batch, dim, 3), (3 * dim, 1, dim), dtype) for _ in range(2)]
    seq_idx = untouched((batch, seqlen), (seqlen, 1), torch.int32)
    forward, backward = module("causal_conv1d").causal_conv1d_rows_fwd, module("causal_conv1d_bwd")
    forward(out, state[0], x, weight, None, None, state[1], True, 0)
    forward(out, None, x, weight, None, seq_idx, None, True, 0)
    ran = 0
    for kernel in backward.causal_conv1d_bwd_kernels():
        for given in ((None, None), (seq_idx, None), (None, state[0])):
            try:
                backward.causal_conv1d_bwd(x, weight, None, x, *given, None, out, False, True, kernel, 0)
                ran += 1
            except ValueError as error:
                assert f"got '{kernel}', which serves" in str(error)
            except RuntimeError as error:
                assert "can't allocate memory" in str(error), error  # its own workspace, which it does touch
                ran += 1
    assert ran >= 3  # naive, at least


@pytest.mark.parametrize("columns_inside", [True, False])
@pytest.mark.parametrize(
    ("batch", "dim", "tokens"),
    [(MOST // 8, 8, 1), (16_777_300, 64, 1), (3, MOST // 8, 1), (70_001, 65_544, 1), (9_000_001, 64, 3), (5, 64, 4_000_001)],
)
def test_decode(batch: int, dim: int, tokens: int, columns_inside: bool) -> None:
    x = untouched((batch, dim, tokens), (dim * tokens, 1, dim), torch.bfloat16)
    out = untouched((batch, dim, tokens), (dim * tokens, 1, dim), torch.bfloat16)
    for width in (2, 4, 7):
        states = untouched(
            (batch, dim, width - 1), (dim * (width - 1), *((width - 1, 1) if columns_inside else (1, dim))), torch.bfloat16
        )
        weight = untouched((dim, width), (width, 1), torch.bfloat16)
        for kernel in ("auto", *module("causal_conv1d_update").causal_conv1d_update_kernels()):
            try:
                serving.causal_conv1d_update(x, states, weight, None, "silu", out=out, kernel=kernel)
            except ValueError as error:
                assert kernel != "auto" and f"'{kernel}'" in str(error), error


@pytest.mark.parametrize(
    ("sequences", "dim", "tokens"),
    [
        (1, 8, 2**30),
        (2**30, 1, 2**30),
        (3, 65_544, 16_777_259),
        (16_777_259, 64, 16_777_259),
        (1, MOST // 8, 8),
        (70_001, 4104, 1_000_003),
    ],
)
def test_prefill(sequences: int, dim: int, tokens: int) -> None:
    starts = untouched((sequences + 1,), (1,), torch.int32)
    packed = module("causal_conv1d_varlen")
    for dtype, width in ((torch.bfloat16, 4), (torch.float32, 4), (torch.bfloat16, 9)):
        x, out = (untouched((dim, tokens), (1, dim), dtype) for _ in range(2))
        states = untouched((sequences, dim, width - 1), (dim * (width - 1), 1, dim), dtype)
        weight = untouched((dim, width), (width, 1), dtype)
        # The others copy x, on the host.
        in_place = set(packed.causal_conv1d_varlen_in_place_kernels()) - set(packed.causal_conv1d_varlen_kernels())
        for result, kernels in ((out, ("auto", *packed.causal_conv1d_varlen_kernels())), (x, sorted(in_place))):
            for kernel in kernels:
                try:
                    serving.causal_conv1d_fn(x, weight, None, states, starts, out=result, kernel=kernel)
                except ValueError as error:
                    assert kernel != "auto" and f"'{kernel}'" in str(error), error


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(
    ("x", "weight"),
    [
        ((1_000_003, 8, 3, 3), (8, 8, 3, 3)),
        ((1, 64, 32_771, 32_771), (64, 64, 3, 3)),
        ((1, 8, 5, 5), (MOST // 8, 8, 1, 1)),
        ((3, 65_544, 65, 65), (64, 65_544, 1, 1)),
        ((70_001, 3, 224, 224), (64, 3, 7, 7)),
        ((131_075, 64, 56, 56), (64, 64, 1, 1)),
        ((1_000_003, 8, 3, 3), (8, 1, 3, 3)),
        ((1, 64, 32_771, 32_771), (64, 1, 7, 7)),
        ((3, 65_544, 65, 65), (65_544, 1, 5, 5)),
        ((70_001, 3, 224, 224), (3, 1, 9, 9)),
    ],
    ids=str,
)
def test_conv2d(x: tuple[int, ...], weight: tuple[int, ...], channels_last: bool) -> None:
    def image(shape: tuple[int, ...]) -> Tensor:
        _, c, h, w = shape
        return untouched(shape, (c * h * w, 1, w * c, c) if channels_last else (c * h * w, h * w, w, 1), torch.bfloat16)

    out = image((x[0], weight[0], *x[2:]))
    images, filters = image(x), image(weight)
    names = module("conv2d").conv2d_algorithms()
    for algorithm in ("auto", *names):
        try:
            hipconv.conv2d(images, filters, padding="same", groups=x[1] // weight[1], algorithm=algorithm, out=out)
        except ValueError as error:
            assert algorithm != "auto" and f"'{algorithm}'" in str(error), error


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(
    ("x", "weight"),
    [
        ((1, 64, 5, 32_771, 32_771), (64, 64, 3, 3, 3)),
        ((1_000_003, 8, 1, 3, 3), (8, 8, 1, 3, 3)),
        ((1, 8, 1_000_003, 5, 5), (8, 8, 3, 1, 1)),
        ((1, 65_544, 3, 65, 65), (65_544, 1, 3, 5, 5)),
        ((1, 8, 2, 5, 5), (MOST // 64, 8, 2, 1, 1)),
    ],
    ids=str,
)
def test_conv3d(x: tuple[int, ...], weight: tuple[int, ...], channels_last: bool) -> None:
    def volume(shape: tuple[int, ...]) -> Tensor:
        _, c, t, h, w = shape
        last, first = (t * h * w * c, 1, h * w * c, w * c, c), (c * t * h * w, t * h * w, h * w, w, 1)
        return untouched(shape, last if channels_last else first, torch.bfloat16)

    out = volume((x[0], weight[0], *x[2:]))
    volumes, filters = volume(x), volume(weight)
    saved = volume((*x[:2], weight[2] - 1, *x[3:])) if weight[2] > 1 else None
    for algorithm in ("auto", *module("conv3d").conv3d_algorithms()):
        try:
            hipconv.conv3d(
                volumes, filters, padding=(0, weight[3] // 2, weight[4] // 2), time_padding="zeros", groups=x[1] // weight[1],
                algorithm=algorithm, out=out, cache_out=saved,
            )  # fmt: skip
        except ValueError as error:
            assert algorithm != "auto" and f"'{algorithm}'" in str(error), error
