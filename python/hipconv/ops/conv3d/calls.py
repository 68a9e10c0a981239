"""From a conv3d's tensors to the launch that the kernels' module makes of them:
what is worked out once for calls that are alike.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import jit
from ...jit import targets
from ...jit.targets import Target
from ..conv2d import precision
from ..conv2d.calls import card_named, card_of
from ..conv2d.geometry import Kind, kind_of
from ..conv2d.problem import Card
from ..filters import Packing, packing_of
from . import geometry, router
from .geometry import Options, Shape, Tensors


class Request(NamedTuple):
    """This is what a call asks for beside what it computes."""

    out_dtype: torch.dtype | None
    algorithm: str
    variable: str | None  # HIPCONV_CONV3D_ALGORITHM
    workspace_limit: int
    float32_precision: str = "ieee"  # or "tf32": may be rounded to it where the card has it


def request_of(
    x: Tensor, out_dtype: torch.dtype | None, algorithm: str, workspace_limit: int, float32_precision: str | None
) -> Request:  # fmt: skip
    """With what the environment variable and torch's settings say now."""
    return Request(
        out_dtype, algorithm, os.environ.get(router.VARIABLE), workspace_limit, precision.of_call(float32_precision, x)
    )


class Prepared(NamedTuple):
    call: Any  # the module's Call
    shape: Shape
    algorithm: str
    form: str
    chosen_by: str
    serving: tuple[str, ...]
    workspace: int  # of a call that packs its filters itself
    float32_precision: str  # of the products of float32; "ieee" of other dtypes
    packing: Packing | None = None  # how it reads filters that it cannot read as they are
    other_workspace: int | None = None  # of a call that gets them packed


@functools.lru_cache(4096)
def prepare(target: Target, card: Card, kinds: Tensors, o: Options, r: Request) -> Prepared:
    """Prepare how tensors of these kinds are convolved by the kernels of `target`, as the kernels would be on `card`.

    Raises TypeError or ValueError for what does not fit, an algorithm that is unknown, or one that cannot serve the call.
    """
    shape = geometry.check(kinds, r.out_dtype, o)
    module = jit.module("conv3d", target)
    t = Tensors(*(kind.on_meta() if isinstance(kind, Kind) else None for kind in kinds))
    front = o.front(t.weight.shape[2], t.cached)
    may_round = r.float32_precision == "tf32" and kinds.x.dtype == torch.float32 and module.conv3d_has_tf32(card.arch)
    products = "tf32" if may_round else "ieee"

    def call(algorithm: str) -> Any:
        numbers = (o.stride, front, o.padding[2:], o.dilation, o.groups, shape[2:])
        modes = (o.time_mode, o.is_causal, o.padding_mode, o.activation, products)
        return module.Call(*numbers, *modes, algorithm, card.arch, card.compute_units)

    names = module.conv3d_algorithms()
    wanted, chosen_by = router.requested(r.algorithm, r.variable, names)
    if 0 in shape:
        return Prepared(call(names[-1]), shape, "none", "none", "the empty result", (), 0, products)
    result = geometry.new_result(t.x, t.weight, shape, r.out_dtype) if t.out is None else t.out
    serving: dict[str, tuple[str, int]] = {}
    refusals: dict[str, str] = {}
    for name in names:
        refusal, form, workspace = module.conv3d_service(
            result, t.cache_out, t.x, t.weight, t.bias, t.residual, t.cache, call(name)
        )
        if refusal is not None:
            refusals[name] = f"serves {refusal}"
        elif workspace > r.workspace_limit:
            refusals[name] = f"needs a workspace of {workspace} bytes, workspace_limit being {r.workspace_limit}"
        else:
            serving[name] = form, workspace
    if wanted in refusals and chosen_by == router.VARIABLE:
        wanted, chosen_by = "auto", "auto"  # it holds for all calls of a process
    if wanted in refusals:
        others = ", ".join(f"'{name}'" for name in serving)
        raise ValueError(f"{chosen_by}: got '{wanted}', which {refusals[wanted]}; this call can have {others}")
    name = wanted if wanted != "auto" else next(iter(serving))
    form, workspace = serving[name]
    chosen = call(name)
    packing = packing_of(module.conv3d_packing(result, t.cache_out, t.x, t.weight, t.bias, t.residual, t.cache, chosen))
    return Prepared(chosen, shape, name, form, chosen_by, tuple(serving), workspace, products, *packing)


def prepared(t: Tensors, o: Options, r: Request) -> tuple[ModuleType, Prepared]:
    """The module that serves these tensors' device, and the launch."""
    target = targets.of(t.x.device)
    card = card_of(t.x.device) if t.x.is_cuda else card_named(target.arch)
    kinds = Tensors(*(kind_of(tensor) if isinstance(tensor, Tensor) else None for tensor in t))
    return jit.module("conv3d", target), prepare(target, card, kinds, o, r)
