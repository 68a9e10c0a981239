"""The fakes of conv1d's operators refuse tensors without memory that no kernel would take, in the same words.

Sizes that a graph leaves open may be right.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..arguments import wrong_dtype, wrong_weight


def known(*shapes: Sequence) -> bool:
    """Tell whether a graph leaves none of the sizes open."""
    return all(type(size) is int for shape in shapes for size in shape)


def check_inputs(
    x: Tensor,
    ranks: tuple[int, ...],
    axes: str,
    channels: int,
    weight: Tensor,
    bias: Tensor | None,
    may_be_double: bool = False,
) -> None:
    """Check x, of the `axes` that the `ranks` have, weight (dim, width) and bias (dim,), where dim is x.size(channels)."""
    if x.dim() not in ranks:
        expected = " or ".join(map(str, ranks))
        raise ValueError(f"x: got shape {tuple(x.shape)}, expected {expected} dimensions {axes}")
    fixed = weight.dim() != 2 or known(x.shape[channels : channels + 1], weight.shape)
    if fixed and (wrong := wrong_weight(x, channels, weight)):
        raise wrong
    doubles = may_be_double and x.dtype == torch.float64
    for name, tensor in (("x", x), ("weight", weight), ("bias", bias)):
        if tensor is not None and not (doubles and tensor.dtype == torch.float64):
            check_dtype(name, tensor)
    sizes = () if bias is None else bias.shape
    if known(sizes, weight.shape) and 0 not in sizes and sizes not in ((), weight.shape[:1]):
        raise ValueError(f"bias: got shape {tuple(sizes)}, expected (dim,) = ({weight.shape[0]},)")


def check_dtype(name: str, tensor: Tensor) -> None:
    if error := wrong_dtype(name, tensor.dtype):
        raise error


def check_states(name: str, states: Tensor, weight: Tensor) -> None:
    """Check that states are (slots, dim, state_len), with room for the window of width - 1 columns."""
    if states.dim() != 3:
        raise ValueError(f"{name}: got shape {tuple(states.shape)}, expected 3 dimensions (slots, dim, state_len)")
    check_dtype(name, states)
    dim, width = weight.shape
    if known(states.shape[1:], (dim, width)) and (states.shape[1] != dim or states.shape[2] < width - 1):
        raise ValueError(
            f"{name}: got shape {tuple(states.shape)}, expected (slots, {dim}, state_len >= width - 1 = {width - 1})"
        )


def check_out(out: Tensor, x: Tensor) -> None:
    if out.dtype != x.dtype:
        raise TypeError(f"out: got dtype {out.dtype}, expected that of x, {x.dtype}")
    if out.dim() != x.dim() or (known(out.shape, x.shape) and out.shape != x.shape):
        raise ValueError(f"out: got shape {tuple(out.shape)}, expected the shape of x = {tuple(x.shape)}")
