"""halo, shard, gather and the header that ranks compare, in worlds of 2, 3, 4 and 7 processes over gloo."""

from __future__ import annotations

from collections.abc import Iterator
import re
import time

import pytest

from distributed.halo_checks import SHARDS, WRONG
from distributed.pool import end_all, pool_of
from distributed.worlds import OVER_GPUS
from hipconv.distributed.routes import around, contiguous

CASES: list[tuple[int, tuple[int, ...] | None, str]] = [
    *((3, None, shards) for shards in SHARDS),
    *((size, ranks, shards) for size, ranks in ((2, None), (4, (2, 3)), (4, (1, 3))) for shards in ("uneven", "short")),
    (7, None, "some_empty"),
    (7, (1, 4, 6), "short"),
]


@pytest.fixture(scope="module", autouse=True)
def worlds() -> Iterator[None]:
    yield
    end_all()


@pytest.mark.parametrize(("size", "ranks", "shards"), CASES)
def test_a_halo_is_what_stands_there_in_the_whole_tensor_and_so_is_its_gradient(size, ranks, shards) -> None:
    pool_of(size).run("halo_checks", "halos", ranks, shards)


@pytest.mark.parametrize("size", [2, 3])
def test_halos_of_integers_and_second_derivatives(size) -> None:
    pool_of(size).run("halo_checks", "halo_of_integers_and_second_derivatives")


def test_a_gather_packs_once() -> None:
    pool_of(3).run("halo_checks", "a_gather_packs_once")


@pytest.mark.parametrize("sizes", [(5, 0, 7), (1, 2, 1, 3), (12,)])
def test_what_is_reflected_travels_in_runs(sizes) -> None:
    chunks, total = contiguous(sizes), sum(sizes)
    lies = [(chunk.rank, place) for chunk in chunks for place in range(chunk.size)]
    for start, stop in ((1 - total, 2 * total - 1), (-3, 2), (-4, -1), (total - 1, total + 3), (total + 1, total + 4), (2, 2)):
        parts = around(chunks, start, stop, "reflect")
        places = [(p.rank, p.at + i) for p in parts for i in (range(p.size)[::-1] if p.backwards else range(p.size))]
        assert places == [lies[total - 1 - abs(total - 1 - abs(at))] for at in range(start, stop)], (start, stop)
        assert len(parts) <= 3 * len(sizes)


def test_memory_layouts_are_kept() -> None:
    pool_of(2).run("halo_checks", "layouts_are_kept")


@pytest.mark.parametrize(("size", "ranks"), [(3, None), (7, (1, 4, 6))])
def test_shards_gather_to_the_whole_and_their_gradients_too(size, ranks) -> None:
    pool_of(size).run("halo_checks", "shards_and_gathers", ranks)


EXPECTED = {
    "dtype": r"ValueError: dtype of x: got torch.float64 on rank 1 of the group, expected torch.float32, which rank 0 has, as",
    "shape": r"ValueError: shape of x: got \['any', 1\] on rank 1 of the group, expected \['any', 2\]",
    "before": "ValueError: before: got 2 on rank 1 of the group, expected 1",
    "edge": "ValueError: edge: got wrap on rank 1 of the group, expected zeros",
    "refused": "ValueError: rank 1 of the group refuses its arguments: before: got -1, expected at least 0",
    "kind": "TypeError: rank 1 of the group refuses its arguments: x: got None, expected a torch.Tensor",
    "sizes": r"ValueError: sizes: got \(2, 2, 2\) on rank 1 of the group, expected not given",
    "wrong_sizes": r"ValueError: rank 1 of the group refuses its arguments: sizes: got \(2, 3, 2\), whose entry 1 is this "
    r"rank's",
    "gradient": "ValueError: x requires grad: got True on rank 1 of the group, expected False",
    "sizes_of_others": r"ValueError: rank 1 of the group refuses its arguments: sizes: got \(2, 2\), expected one of at least "
    r"0 for each",
    "negative_sizes": r"ValueError: rank 1 of the group refuses its arguments: sizes: got \(2, 2, -2\), expected one of at "
    r"least 0",
    "kind_of_sizes": "TypeError: rank 1 of the group refuses its arguments: sizes: got 2, expected a list of integers",
    "kind_of_validate": "TypeError: rank 1 of the group refuses its arguments: validate: got 'no', expected a bool",
    "another_error": "RuntimeError: rank 1 of the group refuses its arguments: no shape today",
    "long_sizes": r"ValueError: shape of x: got \['any', 1, .*\.\.\. \(\d+ characters, digest \w+\) on rank 1 of the group, "
    r"expected",
    "call": "ValueError: call: got hipconv.distributed.gather on rank 1 of the group, expected hipconv.distributed.halo",
    "empty": "ValueError: x: got no element along dim 0 on any rank, expected at least one for edge 'wrap'",
    "zigzag": r"ValueError: x: got shards of \(2, 1, 0\), expected \(1, 1, 1\) with layout 'zigzag'",
}


@pytest.mark.parametrize("name", WRONG)
def test_every_rank_raises_the_same_error_which_names_the_rank_that_differs(name) -> None:
    texts = pool_of(3).run("halo_checks", "refusals", name)
    assert len(set(texts)) == 1, texts
    assert re.match(EXPECTED[name], texts[0]), texts[0]


@pytest.mark.parametrize(
    "check", ["grad_mode_counts", "compiled", "halos_under_way", "laps_travel_once", "views_that_are_negated_or_conjugated"]
)
def test_it_goes_well_with(check) -> None:
    pool_of(2).run("halo_checks", check)


def test_a_rank_that_has_seen_its_shape_before_meets_one_that_has_not() -> None:
    texts = pool_of(3).run("halo_checks", "a_shape_that_one_rank_has_seen")
    assert len(set(texts)) == 1 and "['any', 5] on rank 1 of the group, expected ['any', 4]" in texts[0], texts


def test_a_call_that_only_one_rank_makes_is_found_at_the_next_one() -> None:
    texts = pool_of(3).run("halo_checks", "a_call_too_many")
    assert texts[0] == texts[1] == texts[2]
    assert all("call number: got" in text and "on rank 2 of the group" in text and "cannot go on" in text for text in texts[0])


def test_what_this_rank_alone_can_know_is_raised_by_it() -> None:
    for text in pool_of(2).run("halo_checks", "local_refusals"):
        for one, name in zip(text, ("group", "group", "sizes", "dim", "sizes"), strict=True):
            assert re.match(rf"(Type|Value)Error: {name}: got .*, expected", one), one


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_an_error_on_the_others_and_no_hang(victim) -> None:
    began = time.monotonic()
    texts = pool_of(3).run("halo_checks", "a_rank_dies", victim, without=(victim,))
    assert len(texts) == 2 and all("Error" in text for text in texts)
    assert time.monotonic() - began < 20


def test_a_rank_that_does_not_answer_is_named() -> None:
    with pytest.raises(AssertionError, match=r"ranks \[1\] of 2 are stuck in stuck\(1,\)"):
        pool_of(2).run("halo_checks", "stuck", 1, seconds=1.0)


@OVER_GPUS
@pytest.mark.parametrize("shards", SHARDS)
def test_halos_on_gpus(size, backend, shards) -> None:
    pool_of(size, backend, "cuda").run("halo_checks", "halos", None, shards)


OTHERS = [
    "halo_of_integers_and_second_derivatives",
    "laps_travel_once",
    "layouts_are_kept",
    "grad_mode_counts",
    "compiled",
    "halos_under_way",
    "views_that_are_negated_or_conjugated",
    "a_gather_packs_once",
    "a_shape_that_one_rank_has_seen",
]


@OVER_GPUS
@pytest.mark.parametrize("check", OTHERS)
def test_the_rest_on_gpus(size, backend, check) -> None:
    pool_of(size, backend, "cuda").run("halo_checks", check)


@OVER_GPUS
def test_shards_gather_to_the_whole_on_gpus(size, backend) -> None:
    pool_of(size, backend, "cuda").run("halo_checks", "shards_and_gathers", None)


@OVER_GPUS
def test_every_rank_raises_the_same_error_on_gpus(size, backend) -> None:
    for name in WRONG:
        assert len(set(pool_of(size, backend, "cuda").run("halo_checks", "refusals", name))) == 1, name
