"""The computations of layers with a group that no function of `hipconv.distributed` alone does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..arguments import flag, wrong_output
from .conv1d import causal_conv1d, described
from .graphs import outside_of_graphs
from .groups import group_of
from .halo import last
from .header import Local, agree


@outside_of_graphs
def short_convolution(
    x: Tensor,
    residual: Tensor | None,
    mask: Tensor | None,
    cache: Tensor | None,
    output_final_state: bool,
    cu_seqlens: Tensor | None,
    filters: tuple[Tensor, Tensor | None, str | None],
    check: Callable[[], None],
    *,
    group: object,
    sizes: Sequence[int] | None,
    layout: str,
    reduce_gradients: bool,
    validate: bool,
) -> tuple[Tensor, Tensor | None]:
    """`nn.ShortConvolution.forward` of this rank's tokens.

    Args:
        x, residual, mask, cache, output_final_state, cu_seqlens: the layer's.
        filters: weight (dim, width), bias, activation. check: raises what is wrong with this rank's tensors.
        group, sizes, layout, reduce_gradients, validate: as for `causal_conv1d`.
    """
    here = group_of(group)
    weight, bias, activation = filters
    may_write = cache is not None and not torch.is_grad_enabled()

    def look() -> Local:
        check()
        if cu_seqlens is not None and (cache is not None or output_final_state or mask is not None):
            raise ValueError(
                "cu_seqlens: got one beside cache, output_final_state or mask on a layer with a group, expected it alone"
            )
        if may_write and x.shape[1] <= 1 and (wrong := wrong_output("cache", cache)):
            raise wrong
        initial_states = None if cache is None else cache[..., 1:].to(x.dtype)
        tensors = {
            "x": x.mT,
            "weight": weight,
            "bias": bias,
            "seq_idx": None,
            "cu_seqlens": cu_seqlens,
            "initial_states": initial_states,
        }
        local = described(tensors, activation, layout, reduce_gradients=reduce_gradients)
        wants_state = flag("output_final_state", output_final_state)
        return Local({**local.settings, "output_final_state": wants_state, "may write cache": may_write}, local.size)

    all_sizes, _ = agree("hipconv.nn.ShortConvolution", here, look, near=x, validate=validate, sizes=sizes)
    if may_write and here.size > 1 and set(all_sizes) == {1}:
        raise ValueError(
            f"x: got one token on each of {here.size} ranks beside a cache, without gradients; expected a part of a longer "
            f"row: if these "
            "are next tokens of sequences, call step(), which is each rank's own; if they are one row, leave some rank "
            "without a token"
        )
    if mask is not None:
        x = (x * mask.unsqueeze(-1)).to(x.dtype)
    rows, width = x.mT, weight.shape[1]
    y = causal_conv1d(
        rows,
        weight,
        bias,
        group=group,
        cu_seqlens=cu_seqlens,
        initial_states=None if cache is None else cache[..., 1:].to(x.dtype),
        activation=activation,
        layout=layout,
        sizes=all_sizes,
        reduce_gradients=reduce_gradients,
        validate=False,
    )
    assert isinstance(y, Tensor)
    y = y.mT if residual is None else y.mT + residual
    writes = may_write and sum(all_sizes) == 1
    if not (output_final_state or writes):
        return y, None
    state, tokens = last(rows, 2, width, group, sizes=all_sizes, layout=layout, validate=False)
    if tokens < width and cache is not None:
        state = torch.cat((cache[..., tokens:].to(x.dtype), state[..., width - tokens :]), -1)
    if writes and cache is not None:
        state = cache.copy_(state)
    return y, state if output_final_state else None
