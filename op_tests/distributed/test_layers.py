"""Layers over the ranks of a group compute what they compute alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from distributed.pool import end_all, pool_of
from distributed.worlds import OVER_GPUS


@pytest.fixture(scope="module", autouse=True)
def worlds() -> Iterator[None]:
    yield
    end_all()


CHECKS = [
    "causal_conv1d",
    "short_convolution",
    "steps_are_each_ranks_own",
    "a_cache_is_written",
    "options_reach_the_layers",
    "copies",
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("size", [3])
def test_a_layer_over_a_group(check, size) -> None:
    pool_of(size).run("layer_checks", check)


@OVER_GPUS
@pytest.mark.parametrize("check", CHECKS)
def test_a_layer_over_a_group_of_gpus(check, size, backend) -> None:
    pool_of(size, backend, "cuda").run("layer_checks", check)
