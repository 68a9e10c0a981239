"""From a conv2d's tensors to the launch that the kernels' module makes of them: what is worked out once for calls that are alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from contextvars import ContextVar
import functools
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import jit
from ...jit import targets
from ...jit.architectures import compute_units
from ...jit.targets import Target
from . import geometry, router
from .geometry import Kind, Options, kind_of
from .problem import Card, Problem, Tile, Tiles
from .router import Choice


class Request(NamedTuple):
    """This is what a call asks for beside what it computes."""

    out_dtype: torch.dtype | None
    algorithm: str
    variable: str | None  # HIPCONV_CONV2D_ALGORITHM
    workspace_limit: int
    float32_precision: str = "ieee"  # or "tf32": may be rounded to it where the card has it


class Prepared(NamedTuple):
    call: Any  # the module's Call
    choice: Choice
    chosen_by: str
    serving: tuple[str, ...]
    problem: Problem
    workspace: int


@functools.lru_cache(4096)
def prepare(
    target: Target, card: Card, x: Kind, weight: Kind, bias: Kind | None, residual: Kind | None, out: Kind | None, o: Options, r: Request,
    pin: Choice | None = None,
) -> Prepared:  # fmt: skip
    """Prepare how tensors of these kinds are convolved by the kernels of `target`, as the kernels would be on `card`.

    A `pin` is taken where it serves the call.

    Raises TypeError or ValueError for what does not fit, an algorithm that is unknown, or one that cannot serve the call.
    """
    shape = geometry.check(x, weight, bias, residual, out, r.out_dtype, o)
    module = jit.module("conv2d", target)
    on_meta = [None if kind is None else kind.on_meta() for kind in (x, weight, bias, residual)]
    assert on_meta[0] is not None and on_meta[1] is not None
    result = geometry.new_result(on_meta[0], on_meta[1], shape, r.out_dtype) if out is None else out.on_meta()
    channels_last = geometry.is_channels_last(on_meta[0], on_meta[1])
    may_round = r.float32_precision == "tf32" and x.dtype == torch.float32 and module.conv2d_has_tf32(card.arch)
    problem = problem_of(x, weight, shape, o, channels_last)._replace(float32_precision="tf32" if may_round else "ieee")

    def call(algorithm: str, tile: Tile = (0, 0), split_k: int = 1) -> Any:
        numbers = (o.stride, o.padding, o.dilation, o.groups, o.padding_mode, o.activation, problem.float32_precision, shape[2:])
        return module.Call(*numbers, result.dtype, channels_last, algorithm, (*tile, split_k))

    names = module.conv2d_algorithms()
    variable = r.variable
    if variable in names and module.conv2d_tiles(variable, card.arch, torch.bfloat16) == []:
        variable = None  # only other cards have it
    wanted, chosen_by = router.requested(r.algorithm, variable, names)
    if 0 in shape:
        return Prepared(call(names[-1]), Choice("none", (0, 0), 1, "nothing to compute"), "the empty result", (), problem, 0)
    serving, refusals = _who_serves(module, card, (result, *on_meta), x.dtype, call, r.workspace_limit)
    if wanted in refusals:
        others = ", ".join(f"'{name}'" for name in serving)
        raise ValueError(f"{chosen_by}: got '{wanted}', which {refusals[wanted]}; this call can have {others}")
    allowed = {wanted: serving[wanted]} if wanted != "auto" else serving
    limit = r.workspace_limit
    if pin is not None and pin.algorithm in allowed and (not any(pin.tile) or pin.tile in allowed[pin.algorithm]):
        chosen = call(pin.algorithm, pin.tile, pin.split_k)
        if module.conv2d_refusal(result, *on_meta, chosen) is None:
            workspace = module.conv2d_workspace(result, *on_meta, chosen)
            return Prepared(chosen, pin, chosen_by, tuple(serving), problem, workspace)
    while True:
        choice = router.choose(problem, card, tuple(allowed.items()), limit)
        chosen = call(choice.algorithm, choice.tile, choice.split_k)
        workspace = module.conv2d_workspace(result, *on_meta, chosen)
        if workspace <= r.workspace_limit or limit == 0:
            return Prepared(chosen, choice, chosen_by, tuple(serving), problem, workspace)
        limit = max(0, limit - (workspace - r.workspace_limit))  # the kernel takes more than the partial sums


def _who_serves(
    module: ModuleType, card: Card, tensors: tuple, dtype: torch.dtype, call: Callable[..., Any], workspace_limit: int
) -> tuple[dict[str, Tiles], dict[str, str]]:
    """The algorithms that can run a call, with the tiles in which they do; and why each of the others cannot."""
    serving: dict[str, Tiles] = {}
    refusals: dict[str, str] = {}
    for name in module.conv2d_algorithms():
        known = module.conv2d_tiles(name, card.arch, dtype)  # None: it has none on any card
        if known is not None and not known:
            refusals[name] = f"serves no {str(dtype).removeprefix('torch.')} on {card.arch}"
            continue
        tiles = tuple((m, n) for m, n in known or () if module.conv2d_refusal(*tensors, call(name, (m, n))) is None)
        served = module.conv2d_refusal(*tensors, call(name))
        if served is not None:
            refusals[name] = f"serves {served}"
        elif (needs := module.conv2d_workspace(*tensors, call(name, tiles[0] if tiles else (0, 0)))) > workspace_limit:
            refusals[name] = f"needs a workspace of {needs} bytes, workspace_limit being {workspace_limit}"
        else:
            serving[name] = tiles
    return serving, refusals


def problem_of(x: Kind, weight: Kind, shape: tuple[int, int, int, int], o: Options, channels_last: bool) -> Problem:
    batch, channels, *image = x.shape
    return Problem(
        batch=batch,
        in_channels=channels,
        in_size=(image[0], image[1]),
        out_channels=shape[1],
        kernel=(weight.shape[2], weight.shape[3]),
        out_size=shape[2:],
        stride=o.stride,
        padding=o.padding,
        dilation=o.dilation,
        groups=o.groups,
        dtype=str(x.dtype).removeprefix("torch."),
        layout="nhwc" if channels_last else "nchw",
    )


# ---- cards -------------------------------------------------------------------------------------------------------------------------


@functools.lru_cache(64)
def card_of(device: torch.device) -> Card:
    """The card that `device` is, with the units that its driver reports."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return Card(targets.of(device).arch, torch.cuda.get_device_properties(index).multi_processor_count)


def card_named(arch: str) -> Card:
    return Card(arch, compute_units(arch))


def prepared(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, out: Tensor | None, o: Options, r: Request
) -> tuple[ModuleType, Prepared]:
    """The module that serves these tensors' device, and the launch."""
    target = targets.of(x.device)
    card = card_of(x.device) if x.is_cuda else card_named(target.arch)
    kinds = [None if tensor is None else kind_of(tensor) for tensor in (bias, residual, out)]
    whole, pin = _whole.get(), None
    if whole is not None:  # autocast may have changed dtypes since it was described
        of_whole = whole.x._replace(dtype=x.dtype)
        residual_of_whole = None if whole.residual is None or kinds[1] is None else whole.residual._replace(dtype=kinds[1].dtype)
        pin = prepare(target, card, of_whole, kind_of(weight), kinds[0], residual_of_whole, None, whole.options, r).choice
    return jit.module("conv2d", target), prepare(target, card, kind_of(x), kind_of(weight), *kinds, o, r, pin)


# ---- parts of an image --------------------------------------------------------------------------------------------------------------


class Whole(NamedTuple):
    """The call on a whole image, of which the calls at hand convolve parts."""

    x: Kind
    residual: Kind | None
    options: Options


_whole: ContextVar[Whole | None] = ContextVar("hipconv_conv2d_whole", default=None)


@contextlib.contextmanager
def pinned_to(whole: Whole) -> Iterator[None]:
    """As long as it lasts, operators take the algorithm, tile and split of the call on the whole image, so that sums have its order."""
    token = _whole.set(whole)
    try:
        yield
    finally:
        _whole.reset(token)
