"""Causal depthwise 1-D convolution."""

from __future__ import annotations

import torch
from torch import Tensor

from ...arguments import SILU, describe, flag, parse_activation, wrong_kind
from .. import dispatch, transforms
from . import training


def causal_conv1d_fwd(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    use_silu: bool = False,
    *,
    kernel: str = "auto",
) -> None:
    """Causal depthwise conv1d of each channel with its own filter, into a given tensor.

    ``out[b, d, t] = act(bias[d] + sum_i weight[d, i] * x[b, d, t - width + 1 + i])``, with ``x[..., t < 0] = 0``, computed in
    float32 and rounded once, to nearest even. The semantics and argument order are those of AITER's ``causal_conv1d`` ops; the
    formula is that of ``causal_conv1d_ref`` in Dao-AILab/causal-conv1d. `hipconv.reference.causal_conv1d` states it in torch.

    Args:
        out: (batch, dim, seqlen), written. The dtype, shape and device of `x`; any strides that give each element memory of its
            own, none of it shared with an input.
        x: (batch, dim, seqlen), float32, float16 or bfloat16. Any strides: channel-first (dim-major, as ``conv1d`` has it),
            channel-last (a transposed (batch, seqlen, dim) tensor), slices, expanded tensors. Any size may be zero.
        weight: (dim, width), width >= 1, any of the three dtypes, any strides, on the device of `x`.
        bias: (dim,), any of the three dtypes, on the device of `x`. None or an empty tensor means none.
        use_silu: apply SiLU, ``v * sigmoid(v)``; otherwise nothing.
        kernel: the kernel's name, or "auto" for the one that the environment variable HIPCONV_CONV1D_KERNEL names or, failing
            that, the library's choice (`causal_conv1d_plan` shows it). On a GPU: "tile" (channel-last, width 1 to 8), "vector"
            (channel-first, width 1 to 8), "shared" (width 2 to 8, channel-first rows of at most 512 tokens that follow one
            another in memory; of at most 1024 in 16 bits with width 2 to 4), "lines" (any layouts, width 1 to 8), "staged" (any
            layouts, width to 1024), "naive" (anything).
            On the CPU: "simd" (width to 65536) or "openmp" (anything).

    Raises:
        TypeError: an argument of the wrong kind or dtype.
        ValueError: a shape, device, overlap or kernel name that does not fit, a named kernel that does not serve the call, or a
            tensor that requires grad while grad mode is on (this form records no gradient). `out` is not written in any of
            these cases.
        hipconv.errors.JitError: the kernels had to be built and could not be.
        RuntimeError: the kernel could not be launched.

    Runs on the current stream of `x`'s device and does not wait for it. CPU tensors are computed before the call returns.
    """
    try:
        kernels = dispatch.kernels_for("causal_conv1d", x)
        if kernels is not None and kernels.causal_conv1d_fwd_directly(out, x, weight, bias, use_silu, kernel):
            return
        dispatch.refuse_derivatives_of_torch_func(out=out, x=x, weight=weight, bias=bias)
        torch.ops.hipconv.causal_conv1d_fwd.default(out, x, weight, bias, flag("use_silu", use_silu), kernel_name=kernel)
    except Exception as error:
        raise wrong_kind(causal_conv1d_fwd, locals()) or error from None


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    kernel: str = "auto",
) -> Tensor:
    """`causal_conv1d_fwd` into a new tensor, and differentiable: where an input requires grad, the gradient is recorded.

    Args:
        x: (batch, dim, seqlen), float32, float16 or bfloat16, on the CPU float64 too, any strides, any size may be zero.
        weight: (dim, width), width >= 1, any of these dtypes (float64 with an `x` of it), any strides, on the device of `x`.
        bias: (dim,), as `weight`. None or an empty tensor means none.
        activation: "silu" or "swish" (the same), or None.
        kernel: as for `causal_conv1d_fwd`.

    Returns:
        A tensor with the shape, dtype, device and memory layout of `x`, as ``torch.empty_like(x)`` has it: the strides of `x`
        if it is dense, else a dense tensor with its axes in the same order (a channel-last slice gives a dense channel-last
        result).

    Raises:
        What `causal_conv1d_fwd` raises, but tensors that require grad are welcome here; only a named `kernel` is refused with
        them.

    Gradients are deterministic and may be differentiated again; forward-mode derivatives, `torch.func` and `torch.vmap` are
    served. Autocast leaves dtypes alone.
    """
    use_silu = parse_activation(activation, SILU)
    try:
        is_double = x.dtype == torch.float64  # served on the CPU, as where a gradient is recorded
        kernels = None if is_double else dispatch.kernels_for("causal_conv1d", x)
        if kernels is not None:
            out = kernels.causal_conv1d_directly(x, weight, bias, use_silu, kernel, training.record)
            if out is not None:
                return out
        derivative, transform = transforms.wants_derivative(x, weight, bias), transforms.in_torch_func()
        # Graphs do not show torch.func's levels.
        hidden = torch.compiler.is_dynamo_compiling() and torch.is_grad_enabled() and kernel == "auto"
        if (derivative or transform) and kernel != "auto":
            where = "with tensors that require grad" if derivative else "within a transform of torch.func"
            raise ValueError(f"kernel: got {describe(kernel)} {where}, expected 'auto'")
        if derivative or transform or hidden or (is_double and kernel == "auto"):
            return training.causal_conv1d_with_states(x, weight, bias, None, None, False, use_silu)[0]
        return torch.ops.hipconv.causal_conv1d.default(x, weight, bias, use_silu, kernel_name=kernel)
    except Exception as error:
        raise wrong_kind(causal_conv1d, locals()) or error from None
