"""Two-dimensional convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...arguments import not_dense, wrong_kind, wrong_output
from .. import filters
from ..dispatch import kernels_for, refuse_derivatives_of_torch_func, stream
from . import calls, geometry, precision, router
from .calls import request_of
from .geometry import Ints, Options, Padding
from .packing import PackedFilters


def conv2d(
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
) -> Tensor:
    """2-D convolution, with bias, residual and activation in the same kernel: ``torch.nn.functional.conv2d`` and what follows
    it.

    ``out[n, k, p, q] = act(bias[k] + sum_{c, r, s} weight[k, c, r, s] * x[n, g C/G + c, p stride - top + r dilation,
    q stride - left + s dilation] + residual[n, k, p, q])``, g being filter k's group, summed in float32 and rounded once, to
    nearest even. Semantics and argument order are those of torch; `hipconv.reference.conv2d` states them in float64.

    Args:
        x: (batch, in_channels, height, width), or (in_channels, height, width), float32, float16 or bfloat16, any strides. In
            NCHW or channels_last (NHWC) memory, which its strides tell; where they do not (one channel, or one pixel) weight's
            do, then NCHW.
        weight: (out_channels, in_channels / groups, kernel height, kernel width), the dtype of `x`, any strides; or what
            `hipconv.prepack_conv2d` made of it, which records no gradient.
        bias: (out_channels,), any of the three dtypes; None for none.
        stride, dilation: an int, or a pair (height, width).
        padding: an int, a pair (height, width), (top, bottom, left, right), "valid" for none, or "same" for a result of the
            size of x: stride 1, and where the padding is odd, the extra row or column at the bottom or right, as torch has it.
        activation: "none", "relu", "relu6", "gelu" (by erf), "gelu_tanh", "silu", "sigmoid", "tanh", "leaky_relu" (slope 0.01)
            or "hardswish".
        residual: added before the activation; of the shape of the result, any of the three dtypes, any strides. None for none.
        out_dtype: the dtype of the result; that of `x` by default.
        padding_mode: "zeros", "reflect" (padding less than the size of x), "replicate" or "circular" (at most the size of x).
        algorithm: the name of what computes it, or "auto" for the one that the environment variable HIPCONV_CONV2D_ALGORITHM
            names or, failing that, the library's choice (`conv2d_plan` shows it). On a GPU those of
            `hipconv.conv2d_router.METHODS`; on the CPU "torch", torch's own convolution.
        out: written and returned, instead of a new tensor: of the result's shape, any of the three dtypes, any strides that
            give each element memory of its own; on a GPU, none of it shared with an input. Records no gradient.
        workspace_limit: bytes of temporary memory that the call may take from torch's allocator, on a GPU.
        float32_precision: of the products of float32 `x` and `weight` on a GPU. "ieee": true float32. "tf32": each factor may
            be rounded to TF32, 11 bits, to nearest, where the card has matrix instructions for it; sums stay float32. None:
            what torch's settings say for its own convolutions: `torch.backends.cudnn.conv.fp32_precision` (torch 2.9 and later)
            or `torch.backends.cudnn.allow_tf32`, by default "tf32" on NVIDIA; "ieee" on ROCm, where torch has no TF32
            convolution. The backward follows torch's settings.

    Returns:
        (batch, out_channels, out height, out width), without batch if x has none, dense, in the layout of `x`. A gradient is
        recorded where an input requires one: torch's own convolution backward, which may be differentiated again. Forward-mode
            derivatives,
        `torch.func` and `torch.vmap` are served. Autocast casts x, weight, bias and residual to its dtype, as for torch's own.

    Raises:
        TypeError: an argument of the wrong kind or dtype.
        ValueError: shapes that do not fit, padding too large for the mode, an empty image as the result, a device or a name
            that is not served, an algorithm that does not serve the call (the message says which do), `out` that overlaps.
            Nothing is written then.
        hipconv.errors.JitError: the kernels had to be built and could not be.
        RuntimeError: the kernel could not be launched.

    Runs on the current stream of `x`'s device and does not wait for it. CPU tensors are computed before the call returns.
    """
    if isinstance(weight, PackedFilters):
        weight = weight.weight
    try:
        kernel = geometry.kernel_size(weight.shape)
    except (AttributeError, ValueError) as error:
        raise wrong_kind(conv2d, locals()) or error from None
    options = geometry.options if torch.compiler.is_compiling() else geometry.cached_options
    o = options(kernel, stride, padding, dilation, groups, padding_mode, activation)
    groups = o.groups  # an int, whatever class of integers it came as
    if not (isinstance(algorithm, str) and isinstance(workspace_limit, int) and 0 <= workspace_limit < 2**63):
        workspace_limit = geometry.check_choices(algorithm, workspace_limit)
    if float32_precision is not None:
        precision.check(float32_precision)
    choices = (out_dtype, algorithm, workspace_limit, float32_precision)
    try:
        if x.dim() == 3:
            batched = [None if tensor is None else tensor.unsqueeze(0) for tensor in (residual, out)]
            result = run(x.unsqueeze(0), weight, bias, batched[0], batched[1], o, *choices)
            return result.squeeze(0) if out is None else out
        return run(x, weight, bias, residual, out, o, *choices)
    except Exception as error:
        wrong = wrong_kind(conv2d, locals())
        if wrong is None and not isinstance(error, (TypeError, ValueError)):  # on the CPU, where torch computes and writes
            wrong = not_dense(x=x, weight=weight, bias=bias, residual=residual) or wrong_output("out", out)
        raise wrong or error from None


_calls: dict[tuple, Any] = {}  # prepared, by all that they depend on


def run(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, out: Tensor | None, o: Options,
    out_dtype: torch.dtype | None, algorithm: str, workspace_limit: int, float32_precision: str | None,
) -> Tensor:  # fmt: skip
    """Do what `hipconv.conv2d` does with images in batches: past the operator, where nothing looks on, or through it."""
    inputs = (x, weight, bias, residual)
    wants_gradient = torch.is_grad_enabled() and (
        x.requires_grad
        or weight.requires_grad
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
        or (out is not None and out.requires_grad)
    )
    kernels = None if wants_gradient else kernels_for("conv2d", *inputs, out)
    if kernels is not None and (key := kernels.conv2d_key(*inputs, out)) is not None:
        chosen = (calls.pin(), out_dtype, algorithm, workspace_limit, precision.of_call(float32_precision, x))
        alike = (kernels, key, o, *chosen)
        call = _calls.get(alike)
        if call is None:
            request = request_of(x, out_dtype, algorithm, workspace_limit, float32_precision)
            if len(_calls) >= 4096:
                _calls.clear()
            prepared = calls.prepared(*inputs, out, o, request)[1]
            call = _calls[alike] = (prepared.call, prepared.packing)
        launched, packing = call
        packed = None if packing is None else filters.packed(weight, packing)
        if out is None:
            return kernels.conv2d(*inputs, launched, stream(x), packed)
        kernels.conv2d_out(out, *inputs, launched, stream(x), packed)
        return out
    numbers = (o.stride, o.padding, o.dilation, o.groups)
    choices = {
        "out_dtype": out_dtype,
        "algorithm": algorithm,
        "workspace_limit": workspace_limit,
        "float32_precision": float32_precision,
    }
    if out is None:
        return torch.ops.hipconv.conv2d.default(
            *inputs, *numbers, padding_mode=o.padding_mode, activation=o.activation, **choices
        )
    refuse_derivatives_of_torch_func(out=out, x=x, weight=weight, bias=bias, residual=residual)
    torch.ops.hipconv.conv2d_out.default(
        out, *inputs, *numbers, padding_mode=o.padding_mode, activation=o.activation, **choices
    )
    return out
