"""The way in to the differentiable causal conv1d of rows: past torch's dispatcher where nobody looks on, or through its operators."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from ... import jit
from ...jit import targets
from ..dispatch import kernels_for, stream
from .derivatives import gradients
from .operators import forward_new, past_everything

_question: Callable[..., bool] | None = None


def _nobody_looks_on(*tensors: Tensor | None) -> bool:
    """Whether torch's dispatcher has nothing to do for these, as any loaded module knows. Autograd is not asked."""
    global _question
    if is_dynamo_compiling():
        return False
    if _question is None:  # of the first call of a process
        kernels = None if tensors[0] is None else kernels_for("causal_conv1d", tensors[0])
        if kernels is None:
            return False
        _question = kernels.nothing_looks_on
    return _question(*tensors)


class _CausalConv1d(torch.autograd.Function):
    """The same without torch's dispatcher, which takes longer to come here than all the rest of a call (40 us against 6)."""

    @staticmethod
    def forward(ctx, x, weight, bias, seq_idx, initial_states, return_final_states, use_silu):
        ctx.save_for_backward(x, weight, bias, seq_idx, initial_states)
        ctx.return_final_states, ctx.use_silu = return_final_states, use_silu
        return forward_new(x, weight, bias, seq_idx, initial_states, return_final_states, use_silu)

    @staticmethod
    def backward(ctx, dout, dfinal_states):
        x, weight, bias, seq_idx, initial_states = ctx.saved_tensors
        wants_initial = ctx.needs_input_grad[4]
        if torch.is_grad_enabled() or not _nobody_looks_on(dout, dfinal_states):
            return gradients(ctx, dout, dfinal_states, wants_initial)  # with create_graph=True, or where somebody looks on
        module = jit.module("causal_conv1d_bwd", targets.of(x.device))
        dx, dweight, dbias, dinitial_states = module.causal_conv1d_bwd(
            x, weight, bias, dout, seq_idx, initial_states, dfinal_states if ctx.return_final_states else None, None, wants_initial,
            ctx.use_silu, "auto", stream(x),
        )  # fmt: skip
        return dx, dweight, dbias, None, dinitial_states, None, None


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
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias, initial_states)):
        if _nobody_looks_on(*tensors):
            return _CausalConv1d.apply(*tensors, return_final_states, use_silu)
    elif seq_idx is None and initial_states is None and not return_final_states:
        out = past_everything(x, weight, bias, use_silu)
        if out is not None:
            return out, None
    elif _nobody_looks_on(*tensors):
        return forward_new(*tensors, return_final_states, use_silu)
    out, final_states = torch.ops.hipconv.causal_conv1d_fn.default(*tensors, return_final_states, use_silu)
    return out, final_states if return_final_states else None
