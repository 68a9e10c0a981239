"""Context-parallel causal_conv1d has the bits of one device, in worlds of 2, 3, 4 and 7 processes over gloo."""

from __future__ import annotations

from collections.abc import Iterator
import re

import pytest
import torch

from distributed.conv1d_checks import CASES, WRONG, Case
from distributed.pool import end_all, pool_of
from distributed.worlds import OVER_GPUS
from support.backends import WAYS
import hipconv.distributed


@pytest.fixture(scope="module", autouse=True)
def worlds() -> Iterator[None]:
    yield
    end_all()


@pytest.mark.parametrize("name", CASES)
def test_it_has_the_bits_of_one_device(name) -> None:
    pool_of(3).run("conv1d_checks", "run", CASES[name], None)


@pytest.mark.parametrize(("size", "ranks"), [(2, None), (4, (1, 3)), (7, None)])
def test_it_does_in_groups_of_any_ranks(size, ranks) -> None:
    for name in ("plain", "short_documents", "zigzag"):
        pool_of(size).run("conv1d_checks", "run", CASES[name], ranks)


SIMT = {
    "channel_last": Case("uneven", channel_last=True, initial=True, final=True, dim=8),
    "half": Case("short", channel_last=True, dtype=torch.bfloat16, weight_dtype=torch.bfloat16, dim=8, final=True),
    "documents": Case("uneven", channel_last=True, ids="documents", dim=4),
    "expanded": Case("uneven", channel_last=True, dim=8, expanded=True),
    "channel_first": Case("uneven", initial=True, final=True, bits_of_dx=False),
}


@pytest.mark.parametrize("name", SIMT)
def test_it_has_them_from_the_kernels_of_gpus(name) -> None:
    pool_of(2, **WAYS["simt-wave64"]).run("conv1d_checks", "run", SIMT[name], None)


@pytest.mark.parametrize("name", CASES)
def test_it_has_them_where_the_exchange_is_beside_the_kernel(name) -> None:
    orders = pool_of(3).run("conv1d_checks", "on_two_streams", CASES[name])
    assert all("joined" in order for order in orders)


def test_the_kernel_is_launched_before_the_exchange() -> None:
    pool_of(2).run("conv1d_checks", "launched_first")


def test_gradients_of_the_final_states_add_up_over_the_ranks() -> None:
    pool_of(3).run("conv1d_checks", "final_states_of_many_ranks")


def test_gradients_through_a_checkpoint_are_those_without() -> None:
    pool_of(3).run("conv1d_checks", "checkpointed")


def test_gradients_that_nobody_wants_do_not_travel() -> None:
    pool_of(3).run("conv1d_checks", "gradients_that_nobody_wants")


def test_a_call_before_there_is_a_process_group_says_so() -> None:
    x, weight = torch.randn(1, 3, 5), torch.randn(3, 4)
    for group, text in ((None, r"None \(the default group\)"), ("a name", "'a name'")):
        with pytest.raises(
            ValueError, match=rf"^group: got {text}, but torch\.distributed\.init_process_group was not called$"
        ):
            hipconv.distributed.causal_conv1d(x, weight, group=group)  # type: ignore[arg-type]


EXPECTED = {
    "width": "ValueError: width of weight: got 3 on rank 1 of the group, expected 4, which rank 0 has",
    "dim": "ValueError: dim of x: got 2 on rank 1 of the group, expected 3",
    "fits_not": r"ValueError: rank 1 of the group refuses its arguments: weight: got shape \(3, 4\), expected \(dim, width\)",
    "activation": "ValueError: rank 1 of the group refuses its arguments: activation: got 'gelu', expected",
    "silu": "ValueError: activation: got silu on rank 1 of the group, expected None",
    "seq_idx": r"ValueError: rank 1 of the group refuses its arguments: seq_idx: got shape \(1, 3\), expected \(batch, tokens",
    "both": "ValueError: rank 0 of the group refuses its arguments: cu_seqlens: got one beside seq_idx",
    "states": r"ValueError: rank 0 of the group refuses its arguments: initial_states: got shape \(1, 3, 2\), expected "
    r"\(batch, dim, width",
    "some_states": "ValueError: tensors given: got x, weight, initial_states on rank 1 of the group, expected x, weight, which",
    "layout": "ValueError: layout: got zigzag on rank 1 of the group, expected contiguous",
    "reduce_gradients": "TypeError: rank 1 of the group refuses its arguments: reduce_gradients: got 'no', expected a bool",
    "sizes": r"ValueError: rank 1 of the group refuses its arguments: sizes: got \(4, 4\), expected one of at least 0 for each",
    "served": "TypeError: rank 0 of the group refuses its arguments: weight: got dtype torch.float64, expected",
    "gradient": "ValueError: tensors that require grad: got weight on rank 1 of the group, expected ",
}


@pytest.mark.parametrize("name", WRONG)
def test_every_rank_raises_the_same_error(name) -> None:
    texts = pool_of(3).run("conv1d_checks", "refusals", name)
    assert len(set(texts)) == 1, texts
    assert re.match(EXPECTED[name], texts[0]), texts[0]


@OVER_GPUS
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.dtype != torch.float64])
def test_it_has_them_on_gpus(size, backend, name) -> None:
    case = CASES[name]
    case = case._replace(bits_of_dx=case.channel_last and case.dim >= 4)  # as the page promises
    pool_of(size, backend, "cuda").run("conv1d_checks", "run", case, None)


LARGE = {  # so that both streams are busy for some time
    "large": Case("large", channel_last=True, dtype=torch.bfloat16, weight_dtype=torch.bfloat16, dim=2048),
    "large_states": Case("large", channel_last=True, initial=True, final=True, dtype=torch.bfloat16, dim=1024),
    "large_zigzag": Case("zigzag_120000", channel_last=True, dtype=torch.float16, dim=512),
    "large_documents": Case("large", channel_last=True, ids="documents", dtype=torch.bfloat16, dim=512),
}


@OVER_GPUS
@pytest.mark.parametrize("name", LARGE)
def test_it_has_them_on_two_streams_of_gpus(size, backend, name) -> None:
    pool_of(size, backend, "cuda").run("conv1d_checks", "run", LARGE[name], None)


@OVER_GPUS
def test_the_kernel_is_launched_before_the_exchange_on_gpus(size, backend) -> None:
    pool_of(size, backend, "cuda").run("conv1d_checks", "launched_first")


@OVER_GPUS
def test_every_rank_raises_the_same_error_on_gpus(size, backend) -> None:
    for name in WRONG:
        assert len(set(pool_of(size, backend, "cuda").run("conv1d_checks", "refusals", name))) == 1, name


@OVER_GPUS
@pytest.mark.parametrize("check", ["final_states_of_many_ranks", "gradients_that_nobody_wants"])
def test_gradients_on_gpus(size, backend, check) -> None:
    pool_of(size, backend, "cuda").run("conv1d_checks", check)
