"""The differentiable causal conv1d of rows that continue from states or hold packed sequences:
what layers of Mamba models call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ... import jit
from ...arguments import SILU, UnknownActivation, as_the_peers, flag, parse_activation, wrong_kind, wrong_output, wrong_rows
from ...jit import targets
from ..dispatch import nobody_looks_on, stream
from .derivatives import gradients
from .operators import forward_new, past_everything


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Causal depthwise conv1d, differentiable, of rows that may continue from a state, end in one, or hold packed sequences.

    ``out[b, d, t] = act(bias[d] + sum_i weight[d, i] * row[b, d, t + i])``, ``row`` being ``[initial_states | x]`` (zeros in
    the place of missing initial states), in float32 and rounded once. Signature and semantics are those of
    Dao-AILab/causal-conv1d 1.7.0, without its limits on layouts, strides, widths and combinations.
    `hipconv.reference_training.causal_conv1d` states all of it in torch.

    Args:
        x: (batch, dim, seqlen), float32, float16 or bfloat16, on the CPU float64 too. Any strides, any size may be zero;
            fastest with stride 1 along dim or seqlen.
        weight: (dim, width), width >= 1, any of the three dtypes, any strides.
        bias: (dim,), any of the three dtypes; None or an empty tensor for none.
        seq_idx: (batch, seqlen), int32, any strides: packed rows. A tap counts only where its token has the id of the output's
            token. Tokens with a negative id are padding: their output is zero, and no gradient comes from it.
        initial_states: (batch, dim, width - 1), dtype of `x`, any strides, oldest token first. With `seq_idx` they belong to
            the sequence of the row's first token.
        return_final_states: return the last width - 1 tokens of the row too. With `seq_idx`, those of the last token's
            sequence, and zeros in the place of others.
        final_states_out: (batch, dim, width - 1), dtype of `x`, written and returned as the final states. It may be the memory
            of `initial_states` where no gradient is recorded.
        activation: "silu" or "swish" (the same), or None.

    Returns:
        out, with the shape, dtype and memory layout of `x`; or (out, final_states).

    Raises:
        NotImplementedError: an activation of another name.
        RuntimeError (a ValueError or a TypeError too): an argument that does not fit. Nothing is written then.
        hipconv.errors.JitError: the kernels had to be built and could not be.

    Gradients of x, weight, bias and initial_states, and through the final states, are deterministic and may be differentiated
    again; forward-mode derivatives, `torch.func` and `torch.vmap` are served. Autocast leaves dtypes alone.

    Runs on the current stream of `x`'s device and does not wait for it.
    """
    use_silu = parse_activation(activation, SILU, False, UnknownActivation)
    try:
        if seq_idx is None and initial_states is None and return_final_states is False and final_states_out is None:
            plain = past_everything(x, weight, bias, use_silu, record)
            if plain is not None:
                return plain
        if type(return_final_states) is not bool:
            return_final_states = flag("return_final_states", return_final_states)
        if final_states_out is not None:
            check_final_states_out(final_states_out, return_final_states, x, weight)
        out, final_states = causal_conv1d_with_states(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)
        if final_states is None:
            return out
        return out, final_states if final_states_out is None else final_states_out.copy_(final_states)
    except Exception as error:
        wrong = (
            wrong_kind(causal_conv1d_fn, locals())
            or wrong_rows(x, weight)
            or wrong_output("final_states_out", final_states_out)
        )
        raise as_the_peers(wrong or error) from None


def check_final_states_out(final_states_out: Tensor, is_used: bool, x: Tensor, weight: Tensor) -> None:
    """Raise what is wrong with a tensor that the final states go to."""
    if not isinstance(final_states_out, Tensor) or x.dim() != 3 or weight.dim() != 2:
        raise TypeError  # which the caller has words for
    if not is_used:
        return
    expected = (x.shape[0], x.shape[1], weight.shape[1] - 1)
    if final_states_out.shape != expected:
        raise ValueError(
            f"final_states_out: got shape {tuple(final_states_out.shape)}, expected (batch, dim, width - 1) = {expected}"
        )
    if final_states_out.dtype != x.dtype or final_states_out.device != x.device:
        raise TypeError(
            f"final_states_out: got {final_states_out.dtype} on {final_states_out.device}, expected {x.dtype} on {x.device}, "
            f"as x has"
        )
    if wrong := wrong_output(
        "final_states_out", final_states_out
    ):  # torch notices some of it when it has written, and some never
        raise wrong


# ---- past torch's dispatcher, or through the operators -----------------------------------------------------------------------


class _CausalConv1d(torch.autograd.Function):
    """Rows without states, where nobody looks on, without torch's dispatcher: it takes longer to come here than all the rest of
    a call (40 us against 6).
    """

    @staticmethod
    def forward(ctx, x, weight, bias, use_silu, kernels):
        ctx.save_for_backward(x, weight, bias)
        ctx.use_silu = use_silu
        return kernels.causal_conv1d_directly(x, weight, bias, use_silu, "auto", None)

    @staticmethod
    def backward(ctx, dout):
        x, weight, bias = ctx.saved_tensors
        return *_gradients(x, weight, bias, dout, None, None, None, False, ctx.use_silu)[:3], None, None


record = super(torch.autograd.Function, _CausalConv1d).apply
"""`_CausalConv1d.apply` without its part in Python, which is for torch.func, and takes as long as the part that records."""


class _CausalConv1dWithStates(torch.autograd.Function):
    """The same for rows with states or sequences of their own."""

    @staticmethod
    def forward(ctx, x, weight, bias, seq_idx, initial_states, return_final_states, use_silu):
        ctx.save_for_backward(x, weight, bias, seq_idx, initial_states)
        ctx.return_final_states, ctx.use_silu = return_final_states, use_silu
        return forward_new(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)

    @staticmethod
    def backward(ctx, dout, dfinal_states):
        x, weight, bias, seq_idx, initial_states = ctx.saved_tensors
        dfinal_states = dfinal_states if ctx.return_final_states else None
        dx, dweight, dbias, dinitial_states = _gradients(
            x, weight, bias, dout, seq_idx, initial_states, dfinal_states, ctx.needs_input_grad[4], ctx.use_silu
        )
        return dx, dweight, dbias, None, dinitial_states, None, None


def _gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, dout: Tensor, seq_idx: Tensor | None, initial_states: Tensor | None,
    dfinal_states: Tensor | None, wants_initial: bool, use_silu: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    if torch.is_grad_enabled() or not nobody_looks_on(
        dout, dfinal_states
    ):  # with create_graph=True, or where somebody looks on
        return gradients(x, weight, bias, dout, seq_idx, initial_states, dfinal_states, wants_initial, use_silu)
    module = jit.module("causal_conv1d_bwd", targets.of(x.device))
    return module.causal_conv1d_bwd(
        x, weight, bias, dout, seq_idx, initial_states, dfinal_states, None, wants_initial, use_silu, "auto", stream(x)
    )


def causal_conv1d_with_states(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    seq_idx: Tensor | None,
    initial_states: Tensor | None,
    return_final_states: bool,
    use_silu: bool,
) -> tuple[Tensor, Tensor | None]:
    """The output and, if asked for, the final states; a gradient is recorded where one is wanted."""
    if bias is not None and bias.numel() == 0:
        bias = None
    tensors = (x, weight, bias, seq_idx, initial_states)
    if seq_idx is None and initial_states is None and not return_final_states:
        out = past_everything(x, weight, bias, use_silu, record)
        if out is not None:
            return out, None
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias, initial_states)):
        if nobody_looks_on(*tensors):
            return _CausalConv1dWithStates.apply(*tensors, return_final_states, use_silu)
    elif nobody_looks_on(*tensors):
        return forward_new(*tensors, return_final_states, use_silu)
    out, final_states = torch.ops.hipconv.causal_conv1d_fn.default(*tensors, return_final_states, use_silu)
    return out, final_states if return_final_states else None
