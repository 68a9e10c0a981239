"""The algorithms of conv3d by name, and which of them a call gets: the first of those that serve it.

The kernels' own host code says what each serves, in the order of its table (csrc/kernels/conv3d/common/algorithms.cu).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..conv2d import router as conv2d_router
from ..conv2d.router import CPU_METHOD, WORKSPACE_LIMIT

METHODS = {
    "depthwise": "a group for each channel of x: rows of x by filters in LDS, 16 bytes of channels or of columns at once",
    "few_filters_by_warpgroups": "the same as few_filters on sm_90, by warpgroups, x brought to LDS by TMA; 16-bit types",
    "few_filters": "matrix cores, the taps of a frame beside each other among up to 8 filters: x is read once; 16-bit types",
    "warpgroup_gemm": "the matrix cores of sm_90 by warpgroups, operands brought to them by TMA, frame by frame; 16-bit types",
    "relaid_warpgroup_gemm": "x and its cache repacked to channels-last memory first, then warpgroup_gemm; 16-bit types",
    "implicit_gemm": "matrix cores, or FMAs in float32 where they have none, on tiles of a frame's pixels by filters",
    "naive": "a thread per output: any shape, strides, groups, dilation, padding mode and dtype",
}
"""The algorithms of GPUs, the fastest first, for tests, benchmarks and documentation. CPU tensors have "torch" alone."""

VARIABLE = "HIPCONV_CONV3D_ALGORITHM"

__all__ = ["CPU_METHOD", "METHODS", "VARIABLE", "WORKSPACE_LIMIT", "requested"]


def requested(keyword: str, variable: str | None, here: Sequence[str]) -> tuple[str, str]:
    """(the algorithm asked for or "auto", what asked for it), as conv2d's router has it."""
    return conv2d_router.requested(keyword, variable, here, known=(*METHODS, CPU_METHOD), name=VARIABLE)
