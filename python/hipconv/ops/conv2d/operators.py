"""The torch operators of conv2d: ``torch.ops.hipconv.conv2d``, functional and differentiable, and ``conv2d_out``, which writes.

On a GPU (and with simt) they run the kernels; on the CPU torch's own convolution, which oneDNN computes, and the rest of the
formula.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools

import torch
from torch import Tensor
import torch.nn.functional as F

from ...arguments import wrong_output
from ...jit import targets
from .. import filters
from ..dispatch import fake, library, refuse_derivatives, stream
from ..transforms import cast_by_autocast, write_through_negation
from . import calls, geometry, router
from .activations import ACTIVATIONS, ROUNDED_FIRST
from .calls import request_of
from .geometry import Options

_ARGUMENTS = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor? residual, SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt "
    "groups, *, str padding_mode='zeros', str activation='none', ScalarType? out_dtype=None, str algorithm='auto', "
    f"SymInt workspace_limit={router.WORKSPACE_LIMIT}, str? float32_precision=None"
)
library.define(f"conv2d({_ARGUMENTS}) -> Tensor")
library.define(f"conv2d_out(Tensor(a!) out, {_ARGUMENTS}) -> ()")


def options_of(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int, padding_mode: str, activation: str
):
    """Make of an operator's arguments what `geometry.options` makes of the public function's, checked there again."""
    if len(stride) != 2 or len(padding) != 4 or len(dilation) != 2:
        raise ValueError(f"stride, padding, dilation: got {stride}, {padding}, {dilation}, expected 2, 4 and 2 integers")
    return geometry.options((1, 1), tuple(stride), tuple(padding), tuple(dilation), groups, padding_mode, activation)


# ---- forward -----------------------------------------------------------------------------------------------------------------


@torch.library.impl(library, "conv2d", "CompositeExplicitAutograd")
def _conv2d(
    x, weight, bias, residual, stride, padding, dilation, groups, *, padding_mode="zeros", activation="none", out_dtype=None,
    algorithm="auto", workspace_limit=router.WORKSPACE_LIMIT, float32_precision=None,
):  # fmt: skip
    o = options_of(stride, padding, dilation, groups, padding_mode, activation)
    with torch.no_grad():
        return new_tensor(x, weight, bias, residual, o, out_dtype, algorithm, workspace_limit, float32_precision)


@torch.library.impl(library, "conv2d_out", "CompositeExplicitAutograd")
def _conv2d_out(
    out,
    x,
    weight,
    bias,
    residual,
    stride,
    padding,
    dilation,
    groups,
    *,
    padding_mode="zeros",
    activation="none",
    out_dtype=None,
    algorithm="auto",
    workspace_limit=router.WORKSPACE_LIMIT,
    float32_precision=None,
):
    refuse_derivatives(out=out, x=x, weight=weight, bias=bias, residual=residual)
    o = options_of(stride, padding, dilation, groups, padding_mode, activation)
    into(out, x, weight, bias, residual, o, out_dtype, algorithm, workspace_limit, float32_precision)


def new_tensor(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    o: Options,
    out_dtype: torch.dtype | None,
    algorithm: str,
    workspace_limit: int,
    float32_precision: str | None,
) -> Tensor:
    """The result; no gradient is recorded."""
    geometry.check_places(x, weight=weight, bias=bias, residual=residual)
    request = request_of(x, out_dtype, algorithm, workspace_limit, float32_precision)
    if not on_cpu(x):
        module, prepared = calls.prepared(x, weight, bias, residual, None, o, request)
        return module.conv2d(x, weight, bias, residual, prepared.call, stream(x), filters.packed(weight, prepared.packing))
    shape = geometry.check(x, weight, bias, residual, None, out_dtype, o)
    router.requested(algorithm, request.variable, [router.CPU_METHOD])
    empty = geometry.new_result(x, weight, shape, out_dtype)
    if 0 in shape:
        return empty
    result = _by_torch(x, weight, bias, residual, o, empty.dtype)
    return result if result.stride() == empty.stride() else empty.copy_(result)


def into(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    o: Options,
    out_dtype: torch.dtype | None,
    algorithm: str,
    workspace_limit: int,
    float32_precision: str | None,
) -> None:
    """The result into `out`."""
    geometry.check_places(x, weight=weight, bias=bias, residual=residual, out=out)
    request = request_of(x, out_dtype, algorithm, workspace_limit, float32_precision)
    if not on_cpu(x):
        module, prepared = calls.prepared(x, weight, bias, residual, out, o, request)
        packed = filters.packed(weight, prepared.packing)
        module.conv2d_out(out, x, weight, bias, residual, prepared.call, stream(x), packed)
        return
    shape = geometry.check(x, weight, bias, residual, out, out_dtype, o)
    router.requested(algorithm, request.variable, [router.CPU_METHOD])
    if wrong := wrong_output("out", out):  # torch may notice when it has written
        raise wrong
    if 0 not in shape:
        out.copy_(_by_torch(x, weight, bias, residual, o, out.dtype))


def on_cpu(x: Tensor) -> bool:
    """Tell whether torch computes it, not the kernels."""
    return x.device.type == "cpu" and targets.of(x.device).backend == "cpu"


def _fake(
    x,
    weight,
    bias,
    residual,
    stride,
    padding,
    dilation,
    groups,
    *,
    padding_mode="zeros",
    activation="none",
    out_dtype=None,
    out=None,
    **_,
):
    o = options_of(stride, padding, dilation, groups, padding_mode, activation)
    geometry.check_places(x, weight=weight, bias=bias, residual=residual, out=out)
    for size in weight.shape[2:]:
        int(size)  # where it is a symbol, this fixes it: inductor fails over results whose size has two of them
    shape = geometry.check(x, weight, bias, residual, out, out_dtype, o)
    return geometry.new_result(x, weight, shape, out_dtype)


def _fake_out(out, *arguments, **options):
    _fake(*arguments, out=out, **options)


fake("conv2d")(_fake)
fake("conv2d_out")(_fake_out)


# ---- by torch ----------------------------------------------------------------------------------------------------------------


def with_padding(x: Tensor, o: Options) -> tuple[Tensor, tuple[int, int]]:
    """x with the padding that a convolution cannot do by itself, and the rest of it."""
    top, bottom, left, right = o.padding
    if o.padding_mode == "zeros" and top == bottom and left == right:
        return x, (top, left)
    if not any(o.padding):
        return x, (0, 0)
    return F.pad(x, (left, right, top, bottom), mode="constant" if o.padding_mode == "zeros" else o.padding_mode), (0, 0)


@functools.cache
def fast_on_cpu(dtype: torch.dtype) -> bool:
    """Tell whether oneDNN convolves in `dtype` here; torch's own loops, which take over elsewhere,
    are many times slower than f32.
    """
    supports = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype == torch.float32 or supports[dtype]()


def right_on_cpu(dtype: torch.dtype, columns: int, step: int) -> bool:
    """Tell whether oneDNN's results are right: on processors with AMX those of torch 2.13 in bfloat16 are made of memory that
    nobody wrote, where they have one column and the stride along it is not 1.
    """
    return dtype == torch.float32 or columns > 1 or step == 1


def _by_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, o: Options, dtype: torch.dtype
) -> Tensor:
    """Rounded once: in 16 bits only if nothing but an exact activation follows, and if the processor is fast at it."""
    exact = o.activation in ROUNDED_FIRST and residual is None and dtype == x.dtype and (bias is None or bias.dtype == dtype)
    columns = geometry.out_shape(x.shape, weight.shape, o)[-1]
    if not (exact and fast_on_cpu(dtype) and right_on_cpu(dtype, columns, o.stride[-1])):
        x, weight, bias = x.float(), weight.float(), None if bias is None else bias.float()
    x, padding = with_padding(x, o)
    result = torch.conv2d(x, weight, bias, o.stride, padding, o.dilation, o.groups)
    if residual is not None:
        result = result.add_(residual)
    return ACTIVATIONS[o.activation](result).to(dtype)


# ---- autocast, lazy negation -------------------------------------------------------------------------------------------------

cast_by_autocast(library, "conv2d", ("x", "weight", "bias", "residual"))
cast_by_autocast(library, "conv2d_out", ("x", "weight", "bias", "residual"))
write_through_negation(library, "conv2d_out")
