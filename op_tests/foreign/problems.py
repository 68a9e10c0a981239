"""Convolutions of other libraries' test lists: how a list is kept, how a problem becomes small enough for a CPU, and how it is
checked.

A list is a text file of `data/` with a problem a line, as numbers: `NxCxHxW KxRxS`, then, where they are not the plain ones,
`s` (stride), `p` (padding: top, bottom, left, right), `d` (distance of taps, 1 for neighbours) and `g` (groups). `# name` says
which file of the library the lines after it are from. Shapes alone are kept: what a problem should give is computed by torch.

A problem is checked with small integers, as oneDNN fills its own: every sum is exact in float32, so the result has to be that
of torch's convolution in float64, rounded once, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import functools
import math
from pathlib import Path
import random
from typing import Any, NamedTuple

import torch
from torch import Tensor
import torch.nn.functional as F

from conv2d.cases import LAYOUTS, Case, exact
from support.backends import EVERYTHING, WAYS, environment
from support.tensors import DTYPES
import hipconv

DATA = Path(__file__).parent / "data"
SIMT_MACS = (
    12_000  # of a reduced problem, where its channels, filter and groups allow that few: milliseconds of emulated matrix cores
)
LARGEST_MACS = (
    400_000  # of a reduced problem that simt runs; its filter, its groups or odd channels may ask for more than SIMT_MACS
)

# The cards whose routers name the algorithm, and the way that simt runs the kernels of such a card.
CARDS = {"sm_90": "simt-wave32-shuffled", "gfx942": "simt-wave64"}


class Problem(NamedTuple):
    origin: str  # the file of the library that it is from
    case: Case  # its shape, stride, padding, dilation and groups


# ---- lists -------------------------------------------------------------------------------------------------------------------


def line_of(case: Case) -> str:
    """A problem as its list has it."""
    (top, bottom), (left, right) = case.sides
    line = f"{case.N}x{case.C}x{case.H}x{case.W} {case.K}x{case.R}x{case.S}"
    for letter, numbers, plain in (("s", case.stride, 1), ("p", (top, bottom, left, right), 0), ("d", case.dilation, 1)):
        if set(numbers) != {plain}:
            line += f" {letter}" + (str(numbers[0]) if len(set(numbers)) == 1 else ",".join(map(str, numbers)))
    return line + (f" g{case.groups}" if case.groups != 1 else "")


def case_of(line: str) -> Case:
    """The problem of a line of a list; ValueError if it is none."""
    sizes, filters, *rest = line.split()
    numbers = {text[0]: [int(number) for number in text[1:].split(",")] for text in rest}

    def several(letter: str, count: int, plain: int) -> tuple[int, ...]:
        given = numbers.pop(letter, [plain])
        if len(given) not in (1, count):
            raise ValueError(f"{line}: {len(given)} numbers after {letter}, expected 1 or {count}")
        return tuple(given * count) if len(given) == 1 else tuple(given)

    N, C, H, W = map(int, sizes.split("x"))
    K, R, S = map(int, filters.split("x"))
    options: Any = (several("s", 2, 1), several("p", 4, 0), several("d", 2, 1), several("g", 1, 1)[0])
    case = Case(N, C, H, W, K, R, S, *options)
    if numbers:
        raise ValueError(f"{line}: '{next(iter(numbers))}' is no letter of a problem")
    if not is_valid(case):
        raise ValueError(f"{line}: is no convolution")
    return case


def is_valid(case: Case) -> bool:
    """Tell whether it has sizes of at least one, channels that its groups divide, and a result of at least one pixel."""
    sizes = (case.N, case.C, case.H, case.W, case.K, case.R, case.S, case.groups, *case.stride, *case.dilation)
    return (
        min(sizes) >= 1
        and min(map(min, case.sides)) >= 0
        and case.C % case.groups == case.K % case.groups == 0
        and min(case.out_size) >= 1
    )


def read_list(name: str) -> list[Problem]:
    """The problems of `data/<name>.txt`, in its order."""
    problems, origin = [], ""
    for line in (DATA / f"{name}.txt").read_text().splitlines():
        if line.startswith("# "):
            origin = line.removeprefix("# ")
        elif line and not line.startswith("#"):
            problems.append(Problem(origin, case_of(line)))
    return problems


def write_list(name: str, head: str, problems: Iterable[Problem]) -> int:
    """Write `data/<name>.txt`, the first of those that are the same where a CPU runs them; how many those are.

    Those that stay too large for simt are kept for GPUs, up to 2^26 elements of x, weight and result with one image.
    """
    lines, seen, origin = [f"## {line}" for line in head.splitlines()], set(), ""
    for problem in problems:
        small = reduced(problem.case)
        if small in seen or elements_of(problem.case._replace(N=1)) > 1 << 26:
            continue
        seen.add(small)
        if problem.origin != origin:
            origin = problem.origin
            lines.append(f"# {origin}")
        lines.append(line_of(problem.case))
    (DATA / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return len(seen)


def elements_of(case: Case) -> int:
    """Return the elements of x, weight and the result."""
    return case.N * (case.C * case.H * case.W + case.K * math.prod(case.out_size)) + case.K * case.products


def is_small(problem: Problem) -> bool:
    """Tell whether simt runs it, once it is reduced."""
    return reduced(problem.case).macs <= LARGEST_MACS


class Numbered(NamedTuple):
    number: int  # in its list, which chooses dtype, layout, bias and the numbers that fill it
    problem: Problem


def for_backend(problems: list[Problem], backend: str, in_every_run: int) -> list[Numbered]:
    """Return what is run of a list: on a GPU all of it; on simt what is small enough, nightly, and in every run `in_every_run`
    of that.

    The latter are drawn by a fixed seed from those that take an eighth of the products at most, which most do.
    """
    numbered = [Numbered(number, problem) for number, problem in enumerate(problems)]
    if backend == "gpu":
        return numbered
    small = [each for each in numbered if is_small(each.problem)]
    if EVERYTHING or len(small) <= in_every_run:
        return small
    smallest = [each for each in small if reduced(each.problem.case).macs <= LARGEST_MACS // 8]
    return sorted(random.Random(0).sample(smallest, in_every_run))


def in_parts(problems: list[Numbered], size: int = 100) -> list[list[Numbered]]:
    """`size` a test: a test has to do more than pytest needs to start it."""
    return [problems[at : at + size] for at in range(0, len(problems), size)]


# ---- running -----------------------------------------------------------------------------------------------------------------


@functools.cache
def reduced(case: Case) -> Case:
    """Return what simt runs of a problem: the same filter, stride, padding and dilation, with fewer of what there is many of.

    Images go first, then pixels, a quarter at a time, down to four outputs a side or what the padding asks for; then channels
    and filters of a group by halves, down to 16, and groups by halves, down to four, each as long as the products are too many
    or the tiles, of which a group takes one, too large. A half is odd where the whole is, and a multiple of two, four or eight
    where the whole is.
    """
    while case.macs > SIMT_MACS and case.N > 1:
        case = case._replace(N=case.N // 2)
    least = [
        max(dilation * (taps - 1) + 1 + 3 * step - sum(sides), max(sides) + 1, 1)
        for taps, step, dilation, sides in zip((case.R, case.S), case.stride, case.dilation, case.sides, strict=True)
    ]
    while case.macs > SIMT_MACS and (least[0] < case.H or least[1] < case.W):
        H, W = (max(min(size, small), size * 3 // 4) for size, small in zip((case.H, case.W), least, strict=True))
        case = case._replace(H=H, W=W)
    of_group = {"C": case.C // case.groups, "K": case.K // case.groups}
    groups = case.groups
    while case.macs > SIMT_MACS and max(of_group.values()) > 16:
        most = max(of_group, key=lambda name: of_group[name])
        of_group[most] = half(of_group[most])
        case = case._replace(C=of_group["C"] * groups, K=of_group["K"] * groups)
    while groups > 4 and (case.macs > SIMT_MACS or groups * 64 * 64 * case.products > 8 * SIMT_MACS):
        groups = half(groups)
        case = case._replace(C=of_group["C"] * groups, K=of_group["K"] * groups, groups=groups)
    return case._replace(dtype=torch.float32, layout="nchw", has_bias=False)


def half(count: int) -> int:
    """About half of `count`, which divides by two as often, up to two or, above 16, three times."""
    multiple = math.gcd(count, 8 if count > 16 else 4)
    return count // 2 | 1 if multiple == 1 else -(-count // (2 * multiple)) * multiple


def integers(generator: torch.Generator, shape: Iterable[int], limit: int) -> Tensor:
    return torch.randint(-limit, limit + 1, tuple(shape), generator=generator, device=generator.device).float()


def arguments_of(case: Case, seed: int, device: torch.device) -> dict[str, Any]:
    """The arguments of a call: small integers, and a bias for every other seed."""
    generator = torch.Generator(device).manual_seed(seed)
    laid_out = torch.channels_last if case.layout == "nhwc" else torch.contiguous_format
    x = integers(generator, (case.N, case.C, case.H, case.W), 3)
    weight = integers(generator, (case.K, case.C // case.groups, case.R, case.S), 2)
    bias = integers(generator, (case.K,), 9)
    return {
        "x": x.to(device, case.dtype).contiguous(memory_format=laid_out),
        "weight": weight.to(device, case.dtype).contiguous(memory_format=laid_out),
        "bias": bias.to(device, case.dtype) if seed % 2 else None,
        "stride": case.stride,
        "padding": tuple(side for pair in case.sides for side in pair),
        "dilation": case.dilation,
        "groups": case.groups,
    }


def by_torch(arguments: dict[str, Any]) -> Tensor:
    """torch's own convolution in float64."""
    top, bottom, left, right = arguments["padding"]
    x, weight, bias = (
        None if each is None else each.double() for each in (arguments["x"], arguments["weight"], arguments["bias"])
    )
    assert x is not None and weight is not None
    if (top, left) == (bottom, right):
        return F.conv2d(x, weight, bias, arguments["stride"], (top, left), arguments["dilation"], arguments["groups"])
    padded = F.pad(x, (left, right, top, bottom))
    return F.conv2d(padded, weight, bias, arguments["stride"], 0, arguments["dilation"], arguments["groups"])


def named_by_router(case: Case, card: str) -> str:
    """The algorithm that the card's router names for the problem as it is; no memory is taken."""
    laid_out = torch.channels_last if case.layout == "nhwc" else torch.contiguous_format
    x = torch.empty(case.N, case.C, case.H, case.W, dtype=case.dtype, device="meta").contiguous(memory_format=laid_out)
    weight = torch.empty(case.K, case.C // case.groups, case.R, case.S, dtype=case.dtype, device="meta").contiguous(
        memory_format=laid_out
    )
    padding = tuple(side for pair in case.sides for side in pair)
    plan = hipconv.conv2d_plan(x, weight, None, case.stride, padding, case.dilation, case.groups, target=card)
    return plan.algorithm


def variant(number: int, case: Case) -> Case:
    """The problem in one of the three dtypes and two layouts in turn, which are no cases of their own."""
    return case._replace(dtype=list(DTYPES.values())[number % 3], layout=LAYOUTS[number // 3 % 2])


def wrong_result(case: Case, algorithm: str, arguments: dict[str, Any], expected: Tensor) -> str | None:
    """None if our kernel gives torch's result, else what is wrong, with what is needed to call it again."""
    try:
        plan = hipconv.conv2d_plan(**arguments, algorithm=algorithm)
        assert plan.algorithm in hipconv.conv2d_router.METHODS, f"{plan.algorithm} is no kernel of ours"
        result = hipconv.conv2d(**arguments, algorithm=algorithm)
    except Exception as error:
        return f"{algorithm} {case}: {type(error).__name__}: {error}"
    if result.shape != expected.shape:
        return f"{algorithm} {case}: shape {tuple(result.shape)}, expected {tuple(expected.shape)}"
    if not torch.equal(result, expected.to(result.dtype)):
        off = (result != expected.to(result.dtype)).nonzero()
        at = tuple(off[0].tolist())
        return f"{algorithm} {case}: {len(off)} of {result.numel()} off, first at {at}: {result[at]}, expected {expected[at]}"
    return None


def wrong_on_simt(problems: Iterable[Numbered], cards: Iterable[str] = tuple(CARDS)) -> Iterator[str]:
    """Each problem, reduced, by the algorithm that each card's router names for it; a line for each that is wrong.

    An algorithm that serves no problem this small gives way to the one that the router names for it.
    """
    for number, problem in problems:
        case = variant(number, problem.case)
        small = variant(number, reduced(problem.case))
        arguments = arguments_of(small, number, torch.device("cpu"))
        expected = by_torch(arguments)
        for card in cards:
            algorithm = named_by_router(case, card)
            with environment(**WAYS[CARDS[card]]):
                serves = exact(hipconv.conv2d_plan(**arguments).serves)
                wrong = wrong_result(small, algorithm if algorithm in serves else serves[0], arguments, expected)
            if wrong:
                yield f"{problem.origin} {line_of(problem.case)}, {card}: {wrong}"


def wrong_on_gpu(problems: Iterable[Numbered], largest: int = 1 << 28) -> Iterator[str]:
    """Each problem as it is, by what the card's router names; images go only where x and the result pass `largest` elements."""
    device = torch.device("cuda")
    for number, problem in problems:
        case = variant(number, problem.case)
        while case.N > 1 and elements_of(case) > largest:
            case = case._replace(N=case.N // 2)
        arguments = arguments_of(case, number, device)
        algorithm = hipconv.conv2d_plan(**arguments).algorithm
        if not exact([algorithm]):
            algorithm = exact(hipconv.conv2d_plan(**arguments).serves)[0]
        if wrong := wrong_result(case, algorithm, arguments, by_torch(arguments)):
            yield f"{problem.origin} {line_of(problem.case)}: {wrong}"


def wrong_of(problems: Iterable[Numbered], backend: str) -> list[str]:
    """A line for each of them that is wrong on "simt" or "gpu"."""
    return list(wrong_on_gpu(problems) if backend == "gpu" else wrong_on_simt(problems))
