"""From a conv2d's tensors to the launch that the kernels' module makes of them:
what is worked out once for calls that are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from contextvars import ContextVar
import functools
import os
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import jit
from ...jit import targets
from ...jit.architectures import compute_units
from ...jit.targets import Target
from ..filters import Packing, packing_of
from . import geometry, measured, precision, router
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
    exact: bool = False  # "auto" takes no algorithm whose rounding depends on where an image begins


def request_of(
    x: Tensor, out_dtype: torch.dtype | None, algorithm: str, workspace_limit: int, float32_precision: str | None
) -> Request:  # fmt: skip
    """With what the environment variable and torch's settings say now."""
    return Request(
        out_dtype, algorithm, os.environ.get(router.VARIABLE), workspace_limit, precision.of_call(float32_precision, x)
    )


class Prepared(NamedTuple):
    call: Any  # the module's Call
    choice: Choice
    chosen_by: str
    serving: tuple[str, ...]
    allowed: tuple[tuple[str, Tiles], ...]  # of those, what the caller leaves open
    problem: Problem
    workspace: int  # of a call that packs its filters itself
    packing: Packing | None = None  # how it reads filters that it cannot read as they are
    other_workspace: int | None = None  # of a call that gets them packed


@functools.lru_cache(4096)
def prepare(
    target: Target,
    card: Card,
    x: Kind,
    weight: Kind,
    bias: Kind | None,
    residual: Kind | None,
    out: Kind | None,
    o: Options,
    r: Request,
    pin: Choice | None = None,
) -> Prepared:
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
        numbers = (
            o.stride,
            o.padding,
            o.dilation,
            o.groups,
            o.padding_mode,
            o.activation,
            problem.float32_precision,
            shape[2:],
            result.dtype,
            channels_last,
        )
        return module.Call(*numbers, algorithm, card.arch, (*tile, split_k), r.workspace_limit)

    names = module.conv2d_algorithms()
    variable = r.variable
    if variable in names and module.conv2d_tiles(variable, card.arch, torch.bfloat16) == []:
        variable = None  # only other cards have it
    wanted, chosen_by = router.requested(r.algorithm, variable, names)
    if 0 in shape:
        return Prepared(
            call(names[-1]), Choice("none", (0, 0), 1, "nothing to compute"), "the empty result", (), (), problem, 0
        )
    serving, refusals = _who_serves(module, card, (result, *on_meta), x.dtype, call, r.workspace_limit)
    if wanted in refusals:
        others = ", ".join(f"'{name}'" for name in serving)
        raise ValueError(f"{chosen_by}: got '{wanted}', which {refusals[wanted]}; this call can have {others}")
    exact = {name: tiles for name, tiles in serving.items() if not r.exact or router.ALGORITHMS[name].exact}
    allowed = {wanted: serving[wanted]} if wanted != "auto" else exact

    def prepared(choice: Choice) -> Prepared:
        chosen = call(choice.algorithm, choice.tile, choice.split_k)
        workspace = module.conv2d_workspace(result, *on_meta, chosen)
        packing = packing_of(module.conv2d_packing(result, *on_meta, chosen))
        return Prepared(chosen, choice, chosen_by, tuple(serving), tuple(allowed.items()), problem, workspace, *packing)

    def serves(pin: Choice) -> bool:
        if pin.algorithm not in allowed or (any(pin.tile) and pin.tile not in allowed[pin.algorithm]):
            return False
        return module.conv2d_refusal(result, *on_meta, call(pin.algorithm, pin.tile, pin.split_k)) is None

    if pin is not None and serves(pin):
        return prepared(pin)
    limit = r.workspace_limit  # that the router's estimates keep to
    while True:
        found = prepared(router.choose(problem, card, tuple(allowed.items()), limit))
        if found.workspace <= r.workspace_limit or limit == 0:
            return found
        limit = max(0, limit - (found.workspace - r.workspace_limit))  # the kernel takes more than the partial sums


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
        padding_mode=o.padding_mode,
    )


# ---- cards -------------------------------------------------------------------------------------------------------------------


@functools.lru_cache(64)
def card_of(device: torch.device) -> Card:
    """The card that `device` is, with the units that its driver reports, and what had been measured of it at the first call."""
    index = torch.cuda.current_device() if device.index is None else device.index
    properties = torch.cuda.get_device_properties(index)
    arch, units = targets.of(device).arch, properties.multi_processor_count
    return Card(arch, units, measured.of_card(arch, units, properties.name))


def card_named(arch: str) -> Card:
    units = compute_units(arch)
    return Card(arch, units, measured.of_card(arch, units))


def prepared(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, out: Tensor | None, o: Options, r: Request
) -> tuple[ModuleType, Prepared]:
    """The module that serves these tensors' device, and the launch."""
    target = targets.of(x.device)
    card = card_of(x.device) if x.is_cuda else card_named(target.arch)
    kinds = [None if tensor is None else kind_of(tensor) for tensor in (bias, residual, out)]
    return jit.module("conv2d", target), prepare(target, card, kind_of(x), kind_of(weight), *kinds, o, r, _pin.get())


# ---- parts of an image -------------------------------------------------------------------------------------------------------


class Whole(NamedTuple):
    """The call on a whole image, of which the calls at hand convolve parts."""

    x: Kind
    residual: Kind | None
    options: Options


SLOWER = 1.25  # times, by the estimates: what a limit that only a whole image meets may cost its parts


@functools.lru_cache(4096)
def prepare_part(
    target: Target,
    card: Card,
    x: Kind,
    weight: Kind,
    bias: Kind | None,
    residual: Kind | None,
    o: Options,
    r: Request,
    whole: Whole,
) -> Prepared:
    """The launch for a part of an image, with the plan of the whole where it serves.

    A whole image may be so large that what is best for it does not serve it, or needs more memory than `workspace_limit`. Where
    its plan is that much slower, or where the algorithm that is asked for serves the part alone, the part gets a plan of its
    own.
    """
    alone = prepare(target, card, x, weight, bias, residual, None, o, r)
    try:
        of_whole = prepare(target, card, whole.x, weight, bias, whole.residual, None, whole.options, r)
    except ValueError:  # the arguments fit, as the part shows
        return alone
    limits = [router.estimated_us(of_whole.problem, card, served.allowed, r.workspace_limit) for served in (of_whole, alone)]
    if not alone.allowed or limits[0] > SLOWER * limits[1]:
        return alone
    return prepare(target, card, x, weight, bias, residual, None, o, r, of_whole.choice)


def choice_of_part(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    whole: Whole,
    part: Kind,
    o: Options,
    out_dtype: torch.dtype | None,
    algorithm: str,
) -> Choice | None:
    """Return what convolves a `part` of an image, on x's device; None where torch does.

    Raises TypeError or ValueError: what the call would raise.
    """
    target = targets.of(x.device)
    if x.device.type == "cpu" and target.backend == "cpu":
        return None
    card = card_of(x.device) if x.is_cuda else card_named(target.arch)
    request = request_of(x, out_dtype, algorithm, router.WORKSPACE_LIMIT, None)._replace(exact=True)
    return prepare_part(
        target, card, part, kind_of(weight), None if bias is None else kind_of(bias), None, o, request, whole
    ).choice


def follows(
    choice: Choice, x: Tensor, weight: Tensor, bias: Tensor | None, piece: Kind, residual: Kind | None, o: Options,
    out_dtype: torch.dtype | None, algorithm: str,
) -> bool:  # fmt: skip
    """Tell whether what is chosen for a part convolves a `piece` of it, on x's device."""
    target = targets.of(x.device)
    card = card_of(x.device) if x.is_cuda else card_named(target.arch)
    request = request_of(x, out_dtype, algorithm, router.WORKSPACE_LIMIT, None)._replace(exact=True)
    of_bias = None if bias is None else kind_of(bias)
    return prepare(target, card, piece, kind_of(weight), of_bias, residual, None, o, request, choice).choice == choice


def is_named(algorithm: str) -> bool:
    """Tell whether a call, or the environment, names an algorithm, which may refuse it."""
    return algorithm != "auto" or os.environ.get(router.VARIABLE) not in (None, "", "auto")


def check_request(x: Tensor, out_dtype: torch.dtype | None, algorithm: str) -> None:
    """Raise what is wrong with the dtype of a result, and with an algorithm's name or the environment's."""
    geometry.check_out_dtype(out_dtype)
    target = targets.of(x.device)
    on_cpu = x.device.type == "cpu" and target.backend == "cpu"
    names = [router.CPU_METHOD] if on_cpu else jit.module("conv2d", target).conv2d_algorithms()
    router.requested(algorithm, os.environ.get(router.VARIABLE), names)


_pin: ContextVar[Choice | None] = ContextVar("hipconv_conv2d_pin", default=None)
pin = _pin.get


@contextlib.contextmanager
def pinned_to(choice: Choice | None) -> Iterator[None]:
    """As long as it lasts, operators take this algorithm, tile and split where they serve, so that sums have their order."""
    token = _pin.set(choice)
    try:
        yield
    finally:
        _pin.reset(token)
