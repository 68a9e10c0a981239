"""Three-dimensional convolution."""

from __future__ import annotations

import torch
from torch import Tensor

from ...arguments import not_dense, wrong_kind, wrong_output
from ..conv2d import precision
from ..conv2d.geometry import check_choices
from ..dispatch import refuse_derivatives_of_torch_func
from . import geometry, router
from .geometry import Ints, Options, Padding, Tensors


def conv3d(
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
) -> Tensor:
    """3-D convolution of video, chunk by chunk: ``torch.nn.functional.conv3d`` with the frames before x read where they lie,
    and with bias, residual and activation in the same kernel.

    ``out[n, k, t, p, q] = act(bias[k] + sum_{c, i, r, s} weight[k, c, i, r, s] * v[n, g C/G + c, t stride_t - front + i
    dilation_t, p stride_h - top + r dilation_h, q stride_w - left + s dilation_w] + residual[n, k, t, p, q])``, g being filter
    k's group and v the frames of `cache` followed by those of `x`; summed in float32 and rounded once, to nearest even.
    Semantics and argument order are those of torch, the cache's those of the causal convolutions of Wan, CogVideoX and LTX in
    diffusers; `hipconv.reference.conv3d` states all in float64.

    Args:
        x: (batch, in_channels, frames, height, width), or without batch, float32, float16 or bfloat16, any strides. In NCDHW or
            channels_last_3d (NDHWC) memory, which its strides tell; where they do not, weight's do, then NCDHW.
        weight: (out_channels, in_channels / groups, kernel frames, kernel height, kernel width), the dtype of `x`, any strides.
        bias: (out_channels,), float32, float16 or bfloat16; None for none.
        stride, dilation: an int, or a triple (frames, height, width).
        padding: an int, a triple, (front, back, top, bottom, left, right), "valid" for none, or "same" for a result of the size
            of x, with stride 1. That of frames is 0 in a causal convolution (`time_padding` "zeros" or "first").
        cache: the frames before x, of a call before: (batch, in_channels, at most (kernel frames - 1) * dilation, height,
            width), the dtype of x, any strides. It is read in place. With a stride in time its number of frames says where the
            first window begins.
        cache_out: gets the last (kernel frames - 1) * dilation frames of cache and x, for the next call: (batch, in_channels,
            that many, height, width), the dtype of x, any strides, memory of its own: two calls swap two buffers. Where there
            are not as many, what `time_padding` has stands before them (zeros where it is None). Written together with the
            result.
        time_padding: None: `padding` of the frames on both sides, as torch has it; those of a cache count as frames of x.
            "zeros", "first": causal. Of the (kernel frames - 1) * dilation frames before the first one of x those that a cache
            does not have are zeros, or the first frame that there is. "edges": the frames of `padding` repeat the first frame
            of x and the last one, whatever rows and columns are padded with; no cache, as x is a whole video.
        padding_mode: "zeros", "reflect" (padding less than the size), "replicate" or "circular" (at most the size) of rows and
            columns, and of frames without `time_padding`. No padded copy is made.
        activation: "none", "relu", "relu6", "gelu" (by erf), "gelu_tanh", "silu", "sigmoid", "tanh", "leaky_relu" (slope 0.01)
            or "hardswish".
        residual: added before the activation; of the shape of the result, any of the three dtypes, any strides. None for none.
        out_dtype: the dtype of the result; that of `x` by default.
        algorithm: the name of what computes it, or "auto" for the one that the environment variable HIPCONV_CONV3D_ALGORITHM
            names or, failing that, the library's choice (`conv3d_plan` shows it). On a GPU those of
            `hipconv.conv3d_router.METHODS`; on the CPU "torch", torch's own convolution.
        out: written and returned, instead of a new tensor: of the result's shape, any of the three dtypes, any strides that
            give each element memory of its own; on a GPU, none of it shared with an input but the residual, which may be
            `out` itself.
        workspace_limit: bytes of temporary memory that the call may take from torch's allocator, on a GPU.
        float32_precision: of the products of float32 `x` and `weight` on a GPU. "ieee": true float32. "tf32": each factor may
            be rounded to TF32, 11 bits, to nearest, where the card has matrix instructions for it; sums stay float32. None:
            what torch's settings say for its own convolutions: `torch.backends.cudnn.conv.fp32_precision` (torch 2.9 and later)
            or `torch.backends.cudnn.allow_tf32`, by default "tf32" on NVIDIA; "ieee" on ROCm, where torch has no TF32
            convolution. The backward follows torch's settings.

    Returns:
        (batch, out_channels, out frames, out height, out width), without batch if x has none, dense, in the layout of `x`. A
        gradient is recorded where an input requires one, unless `out` or `cache_out` is given: torch's own convolution
        backward. Forward-mode derivatives, `torch.func`, `torch.vmap` and autocast are served.

    Raises:
        TypeError: an argument of the wrong kind or dtype.
        ValueError: shapes that do not fit, padding too large for the mode, an empty result, a device or a name that is not
            served, an algorithm that does not serve the call (the message says which do), `out` or `cache_out` that overlaps.
            Nothing is written then.
        hipconv.errors.JitError: the kernels had to be built and could not be.
        RuntimeError: the kernel could not be launched.

    Runs on the current stream of `x`'s device and does not wait for it. CPU tensors are computed before the call returns.
    """
    try:
        kernel = geometry.kernel_size(weight.shape)
    except (AttributeError, ValueError) as error:
        raise wrong_kind(conv3d, locals()) or error from None
    o = geometry.options(kernel, stride, padding, dilation, groups, time_padding, padding_mode, activation)
    groups, workspace_limit = o.groups, check_choices(algorithm, workspace_limit)
    precision.check(float32_precision)
    choices = (out_dtype, algorithm, workspace_limit, float32_precision)
    t = Tensors(x, weight, bias, residual, cache, out, cache_out)
    try:
        if x.dim() == 4:
            batched = {
                name: None if tensor is None else tensor.unsqueeze(0)
                for name, tensor in zip(Tensors._fields, t, strict=True)
                if name not in ("weight", "bias")
            }
            result = _run(t._replace(**batched), o, *choices)
            return result.squeeze(0) if out is None else out
        return _run(t, o, *choices)
    except Exception as error:
        wrong = wrong_kind(conv3d, locals())
        if wrong is None and not isinstance(error, (TypeError, ValueError)):  # on the CPU, where torch computes and writes
            wrong = not_dense(x=x, weight=weight, bias=bias, residual=residual, cache=cache) or wrong_output("out", out)
            wrong = wrong or wrong_output("cache_out", cache_out)
        raise wrong or error from None


def _run(
    t: Tensors, o: Options, out_dtype: torch.dtype | None, algorithm: str, workspace_limit: int, float32_precision: str | None
) -> Tensor:
    """Do what `hipconv.conv3d` does with volumes in batches."""
    inputs = t[:5]
    numbers = (o.stride, o.padding, o.dilation, o.groups)
    choices = {
        "time_padding": o.time_padding, "padding_mode": o.padding_mode, "activation": o.activation, "out_dtype": out_dtype,
        "algorithm": algorithm, "workspace_limit": workspace_limit, "float32_precision": float32_precision,
    }  # fmt: skip
    if t.out is None and t.cache_out is None:
        return torch.ops.hipconv.conv3d.default(*inputs, *numbers, **choices)
    names = dict(zip(Tensors._fields, t, strict=True))
    refuse_derivatives_of_torch_func(**names)
    out = t.out
    if out is None:
        shape = geometry.check(t, out_dtype, o)
        out = geometry.new_result(t.x, t.weight, shape, out_dtype)
    torch.ops.hipconv.conv3d_out.default(out, t.cache_out, *inputs, *numbers, **choices)
    return out
