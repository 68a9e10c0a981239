"""This shows what a conv3d call would run, and why."""

from __future__ import annotations

import dataclasses
import math
import os

import torch
from torch import Tensor

from ...arguments import require_dense, wrong_kind
from ..conv2d import calls as conv2d_calls
from ..conv2d import precision
from ..conv2d.geometry import check_choices, kind_of
from ..plans import distinct_bytes, module_for, si, target_of, that_runs_here
from . import calls, geometry, router
from .calls import Request
from .geometry import Ints, Padding, Tensors


@dataclasses.dataclass(frozen=True)
class Conv3dPlan:
    """This is what a call launches, and what it has to move and compute. `print` it for a summary."""

    target: str
    """The backend and architecture, e.g. "rocm gfx942"."""
    algorithm: str
    """Its name in `router.METHODS`, "torch" on the CPU, or "none" where the result has no elements."""
    form: str
    """The algorithm with its tile, output pixels x filters: "implicit_gemm_128x96"."""
    layout: str
    """"ndhwc" or "ncdhw": of x, and of a new result."""
    chosen_by: str
    """"auto", "algorithm" (the keyword), "HIPCONV_CONV3D_ALGORITHM", or "the empty result"."""
    serves: tuple[str, ...]
    """Every algorithm that can serve the call, the fastest first."""
    bytes_moved: int
    """Each distinct input element read once and each output element written once: weight, bias,
    residual and caches included.
    """
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
            f"{self.form} on {self.target} in {self.layout}{rounded}, chosen by {self.chosen_by}; algorithms that serve: "
            f"{', '.join(self.serves) or 'none'}; workspace {si(self.workspace)}B{kept}; "
            f"{self.flops / max(1, self.bytes_moved):.1f} FLOP a "
            f"byte; floor: {self.floor}"
        )


def conv3d_plan(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    *,
    cache: Tensor | None = None,
    cache_out: Tensor | None = None,
    time_padding: str | None = None,
    padding_mode: str = "zeros",
    activation: str = "none",
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    algorithm: str = "auto",
    out: Tensor | None = None,
    workspace_limit: int = router.WORKSPACE_LIMIT,
    float32_precision: str | None = None,
    target: str | None = None,
) -> Conv3dPlan:
    """The plan of ``conv3d`` with the same arguments. No memory of a tensor is read or written.

    The choice depends on nothing but shapes, strides, dtypes, the alignment of addresses, and on what the target is.

    Args:
        x, weight, bias, residual, cache, cache_out, out: as for a call. Tensors on the meta device (``torch.empty(...,
            device="meta")``) take no memory; their storage counts as aligned to 16 bytes.
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
    try:
        kernel = geometry.kernel_size(weight.shape)
    except (AttributeError, ValueError) as error:
        raise wrong_kind(conv3d_plan, locals()) or error from None
    o = geometry.options(kernel, stride, padding, dilation, groups, time_padding, padding_mode, activation)
    groups, workspace_limit = o.groups, check_choices(algorithm, workspace_limit)
    precision.check(float32_precision)
    serves: tuple[str, ...]
    try:
        t = Tensors(x, weight, bias, residual, cache, out, cache_out)
        require_dense(**dict(zip(Tensors._fields, t, strict=True)))
        if x.dim() == 4:
            t = Tensors(
                *(None if v is None else v if n in ("weight", "bias") else v[None] for n, v in zip(t._fields, t, strict=True))
            )
            x = x[None]
        planned_for = target_of(x, target)
        asked = float32_precision or (precision.of_torch() if planned_for.backend == "cuda" else "ieee")
        request = Request(out_dtype, algorithm, os.environ.get(router.VARIABLE), workspace_limit, asked)
        products: str | None = None
        shape = geometry.check(t, out_dtype, o)
        if planned_for.backend == "cpu":
            chosen_by = router.requested(algorithm, request.variable, [router.CPU_METHOD])[1]
            name = form = router.CPU_METHOD
            serves, workspace, packed_filters = (name,), 0, 0
        else:
            card = conv2d_calls.card_of(x.device) if target is None and x.is_cuda else conv2d_calls.card_named(planned_for.arch)
            module_for("conv3d", planned_for)  # here, where it is known what for
            kinds = Tensors(*(None if tensor is None else kind_of(tensor) for tensor in t))
            prepared = calls.prepare(that_runs_here(planned_for), card, kinds, o, request)
            name, form, chosen_by = prepared.algorithm, prepared.form, prepared.chosen_by
            serves, workspace, packed_filters = prepared.serving, prepared.workspace, 0
            products = prepared.float32_precision if x.dtype == torch.float32 else None
            if prepared.packing is not None and prepared.other_workspace is not None:
                workspace, packed_filters = prepared.other_workspace, prepared.packing.size
    except Exception as error:
        raise wrong_kind(conv3d_plan, locals()) or error from None
    result_dtype = (out_dtype or x.dtype) if out is None else out.dtype
    moved = sum(distinct_bytes(tensor) for tensor in (x, weight, bias, residual, cache, cache_out) if tensor is not None)
    return Conv3dPlan(
        target=str(planned_for),
        algorithm=name,
        form=form,
        layout="ndhwc" if geometry.is_channels_last(x, weight) else "ncdhw",
        chosen_by=chosen_by,
        serves=serves,
        bytes_moved=math.prod(shape) * result_dtype.itemsize + moved,
        flops=2 * math.prod(shape) * math.prod(weight.shape[1:]),
        workspace=workspace,
        packed_filters=packed_filters,
        float32_precision=products,
    )
