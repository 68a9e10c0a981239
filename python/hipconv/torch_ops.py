"""The torch operators ``torch.ops.hipconv.*``: schemas with exact mutation marks, implementations, fakes.

Defined through ``torch.library.Library``, whose call costs a fifth of ``torch.library.custom_op``'s. One implementation per op
serves every device; the module for the tensor's device is found, and if need be built, at the call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import jit, targets

_library = torch.library.Library("hipconv", "DEF")

_library.define(
    "causal_conv1d_fwd(Tensor(a!) out, Tensor x, Tensor weight, Tensor? bias=None, bool use_silu=False, *, str kernel='auto') -> ()"
)


@torch.library.impl(_library, "causal_conv1d_fwd", "CompositeExplicitAutograd")
def _causal_conv1d_fwd(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, use_silu: bool = False, *, kernel: str = "auto"):
    if torch.is_grad_enabled():
        _refuse_gradients({"out": out, "x": x, "weight": weight, "bias": bias})
    module = jit.module("causal_conv1d", targets.of(x.device))
    module.causal_conv1d_fwd(out, x, weight, bias, use_silu, kernel, _stream(x))


@torch.library.register_fake("hipconv::causal_conv1d_fwd", lib=_library)
def _causal_conv1d_fwd_fake(out, x, weight, bias=None, use_silu=False, *, kernel="auto"):
    # torch also comes here when one of several real tensors is on the meta device; nothing would be computed.
    for name, tensor in (("out", out), ("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name}: got a tensor on {tensor.device}, expected it on {x.device}, where x is")


def _stream(tensor: Tensor) -> int:
    """The current stream of the tensor's device, as the pointer that kernels are launched on."""
    return torch._C._cuda_getCurrentRawStream(tensor.device.index) if tensor.is_cuda else 0


def _refuse_gradients(tensors: dict[str, Tensor | None]) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise ValueError(
                f"{name}: got a tensor that requires grad, expected none while grad mode is on: this form writes into `out` and "
                "records no gradient. Call it under torch.no_grad(), or pass detached tensors."
            )


# ---- decode ------------------------------------------------------------------------------------------------------------------------

# What both forms of the update take after their outputs and x. `state_at_end`: the window is in the last columns of a slot.
_UPDATE_ARGUMENTS = (
    "Tensor({0}!) conv_state, Tensor weight, Tensor? bias, bool use_silu, *, Tensor? conv_state_indices=None, "
    "Tensor? conv_state_indices_in=None, Tensor? num_accepted_tokens=None, Tensor? query_start_loc=None, int max_query_len=-1, "
    "int? pad_slot_id=None, Tensor? block_idx_last_scheduled_token=None, Tensor? initial_state_idx=None, Tensor? cache_seqlens=None, "
    "Tensor({1}!)? intermediate_conv_window=None, Tensor? intermediate_state_indices=None, Tensor? retrieve_next_token=None, "
    "Tensor? retrieve_next_sibling=None, Tensor({2}!)? retrieve_parent_token=None, bool state_at_end=False, bool zero_padding=True, "
    "str kernel='auto'"
)

_library.define(f"causal_conv1d_update(Tensor(a!) out, Tensor? x, {_UPDATE_ARGUMENTS.format('b', 'c', 'd')}) -> ()")
_library.define(
    f"causal_conv1d_update_split_qkv(Tensor(a!) q, Tensor(b!) k, Tensor(c!) v, Tensor x, {_UPDATE_ARGUMENTS.format('d', 'e', 'f')}) -> ()"
)


@torch.library.impl(_library, "causal_conv1d_update", "CompositeExplicitAutograd")
def _causal_conv1d_update(out, x, *arguments, **options):
    """`x` None: `out` holds x, which is overwritten."""
    _update([out], out if x is None else x, *arguments, **options)


@torch.library.impl(_library, "causal_conv1d_update_split_qkv", "CompositeExplicitAutograd")
def _causal_conv1d_update_split_qkv(q, k, v, x, *arguments, **options):
    _update([q, k, v], x, *arguments, **options)


def _update(
    outs, x, conv_state, weight, bias, use_silu, conv_state_indices=None, conv_state_indices_in=None, num_accepted_tokens=None,
    query_start_loc=None, max_query_len=-1, pad_slot_id=None, block_idx_last_scheduled_token=None, initial_state_idx=None,
    cache_seqlens=None, intermediate_conv_window=None, intermediate_state_indices=None, retrieve_next_token=None,
    retrieve_next_sibling=None, retrieve_parent_token=None, state_at_end=False, zero_padding=True, kernel="auto",
):  # fmt: skip
    if torch.is_grad_enabled():
        _refuse_gradients({"out": outs[0], "x": x, "conv_state": conv_state, "weight": weight, "bias": bias})
    jit.module("causal_conv1d_update", targets.of(x.device)).causal_conv1d_update(
        outs, x, conv_state, weight, bias, use_silu, conv_state_indices, conv_state_indices_in, num_accepted_tokens, query_start_loc,
        max_query_len, pad_slot_id, block_idx_last_scheduled_token, initial_state_idx, cache_seqlens, intermediate_conv_window,
        intermediate_state_indices, retrieve_next_token, retrieve_next_sibling, retrieve_parent_token, state_at_end, zero_padding,
        kernel, _stream(x),
    )  # fmt: skip


@torch.library.register_fake("hipconv::causal_conv1d_update", lib=_library)
@torch.library.register_fake("hipconv::causal_conv1d_update_split_qkv", lib=_library)
def _causal_conv1d_update_fake(*arguments, **options):
    """Writes only into what it is given. torch also comes here when one of several real tensors is on the meta device."""
    tensors = [value for value in (*arguments, *options.values()) if isinstance(value, Tensor)]
    if any(tensor.device != tensors[0].device for tensor in tensors):
        _refuse_two_devices(*arguments, **options)


def _refuse_two_devices(*arguments, **options):
    names = [argument.name for argument in torch.ops.hipconv.causal_conv1d_update.default._schema.arguments]
    if len(arguments) > 6:  # q, k, v in the place of out
        names[:1] = ["q", "k", "v"]
    named = dict(zip(names, arguments, strict=False)) | options
    x = named["x"] if named["x"] is not None else named["out"]
    for name, tensor in named.items():
        if isinstance(tensor, Tensor) and tensor.device != x.device:
            raise ValueError(f"{name}: got a tensor on {tensor.device}, expected it on {x.device}, where x is")
