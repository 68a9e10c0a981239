"""Shapes that AMD's users met naive kernels, im2col or aborts with: on matrix cores here, or, in float32 and
depthwise, on kernels of their own; and right.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from conv3d.cases import Case, mismatch_conv3d
from support.backends import WAYS, device_of, environment, on_kernels
import hipconv

pytestmark = pytest.mark.usefixtures("one_thread")
LINES = [
    line.split() for line in (Path(__file__).parent / "amd_issues.txt").read_text().splitlines() if not line.startswith("#")
]
ISSUES = {name: rest for name, *rest in LINES}
CARDS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1201")


def case_of(words: list[str]) -> Case:
    (N, C, T, H, W), (K, *kernel) = ([int(number) for number in word.split("x")] for word in words[:2])
    said = {word[0]: word[1:] for word in words[2:]}
    padding = tuple(int(side) for side in said.get("p", "0,0,0").split(","))
    return Case(N, C, T, H, W, K, (kernel[0], kernel[1], kernel[2]), padding=padding, groups=int(said.get("g", 1)))


@pytest.mark.parametrize("name", ISSUES)
def test_an_issues_shape_is_on_matrix_cores_and_right(name: str) -> None:
    case = case_of(ISSUES[name])
    volume, filters = (case.N, case.C, case.T, case.H, case.W), (case.K, case.C // case.groups, *case.kernel)
    for layout, dtype in itertools.product((torch.contiguous_format, torch.channels_last_3d), (torch.bfloat16, torch.float32)):
        x, weight = (
            torch.empty(shape, dtype=dtype, device="meta").contiguous(memory_format=layout) for shape in (volume, filters)
        )
        for card in CARDS:
            plan = hipconv.conv3d_plan(x, weight, None, 1, case.padding, 1, case.groups, target=card)
            few = case.K <= 3 and layout == torch.channels_last_3d and dtype == torch.bfloat16
            expected = "few_filters" if few else "depthwise" if case.groups == case.C else "implicit_gemm"
            assert plan.algorithm == expected, f"{card}: {plan}"
    small = case.reduced(300_000)
    while small.groups > 8:
        small = small._replace(C=small.C // 2, K=small.K // 2, groups=small.groups // 2)
    for backend in on_kernels():
        with environment(**WAYS["simt-wave64"]):
            arguments = (case if backend == "gpu" and case.macs < 2e11 else small).inputs(device_of(backend))
            for algorithm in ("depthwise", "few_filters", "implicit_gemm"):
                if algorithm in hipconv.conv3d_plan(**arguments).serves:
                    assert mismatch_conv3d(hipconv.conv3d(**arguments, algorithm=algorithm), arguments) is None
