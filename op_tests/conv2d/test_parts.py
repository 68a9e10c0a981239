"""Parts of an image are convolved by the plan of the whole one,
unless it is only the whole image's size that makes that plan slow.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from support.backends import WAYS, environment
from hipconv import targets
from hipconv.jit.targets import Target
from hipconv.ops.conv2d import calls, geometry
from hipconv.ops.conv2d.geometry import Kind, Options
from hipconv.ops.conv2d.problem import Card

CARD = Card("wave64", 132)


@pytest.fixture(params=["simt-wave64", "simt-wave32-shuffled"])
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with environment(**WAYS[request.param]):
        yield targets.of(torch.device("cpu"))


def kind(*shape: int, layout: torch.memory_format = torch.channels_last, dtype: torch.dtype = torch.bfloat16) -> Kind:
    meta = torch.empty(1, *shape[1:], device="meta").to(memory_format=layout)
    return Kind(dtype, shape, meta.stride(), 0)


def plans(
    target: Target, x: Kind, part: Kind, filters: Kind, algorithm: str = "auto", limit: int = 256 << 20
) -> list[calls.Prepared]:
    """Prepare the whole image alone, the part alone, and the part as one."""
    card = Card(target.arch, CARD.compute_units)
    o: Options = geometry.options((3, 3), 1, 1, 1, 1, "zeros", "none")
    of_part = o._replace(padding=(0, 0, 1, 1))
    request = calls.Request(None, algorithm, None, limit)
    whole = calls.Whole(x, None, o)
    found = [] if algorithm != "auto" else [calls.prepare(target, card, x, filters, None, None, None, o, request)]
    found.append(calls.prepare(target, card, part, filters, None, None, None, of_part, request))
    return [*found, calls.prepare_part(target, card, part, filters, None, None, of_part, request, whole)]


def test_a_part_follows_the_whole_image(target) -> None:
    """Alone it would have smaller tiles, or a split sum, and other bits."""
    whole, alone, part = plans(target, kind(1, 512, 256, 256), kind(1, 512, 10, 256), kind(512, 512, 3, 3))
    assert whole.choice != alone.choice and part.choice == whole.choice


def test_it_does_not_follow_one_that_is_too_large_for_good_algorithms(target) -> None:
    whole, alone, part = plans(target, kind(1, 512, 70000, 70000), kind(1, 512, 10, 70000), kind(64, 512, 3, 3))
    assert whole.choice.algorithm == "naive" and "naive" not in (alone.choice.algorithm, part.choice.algorithm)
    assert part.choice == alone.choice


def test_an_algorithm_by_name_that_serves_the_parts_alone_is_taken(target) -> None:
    """The copy of the whole image would need more memory than the limit, those of the parts do not."""
    x, part = (kind(1, 3, rows, 2000, layout=torch.contiguous_format) for rows in (9000, 100))
    (alone, pinned) = plans(target, x, part, kind(64, 3, 3, 3), "relaid_implicit_gemm")
    assert pinned.choice == alone.choice and alone.choice.algorithm == "relaid_implicit_gemm"
    with pytest.raises(ValueError, match="needs a workspace"):
        plans(target, part, x, kind(64, 3, 3, 3), "relaid_implicit_gemm")
