"""The torch operators of serving, ``torch.ops.hipconv.causal_conv1d_update`` and ``causal_conv1d_varlen``, each also with its output
split into q, k and v; and the ways past them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ... import jit
from ...jit import targets
from ..dispatch import fake_of, kernels_for, library, refuse_derivatives, refuse_derivatives_of_torch_func, stream
from ..transforms import untouched_by_autocast, write_through_negation

# ---- decode ------------------------------------------------------------------------------------------------------------------------

# What both forms of the update take after their outputs and x. `state_at_end`: the window is in the last columns of a slot.
_UPDATE_ARGUMENTS = (
    "Tensor({0}!) conv_state, Tensor weight, Tensor? bias, bool use_silu, *, Tensor? conv_state_indices=None, "
    "Tensor? conv_state_indices_in=None, Tensor? num_accepted_tokens=None, Tensor? query_start_loc=None, int max_query_len=-1, "
    "int? pad_slot_id=None, Tensor? block_idx_last_scheduled_token=None, Tensor? initial_state_idx=None, Tensor? cache_seqlens=None, "
    "Tensor({1}!)? intermediate_conv_window=None, Tensor? intermediate_state_indices=None, Tensor? retrieve_next_token=None, "
    "Tensor? retrieve_next_sibling=None, Tensor({2}!)? retrieve_parent_token=None, bool state_at_end=False, bool zero_padding=True, "
    "str kernel_name='auto'"
)

library.define(f"causal_conv1d_update(Tensor(a!) out, Tensor? x, {_UPDATE_ARGUMENTS.format('b', 'c', 'd')}) -> ()")
library.define(
    f"causal_conv1d_update_split_qkv(Tensor(a!) q, Tensor(b!) k, Tensor(c!) v, Tensor x, {_UPDATE_ARGUMENTS.format('d', 'e', 'f')}) -> ()"
)


@torch.library.impl(library, "causal_conv1d_update", "CompositeExplicitAutograd")
def _causal_conv1d_update(out, x, *arguments, **options):
    """`x` None: `out` holds x, which is overwritten."""
    _update([out], out if x is None else x, *arguments, **options)


@torch.library.impl(library, "causal_conv1d_update_split_qkv", "CompositeExplicitAutograd")
def _causal_conv1d_update_split_qkv(q, k, v, x, *arguments, **options):
    _update([q, k, v], x, *arguments, **options)


def _update(
    outs, x, conv_state, weight, bias, use_silu, conv_state_indices=None, conv_state_indices_in=None, num_accepted_tokens=None,
    query_start_loc=None, max_query_len=-1, pad_slot_id=None, block_idx_last_scheduled_token=None, initial_state_idx=None,
    cache_seqlens=None, intermediate_conv_window=None, intermediate_state_indices=None, retrieve_next_token=None,
    retrieve_next_sibling=None, retrieve_parent_token=None, state_at_end=False, zero_padding=True, kernel_name="auto",
    only_check=False,
):  # fmt: skip
    """`only_check`: raise what is wrong with the call, and do nothing."""
    refuse_derivatives(out=outs[0], x=x, conv_state=conv_state, weight=weight, bias=bias)
    jit.module("causal_conv1d_update", targets.of(x.device)).causal_conv1d_update(
        outs, x, conv_state, weight, bias, use_silu, conv_state_indices, conv_state_indices_in, num_accepted_tokens, query_start_loc,
        max_query_len, pad_slot_id, block_idx_last_scheduled_token, initial_state_idx, cache_seqlens, intermediate_conv_window,
        intermediate_state_indices, retrieve_next_token, retrieve_next_sibling, retrieve_parent_token, state_at_end, zero_padding,
        kernel_name, None if only_check else stream(x),
    )  # fmt: skip


def check_update(outs, inputs, tensors, max_query_len, kernel):
    """Raise what `update_directly` would before it launches a kernel."""
    _update(outs, *inputs, False, *tensors[:4], max_query_len, None, *tensors[4:], kernel_name=kernel, only_check=True)


def update_directly(
    outs: list[Tensor],
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None],
    use_silu: bool,
    tensors: tuple[Tensor | None, ...],
    max_query_len: int,
    pad_slot_id: int | None,
    *,
    state_at_end: bool,
    zero_padding: bool,
    kernel: str,
) -> bool:
    """`_update` without the operator in front, or False if that has something to do. `inputs` are x, conv_state, weight and bias, and
    `tensors` the options that are tensors, in the order of `_update`.
    """
    kernels = kernels_for("causal_conv1d_update", *inputs, *outs, *tensors)
    if kernels is not None and kernels.causal_conv1d_update_directly(
        outs, *inputs, use_silu, *tensors[:4], max_query_len, pad_slot_id, *tensors[4:], state_at_end, zero_padding, kernel,
        stream(inputs[0]),
    ):  # fmt: skip
        return True
    refuse_derivatives_of_torch_func(out=outs[0], **dict(zip(("x", "conv_state", "weight", "bias"), inputs, strict=True)))
    return False


for _operator in ("causal_conv1d_update", "causal_conv1d_update_split_qkv"):
    torch.library.register_fake(f"hipconv::{_operator}", fake_of(_operator), lib=library)


# ---- serving: packed sequences with a pool of conv states ------------------------------------------------------------------------

_VARLEN_INPUTS = (
    "Tensor x, Tensor weight, Tensor? bias, Tensor query_start_loc, Tensor? cache_indices=None, Tensor? cache_indices_in=None, "
    "Tensor? has_initial_state=None, Tensor? block_idx_first_scheduled_token=None, Tensor? block_idx_last_scheduled_token=None, "
    "Tensor? initial_state_idx=None, Tensor? num_computed_tokens=None, int block_size_to_align=0, bool use_silu=False, "
    "int? pad_slot_id=-1, int? null_block_id=None"
)
_VARLEN_CHOICES = "str kernel_name='auto', int block_m=0, int block_n=0, int num_warps=0"

library.define(
    f"causal_conv1d_varlen(Tensor(a!) out, Tensor(b!) conv_states, {_VARLEN_INPUTS}, *, bool zero_padding=False, {_VARLEN_CHOICES}) -> ()"
)
library.define(
    "causal_conv1d_varlen_split(Tensor(a!) q, Tensor(b!) k, Tensor(c!) v, Tensor(d!) conv_states, "
    f"{_VARLEN_INPUTS}, *, bool zero_padding=False, {_VARLEN_CHOICES}) -> ()"
)


def _varlen(
    outputs: list[Tensor],
    conv_states: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    query_start_loc: Tensor,
    cache_indices: Tensor | None = None,
    cache_indices_in: Tensor | None = None,
    has_initial_state: Tensor | None = None,
    block_idx_first_scheduled_token: Tensor | None = None,
    block_idx_last_scheduled_token: Tensor | None = None,
    initial_state_idx: Tensor | None = None,
    num_computed_tokens: Tensor | None = None,
    block_size_to_align: int = 0,
    use_silu: bool = False,
    pad_slot_id: int | None = -1,
    null_block_id: int | None = None,
    *,
    dead_tokens: str,
    kernel_name: str = "auto",
    block_m: int = 0,
    block_n: int = 0,
    num_warps: int = 0,
    only_check: bool = False,
) -> bool:
    """False, and nothing is done, if the output is x and no kernel serves that. `only_check`: raise what is wrong with the call."""
    refuse_derivatives(out=outputs[0], conv_states=conv_states, x=x, weight=weight, bias=bias)
    module = jit.module("causal_conv1d_varlen", targets.of(x.device))
    return module.causal_conv1d_varlen(
        outputs,
        x,
        weight,
        bias,
        conv_states,
        query_start_loc,
        cache_indices,
        cache_indices_in,
        has_initial_state,
        block_idx_first_scheduled_token,
        block_idx_last_scheduled_token,
        initial_state_idx,
        num_computed_tokens,
        block_size_to_align,
        use_silu,
        pad_slot_id,
        null_block_id,
        dead_tokens,
        kernel_name,
        (block_m, block_n, num_warps),
        None if only_check else stream(x),
    )


def check_varlen(outputs, inputs, conv_states, query_start_loc, options, kernel, tile):
    """Raise what `varlen_directly` would before it launches a kernel."""
    block_m, block_n, num_warps = tile
    _varlen(
        outputs, conv_states, *inputs, query_start_loc, *options, dead_tokens="leave", kernel_name=kernel, block_m=block_m,
        block_n=block_n, num_warps=num_warps, only_check=True,
    )  # fmt: skip


@torch.library.impl(library, "causal_conv1d_varlen", "CompositeExplicitAutograd")
def _causal_conv1d_varlen(out: Tensor, conv_states: Tensor, x: Tensor, *rest, zero_padding: bool = False, **choices):
    if not _varlen([out], conv_states, x, *rest, dead_tokens="zero" if zero_padding else "leave", **choices):
        # In place, of a call that no kernel serves so: the outputs wait elsewhere until all inputs are read; dead tokens go there and
        # back.
        waiting = torch.empty_like(x)
        _varlen([waiting], conv_states, x, *rest, dead_tokens="zero" if zero_padding else "copy", **choices)
        out.copy_(waiting)


@torch.library.impl(library, "causal_conv1d_varlen_split", "CompositeExplicitAutograd")
def _causal_conv1d_varlen_split(
    q: Tensor, k: Tensor, v: Tensor, conv_states: Tensor, x: Tensor, *rest, zero_padding: bool = False, **choices
):
    _varlen([q, k, v], conv_states, x, *rest, dead_tokens="zero" if zero_padding else "leave", **choices)


def varlen_directly(
    outputs: list[Tensor],
    inputs: tuple[Tensor, Tensor, Tensor | None],
    conv_states: Tensor,
    query_start_loc: Tensor,
    options: tuple,
    zero_padding: bool,
    kernel: str,
    tile: tuple[int, int, int],
) -> bool:
    """`_varlen` without the operator in front, or False if that has something to do. `options` are from `cache_indices` on."""
    kernels = kernels_for("causal_conv1d_varlen", *inputs, conv_states, query_start_loc, *outputs, *options[:7])
    if kernels is not None and kernels.causal_conv1d_varlen_directly(
        outputs, *inputs, conv_states, query_start_loc, *options, "zero" if zero_padding else "leave", kernel, tile, stream(inputs[0])
    ):
        return True
    x, weight, bias = inputs
    refuse_derivatives_of_torch_func(out=outputs[0], conv_states=conv_states, x=x, weight=weight, bias=bias)
    return False


for _operator in ("causal_conv1d_varlen", "causal_conv1d_varlen_split"):
    torch.library.register_fake(f"hipconv::{_operator}", fake_of(_operator), lib=library)

for _operator in (
    "causal_conv1d_update", "causal_conv1d_update_split_qkv", "causal_conv1d_varlen", "causal_conv1d_varlen_split",
):  # fmt: skip
    untouched_by_autocast(library, _operator)
    write_through_negation(library, _operator)
