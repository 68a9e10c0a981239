"""The causal conv1d of rows whose tokens are split over the ranks of a group."""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..arguments import SILU, describe, flag, parse_activation, require_dense, require_floats, require_shape, wrong_rows
from . import rows
from .graphs import outside_of_graphs
from .groups import Group, group_of
from .halo import check_name, check_zigzag
from .header import Local, agree
from .routes import LAYOUTS, Chunks, contiguous, zigzag
from .rows import Context, Plan
from .seen import once, signature
from .sums import summed


@outside_of_graphs
def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    group: object,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    activation: str | None = None,
    layout: str = "contiguous",
    sizes: Sequence[int] | None = None,
    reduce_gradients: bool = False,
    validate: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """`hipconv.causal_conv1d_fn` of rows whose tokens are split over the ranks of a group (context parallelism), forward and
    backward.

    Args:
        x: (batch, dim, tokens of this rank), any strides, float32, float16 or bfloat16, on the CPU float64 too. The shards may
            differ in length, be empty, or be shorter than the filter.
        weight, bias: as for `hipconv.causal_conv1d_fn`; the same on every rank.
        group: a ProcessGroup or a DeviceMesh of one dimension; None for the default group. Its ranks need not be those of the
            world.
        seq_idx: (batch, tokens of this rank), int32: this rank's part of the whole rows' ids, so that documents may span ranks.
        cu_seqlens: (documents + 1,), integers: where the documents begin in the whole row, and the last one ends; the same on
            every rank, for a batch of 1. Not with seq_idx. Its values are not read on the host.
        initial_states: (batch, dim, width - 1), dtype of `x`: what stands before the whole rows; the same on every rank.
        return_final_states: return the last width - 1 tokens of the whole rows too, on every rank.
        activation: "silu" or "swish" (the same), or None.
        layout: "contiguous": rank r has the r-th part. "zigzag": x has two parts, as `shard(..., layout="zigzag")` makes them.
        sizes: tokens of every rank, if known. Needed with validate=False.
        reduce_gradients: sum the gradients of weight and bias over the group, in float32 and the order of ranks. By default
            each rank's are its own tokens' part, as data parallelism (DDP, FSDP) over this group expects, which adds up what it
            finds.
        validate: as for `hipconv.distributed.halo`.

    Returns:
        out, with the shape, dtype and memory layout of `x`; or (out, final_states).

    Raises:
        TypeError, ValueError: an argument that does not fit, on every rank the same error (with validate=False on this rank
            alone).
        RuntimeError: a rank is gone (from torch.distributed; with NCCL its watchdog ends the process).
        hipconv.errors.JitError: the kernels had to be built and could not be.

    The output, the final states, the gradient of x and that of initial_states have the bits that one device computes from the
    whole rows, but for the gradients of channel-first x on GPUs, whose kernel adds up a sum in an order that depends on a
    token's place. The whole gradient of initial_states is on the rank that has the rows' first token, and zero on the others.
    Gradients can be computed once, not differentiated again. Semantics are those of `hipconv.causal_conv1d_fn`.

    The width - 1 tokens before each part travel, in one exchange, while the rest is computed; in the backward, x and the
    gradient of the output of as many tokens behind it. Every rank of the group must call, and, where one computes gradients,
    all must.
    """
    here = group_of(group)
    tensors = {
        "x": x,
        "weight": weight,
        "bias": bias,
        "seq_idx": seq_idx,
        "cu_seqlens": cu_seqlens,
        "initial_states": initial_states,
    }
    bias = None if isinstance(bias, Tensor) and bias.numel() == 0 else bias

    def look() -> Local:
        return described(
            tensors, activation, layout, return_final_states=return_final_states, reduce_gradients=reduce_gradients
        )

    all_sizes, _ = agree("hipconv.distributed.causal_conv1d", here, look, near=x, validate=validate, sizes=sizes)
    chunks = contiguous(all_sizes) if layout == "contiguous" else zigzag(sum(all_sizes), here.size)
    check_zigzag(layout, all_sizes, chunks)
    if cu_seqlens is not None:
        seq_idx = _ids_of(cu_seqlens, chunks, here)
    plan = Plan(here, chunks, weight.shape[1] - 1, SILU[activation], bool(return_final_states), bool(reduce_gradients))
    out, final_states = _CausalConv1d.apply(x, weight, bias, initial_states, seq_idx, plan)
    return (out, final_states) if return_final_states else out


class _CausalConv1d(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, initial_states, ids, plan):
        out, final_states, contexts = rows.forward(x, weight, bias, initial_states, ids, plan)
        ctx.plan, ctx.chunks = plan, len(contexts)
        ctx.save_for_backward(x, weight, bias, initial_states, ids, *(tensor for context in contexts for tensor in context))
        return out, final_states

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, dfinal_states):
        x, weight, bias, initial_states, ids, *saved = ctx.saved_tensors
        contexts = [Context(*saved[2 * i : 2 * i + 2]) for i in range(ctx.chunks)]
        dfinal_states = dfinal_states if ctx.plan.return_final_states else None
        wants_x, wants_weight, wants_bias, wants_initial = ctx.needs_input_grad[:4]
        found = rows.backward(
            x, weight, bias, initial_states, ids, contexts, dout, dfinal_states, ctx.plan, wants_x or wants_initial
        )
        dweight, dbias = found.dweight if wants_weight else None, found.dbias if wants_bias else None
        if ctx.plan.reduces:
            dweight, dbias = summed([dweight, dbias], ctx.plan.group)
        dweight, dbias = None if dweight is None else dweight.to(weight.dtype), None if dbias is None else dbias.to(bias.dtype)
        return found.dx if wants_x else None, dweight, dbias, found.dinitial_states if wants_initial else None, None, None


def described(tensors: dict[str, Any], activation: Any, layout: str, **flags: object) -> Local:
    """Return what a call's arguments come to; TypeError or ValueError for what is wrong with them."""

    def look() -> Local:
        settings = _checked(tensors)
        use_silu = parse_activation(activation, SILU)
        check_name("layout", layout, LAYOUTS)
        chosen = {name: flag(name, value) for name, value in flags.items()}
        return Local(
            {**settings, "activation": "silu" if use_silu else None, "layout": layout, **chosen}, tensors["x"].shape[2]
        )

    return once(signature(tensors, "conv1d", activation, layout, torch.is_grad_enabled(), *flags.items()), look)


def _ids_of(cu_seqlens: Tensor, chunks: Chunks, group: Group) -> Tensor:
    """The document of each of this rank's tokens, (1, tokens)."""
    mine = [torch.arange(chunk.start, chunk.stop, device=cu_seqlens.device) for chunk in chunks if chunk.rank == group.rank]
    return torch.searchsorted(cu_seqlens[1:].long(), torch.cat(mine), right=True).int()[None]


def _checked(tensors: dict[str, Any]) -> dict[str, object]:
    """Return what all ranks must have alike; TypeError or ValueError for what is wrong here."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) and (tensor is not None or name in ("x", "weight")):
            raise TypeError(
                f"{name}: got {describe(tensor)}, expected a torch.Tensor" + ("" if name in ("x", "weight") else " or None")
            )
    x, weight, bias, seq_idx, cu_seqlens, initial_states = tensors.values()
    require_dense(**tensors)
    require_floats(x=x, weight=weight, bias=bias, initial_states=initial_states)
    if wrong := wrong_rows(x, weight):
        raise wrong
    (batch, dim, tokens), width = x.shape, weight.shape[1]
    if bias is not None and bias.numel():
        require_shape("bias", bias, (dim,), "(dim,)", x)
    require_shape("weight", weight, (dim, width), "(dim, width)", x)
    for name, ids in (("seq_idx", seq_idx), ("cu_seqlens", cu_seqlens)):
        if ids is not None and ids.dtype != torch.int32 and not (name == "cu_seqlens" and ids.dtype == torch.int64):
            raise TypeError(f"{name}: got dtype {ids.dtype}, expected torch.int32")
    if seq_idx is not None:
        require_shape("seq_idx", seq_idx, (batch, tokens), "(batch, tokens of this rank)", x)
    if cu_seqlens is not None:
        if seq_idx is not None:
            raise ValueError("cu_seqlens: got one beside seq_idx, expected only one of the two")
        if batch != 1:
            raise ValueError(
                f"x: got shape {tuple(x.shape)}, expected a batch of 1 with cu_seqlens: (1, dim, tokens of this rank)"
            )
        if cu_seqlens.dim() != 1 or not len(cu_seqlens):
            raise ValueError(
                f"cu_seqlens: got shape {tuple(cu_seqlens.shape)}, expected (documents + 1,), of at least one element"
            )
        require_shape("cu_seqlens", cu_seqlens, tuple(cu_seqlens.shape), "(documents + 1,)", x)
    if initial_states is not None:
        require_shape("initial_states", initial_states, (batch, dim, width - 1), "(batch, dim, width - 1)", x)
        if initial_states.dtype != x.dtype:
            raise TypeError(f"initial_states: got dtype {initial_states.dtype}, expected that of x, {x.dtype}")
    _require_served(x.device, x.dtype, weight.dtype, None if bias is None or not bias.numel() else bias.dtype, width)
    gradients = torch.is_grad_enabled()
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None and (name != "bias" or tensor.numel())}
    return {
        "dtype of x": x.dtype,
        "device of x": x.device.type,
        "batch of x": batch,
        "dim of x": dim,
        "width of weight": width,
        "tensors given": ", ".join(present),
        "dtypes": ", ".join(str(tensor.dtype) for tensor in present.values()),
        "documents of cu_seqlens": None if cu_seqlens is None else len(cu_seqlens) - 1,
        "tensors that require grad": ", ".join(name for name, tensor in present.items() if gradients and tensor.requires_grad),
    }


@functools.lru_cache(256)
def _require_served(
    device: torch.device, dtype: torch.dtype, weight_dtype: torch.dtype, bias_dtype: torch.dtype | None, width: int
) -> None:
    """Have the kernels look at these dtypes, on a row without tokens: a rank that has none would see nothing wrong,
    and send.
    """
    row = torch.empty(1, 1, 0, dtype=dtype, device=device)
    weight = torch.empty(1, width, dtype=weight_dtype, device=device)
    bias = None if bias_dtype is None else torch.empty(1, dtype=bias_dtype, device=device)
    torch.ops.hipconv.causal_conv1d_states_fwd.default(torch.empty_like(row), None, row, weight, bias, None, None, False)
