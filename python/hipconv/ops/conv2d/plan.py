"""This is what a conv2d call would run, without running it."""

from __future__ import annotations

import dataclasses
import math
import os

import torch
from torch import Tensor

from ...arguments import require_dense, wrong_kind
from ..plans import distinct_bytes, module_for, si, target_of, that_runs_here
from . import calls, geometry, precision, router
from .calls import Request
from .geometry import Ints, Padding, kind_of
from .packing import PackedFilters


@dataclasses.dataclass(frozen=True)
class Conv2dPlan:
    """This is what a call launches, and what it has to move and compute. `print` it for a summary."""

    target: str
    """The backend and architecture, e.g. "rocm gfx942"."""
    algorithm: str
    """Its name in `router.METHODS`, "torch" on the CPU, or "none" where the result has no elements."""
    form: str
    """The algorithm with its tile, output pixels x filters, and the parts of each sum: "implicit_gemm_128x128_split4"."""
    layout: str
    """"nhwc" or "nchw": of x, and of a new result."""
    chosen_by: str
    """"auto", "algorithm" (the keyword), "HIPCONV_CONV2D_ALGORITHM", or "the empty result"."""
    why: str
    """Return what the choice among the algorithms and tiles rests on."""
    serves: tuple[str, ...]
    """Every algorithm that can serve the call, the fastest first."""
    bytes_moved: int
    """Each distinct input element read once and each output element written once, weight, bias and residual included."""
    flops: int
    """Two a product; bias, residual and activation are not counted."""
    workspace: int
    """Bytes of temporary memory, from torch's allocator, of a call whose filters are kept packed."""
    packed_filters: int
    """Bytes of the filters in the order of the algorithm, which calls keep; 0 where it reads them as they are. A call that
    has to pack them itself (docs/conv2d.md says which do) has them in its workspace, too.
    """
    float32_precision: str | None
    """The precision of products of float32: "ieee", or "tf32" if they are made of factors rounded to it. None of others,
    and on the CPU.
    """

    @property
    def floor(self) -> str:
        """Return what bounds the time from below."""
        return f"the longer of {si(self.flops)}FLOP at the card's rate and a copy kernel's time for {si(self.bytes_moved)}B"

    def __str__(self) -> str:
        kept = f", packed filters {si(self.packed_filters)}B, kept" if self.packed_filters else ""
        rounded = ", float32 rounded to TF32" if self.float32_precision == "tf32" else ""
        return (
            f"{self.form} on {self.target} in {self.layout}{rounded}, chosen by {self.chosen_by} ({self.why}); algorithms "
            f"that serve: {', '.join(self.serves) or 'none'}; workspace {si(self.workspace)}B{kept}; "
            f"{self.flops / max(1, self.bytes_moved):.1f} FLOP a "
            f"byte; floor: {self.floor}"
        )


def conv2d_plan(
    x: Tensor,
    weight: Tensor | PackedFilters,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    activation: str = "none",
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    padding_mode: str = "zeros",
    algorithm: str = "auto",
    out: Tensor | None = None,
    workspace_limit: int = router.WORKSPACE_LIMIT,
    float32_precision: str | None = None,
    target: str | None = None,
) -> Conv2dPlan:
    """The plan of ``conv2d`` with the same arguments. No memory of a tensor is read or written.

    The choice depends on nothing but shapes, strides, dtypes, the alignment of addresses, and on what the target is.

    Args:
        x, weight, bias, residual, out: as for a call. Tensors on the meta device (``torch.empty(..., device="meta")``) take no
            memory; their storage counts as aligned to 16 bytes.
        float32_precision: as for a call. None is what torch's settings say, for plans of NVIDIA's cards on any machine.
        target: an architecture: "gfx942", "sm_90" …, or "cpu". By default that of x's device and, for a meta tensor, that of
            the first GPU, or the CPU where there is none. It need not be in this machine: plans for other GPUs come from the
            same kernels' host code, which the first of them builds for this host, once, with a C++ compiler, and says so on
            stderr.

    Raises:
        TypeError, ValueError: what the call would raise about kinds, shapes, dtypes and names. Devices and overlaps are not
            looked at.
        hipconv.errors.JitError: the module had to be built and could not be.
    """
    if isinstance(weight, PackedFilters):
        weight = weight.weight
    try:
        kernel = geometry.kernel_size(weight.shape)
    except (AttributeError, ValueError) as error:
        raise wrong_kind(conv2d_plan, locals()) or error from None
    o = geometry.options(kernel, stride, padding, dilation, groups, padding_mode, activation)
    groups, workspace_limit = o.groups, geometry.check_choices(algorithm, workspace_limit)
    precision.check(float32_precision)
    serves: tuple[str, ...]
    try:
        require_dense(x=x, weight=weight, bias=bias, residual=residual, out=out)
        if x.dim() == 3:
            x, residual, out = x.unsqueeze(0), *(None if tensor is None else tensor.unsqueeze(0) for tensor in (residual, out))
        planned_for = target_of(x, target)
        asked = float32_precision or (precision.of_torch() if planned_for.backend == "cuda" else "ieee")
        request = Request(out_dtype, algorithm, os.environ.get(router.VARIABLE), workspace_limit, asked)
        products: str | None = None
        shape = geometry.check(x, weight, bias, residual, out, out_dtype, o)
        if planned_for.backend == "cpu":
            chosen_by = router.requested(algorithm, request.variable, [router.CPU_METHOD])[1]
            name = form = router.CPU_METHOD
            why, serves, workspace, packed_filters = "CPU tensors are torch's", (name,), 0, 0
        else:
            kinds = [None if tensor is None else kind_of(tensor) for tensor in (bias, residual, out)]
            card = calls.card_of(x.device) if target is None and x.is_cuda else calls.card_named(planned_for.arch)
            module_for("conv2d", planned_for)  # here, where it is known what for
            prepared = calls.prepare(that_runs_here(planned_for), card, kind_of(x), kind_of(weight), *kinds, o, request)
            choice = prepared.choice
            form = choice.algorithm + (f"_{choice.tile[0]}x{choice.tile[1]}" if any(choice.tile) else "")
            form += f"_split{choice.split_k}" if choice.split_k > 1 else ""
            plain = choice.algorithm in router.ALGORITHMS and router.ALGORITHMS[choice.algorithm].plain  # empty calls have none
            products = None if x.dtype != torch.float32 else "ieee" if plain else prepared.problem.float32_precision
            name, why, chosen_by = choice.algorithm, choice.why, prepared.chosen_by
            serves, workspace, packed_filters = prepared.serving, prepared.workspace, 0
            if prepared.packing is not None and prepared.other_workspace is not None:
                workspace, packed_filters = prepared.other_workspace, prepared.packing.size
    except Exception as error:
        raise wrong_kind(conv2d_plan, locals()) or error from None
    result_dtype = (out_dtype or x.dtype) if out is None else out.dtype
    inputs = [tensor for tensor in (x, weight, bias, residual) if tensor is not None]
    return Conv2dPlan(
        target=str(planned_for),
        algorithm=name,
        form=form,
        layout="nhwc" if geometry.is_channels_last(x, weight) else "nchw",
        chosen_by=chosen_by,
        why=why,
        serves=serves,
        bytes_moved=math.prod(shape) * result_dtype.itemsize + sum(distinct_bytes(tensor) for tensor in inputs),
        flops=2 * math.prod(shape) * math.prod(weight.shape[1:]),
        workspace=workspace,
        packed_filters=packed_filters,
        float32_precision=products,
    )
