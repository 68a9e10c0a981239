"""The torch operators of serving, ``torch.ops.hipconv.causal_conv1d_update`` and ``causal_conv1d_varlen``, each also with its
output split into q, k and v; and the ways past them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import jit
from ...jit import targets
from ..dispatch import fake, fake_of, kernels_for, library, refuse_derivatives, refuse_derivatives_of_torch_func, stream
from ..fakes import check_inputs, check_out, check_states
from ..transforms import untouched_by_autocast, write_through_negation
from .options import DECODE_WRITES, DecodeTensors, PrefillOptions, schema_of

# ---- decode ------------------------------------------------------------------------------------------------------------------


def _decode_arguments(pool: str, window: str, parent: str) -> str:
    """Both forms take this after their outputs and x; the letters mark what is written. `state_at_end`: the window is in the
    last columns of a slot.
    """
    written = dict(zip(DECODE_WRITES, (window, parent), strict=True))
    return (
        f"Tensor({pool}!) conv_state, Tensor weight, Tensor? bias, bool use_silu, *, {schema_of(DecodeTensors, written)}, "
        "int max_query_len=-1, int? pad_slot_id=None, bool state_at_end=False, bool zero_padding=True, str kernel_name='auto'"
    )


library.define(f"causal_conv1d_update(Tensor(a!) out, Tensor? x, {_decode_arguments('b', 'c', 'd')}) -> ()")
library.define(
    f"causal_conv1d_update_split_qkv(Tensor(a!) q, Tensor(b!) k, Tensor(c!) v, Tensor x, {_decode_arguments('d', 'e', 'f')}) "
    f"-> ()"
)


@torch.library.impl(library, "causal_conv1d_update", "CompositeExplicitAutograd")
def _causal_conv1d_update(out, x, conv_state, weight, bias, use_silu, **options):
    """`x` None: `out` holds x, which is overwritten."""
    _update([out], (out if x is None else x, conv_state, weight, bias), use_silu, **options)


@torch.library.impl(library, "causal_conv1d_update_split_qkv", "CompositeExplicitAutograd")
def _causal_conv1d_update_split_qkv(q, k, v, x, conv_state, weight, bias, use_silu, **options):
    _update([q, k, v], (x, conv_state, weight, bias), use_silu, **options)


def _update(
    outs, inputs, use_silu, *, max_query_len=-1, pad_slot_id=None, state_at_end=False, zero_padding=True, kernel_name="auto",
    only_check=False, **tensors,
):  # fmt: skip
    """`inputs` are x, conv_state, weight and bias. `only_check`: raise what is wrong with the call, and do nothing."""
    x, conv_state, weight, bias = inputs
    refuse_derivatives(out=outs[0], x=x, conv_state=conv_state, weight=weight, bias=bias)
    given = DecodeTensors(**tensors)
    jit.module("causal_conv1d_update", targets.of(x.device)).causal_conv1d_update(
        outs, *inputs, use_silu, *given[:4], max_query_len, pad_slot_id, *given[4:], state_at_end, zero_padding, kernel_name,
        None if only_check else stream(x),
    )  # fmt: skip


def check_update(outs, inputs, tensors, max_query_len, kernel):
    """Raise what `update_directly` would before it launches a kernel."""
    _update(outs, inputs, False, max_query_len=max_query_len, kernel_name=kernel, only_check=True, **tensors._asdict())


def update_directly(
    outs: list[Tensor] | None,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None],
    use_silu: bool,
    tensors: tuple[Tensor | None, ...],
    max_query_len: int,
    pad_slot_id: int | None,
    *,
    state_at_end: bool,
    zero_padding: bool,
    kernel: str,
) -> list[Tensor] | Tensor | None:
    """`_update` without the operator in front; None if that has something to do, else `outs`, or a new tensor in its place.
    `inputs` are x, conv_state, weight and bias, and `tensors` are in the order of `DecodeTensors`.
    """
    kernels = kernels_for("causal_conv1d_update", inputs[0])
    if kernels is not None:
        written = kernels.causal_conv1d_update_directly(
            outs, inputs, use_silu, tensors, max_query_len, pad_slot_id, state_at_end, zero_padding, kernel
        )
        if written is not None:
            return written
    names = ("out", "x", "conv_state", "weight", "bias")
    refuse_derivatives_of_torch_func(**dict(zip(names, (outs[0] if outs else None, *inputs), strict=True)))
    return None


def _check_decode_fakes(x, conv_state, weight, bias=None, out=None, query_start_loc=None, **_):
    if query_start_loc is None:
        check_inputs(x, (2, 3), "(batch, dim) or (batch, dim, seqlen)", 1, weight, bias)
    else:
        check_inputs(x, (2,), "(tokens, dim), as there is a query_start_loc", 1, weight, bias)
    check_states("conv_state", conv_state, weight)
    if out is not None:
        check_out(out, x)


for _operator in ("causal_conv1d_update", "causal_conv1d_update_split_qkv"):
    fake(_operator)(fake_of(_operator, _check_decode_fakes))


# ---- prefill -----------------------------------------------------------------------------------------------------------------

_VARLEN_INPUTS = f"Tensor x, Tensor weight, Tensor? bias, Tensor query_start_loc, {schema_of(PrefillOptions)}"
_VARLEN_CHOICES = "str kernel_name='auto', int block_m=0, int block_n=0, int num_warps=0"

library.define(
    f"causal_conv1d_varlen(Tensor(a!) out, Tensor(b!) conv_states, {_VARLEN_INPUTS}, *, bool zero_padding=False, "
    f"{_VARLEN_CHOICES}) -> ()"
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
    *options: Any,
    dead_tokens: str,
    kernel_name: str = "auto",
    block_m: int = 0,
    block_n: int = 0,
    num_warps: int = 0,
    only_check: bool = False,
) -> bool:
    """False, and nothing is done, if the output is x and no kernel serves that. `only_check`:
    raise what is wrong with the call.
    """
    refuse_derivatives(out=outputs[0], conv_states=conv_states, x=x, weight=weight, bias=bias)
    module = jit.module("causal_conv1d_varlen", targets.of(x.device))
    return module.causal_conv1d_varlen(
        outputs, x, weight, bias, conv_states, query_start_loc, *PrefillOptions(*options), dead_tokens, kernel_name,
        (block_m, block_n, num_warps), None if only_check else stream(x),
    )  # fmt: skip


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
        # In place, of a call that no kernel serves so: the outputs wait elsewhere until all inputs are read; dead tokens go
        # there and back.
        waiting = torch.empty_like(x)
        _varlen([waiting], conv_states, x, *rest, dead_tokens="zero" if zero_padding else "copy", **choices)
        out.copy_(waiting)


@torch.library.impl(library, "causal_conv1d_varlen_split", "CompositeExplicitAutograd")
def _causal_conv1d_varlen_split(
    q: Tensor, k: Tensor, v: Tensor, conv_states: Tensor, x: Tensor, *rest, zero_padding: bool = False, **choices
):
    _varlen([q, k, v], conv_states, x, *rest, dead_tokens="zero" if zero_padding else "leave", **choices)


def varlen_directly(
    outputs: list[Tensor] | None,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    conv_states: Tensor,
    query_start_loc: Tensor,
    options: tuple,
    zero_padding: bool,
    kernel: str,
    tile: tuple[int, int, int],
) -> list[Tensor] | Tensor | None:
    """`_varlen` without the operator in front; None if that has something to do, else `outputs`, or a new tensor in their
    place. `options` are in the order of `PrefillOptions`.
    """
    x, weight, bias = inputs
    kernels = kernels_for("causal_conv1d_varlen", x)
    if kernels is not None:
        written = kernels.causal_conv1d_varlen_directly(
            outputs, inputs, conv_states, query_start_loc, options, "zero" if zero_padding else "leave", kernel, tile
        )
        if written is not None:
            return written
    refuse_derivatives_of_torch_func(
        out=outputs[0] if outputs else None, conv_states=conv_states, x=x, weight=weight, bias=bias
    )
    return None


def _check_prefill_fakes(x, conv_states, weight, bias=None, out=None, **_):
    check_inputs(x, (2,), "(dim, tokens)", 0, weight, bias)
    check_states("conv_states", conv_states, weight)
    if out is not None:
        check_out(out, x)


for _operator in ("causal_conv1d_varlen", "causal_conv1d_varlen_split"):
    fake(_operator)(fake_of(_operator, _check_prefill_fakes))

for _operator in (
    "causal_conv1d_update", "causal_conv1d_update_split_qkv", "causal_conv1d_varlen", "causal_conv1d_varlen_split",
):  # fmt: skip
    untouched_by_autocast(library, _operator)
    write_through_negation(library, _operator)
