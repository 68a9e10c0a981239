"""Filters that calls keep in the order of their algorithm: what a call launches, when they are packed again, when they go.

`launches_of` counts on simt. What is fused into another kernel has no launch of its own; so the tests also change the memory of
a weight behind torch's back: what is kept still has the old values, which the formula would not give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import ctypes
import gc
import itertools
import threading
import time
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from support.backends import WAYS, environment
from support.observe import launches_of
import hipconv
from hipconv.ops import filters

pytestmark = pytest.mark.usefixtures("one_thread", "forgotten")


@pytest.fixture
def forgotten() -> Iterator[None]:
    filters.forget()
    yield
    filters.forget()


class Layer(NamedTuple):
    """A call in which `algorithm` cannot read its filters as they are."""

    algorithm: str
    shape: tuple[int, int, int, int] = (1, 24, 6, 7)
    filters: int = 16
    taps: int = 3
    groups: int = 1
    x_layout: str = "nchw"
    dtype: torch.dtype = torch.bfloat16
    weight_layout: str = "nchw"
    is_fused: bool = False  # packing is part of a kernel that is launched anyway

    def inputs(self) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(1)
        formats = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
        x = torch.randn(self.shape, generator=generator).to(self.dtype).to(memory_format=formats[self.x_layout])
        of_group = self.shape[1] // self.groups
        weight = torch.randn(self.filters, of_group, self.taps, self.taps, generator=generator).to(self.dtype)
        weight = weight.to(memory_format=formats[self.weight_layout])
        precision = "ieee" if self.algorithm.startswith("split") else "tf32"
        return {
            "x": x, "weight": weight, "padding": self.taps // 2, "groups": self.groups, "algorithm": self.algorithm,
            "float32_precision": precision,
        }  # fmt: skip


WAVE64 = {
    "direct": Layer("direct"),
    "direct, groups": Layer("direct", (2, 16, 6, 7), groups=4, weight_layout="nhwc"),
    "direct, few channels": Layer("direct", (1, 3, 6, 7)),
    "implicit_gemm": Layer("implicit_gemm"),
    "implicit_gemm, odd channels": Layer("implicit_gemm", (1, 7, 6, 7), weight_layout="nhwc"),
    "implicit_gemm, whole steps": Layer("implicit_gemm", (1, 64, 6, 7), x_layout="nhwc"),
    "relaid_implicit_gemm": Layer("relaid_implicit_gemm", (1, 64, 6, 7), is_fused=True),
    "relaid_implicit_gemm, steps over taps": Layer("relaid_implicit_gemm", is_fused=True),
    "relaid_implicit_gemm, the same in place but for that": Layer("relaid_implicit_gemm", weight_layout="nhwc", is_fused=True),
    "relaid_implicit_gemm, windows": Layer("relaid_implicit_gemm", (1, 3, 6, 7), is_fused=True),
    "winograd_f2": Layer("winograd_f2"),
}
WAVE32 = {
    "direct": Layer("direct"),
    "warpgroup_gemm": Layer("warpgroup_gemm", (1, 64, 6, 7), x_layout="nhwc"),
    "warpgroup_gemm, TF32": Layer("warpgroup_gemm", (1, 32, 6, 7), x_layout="nhwc", dtype=torch.float32),
    "relaid_warpgroup_gemm": Layer("relaid_warpgroup_gemm", (1, 20, 6, 7), is_fused=True),
    "split_warpgroup_gemm": Layer("split_warpgroup_gemm", (1, 32, 6, 7), dtype=torch.float32, is_fused=True),
    "split_implicit_gemm": Layer("split_implicit_gemm", (1, 16, 6, 7), dtype=torch.float32),
}
LAYERS = [("simt-wave64", name) for name in WAVE64] + [("simt-wave32-shuffled", name) for name in WAVE32]


@pytest.fixture
def layer(request: pytest.FixtureRequest) -> Iterator[Layer]:
    way, name = request.param
    with environment(**WAYS[way]):
        yield (WAVE64 if way == "simt-wave64" else WAVE32)[name]


def of_every_layer(test: Any) -> Any:
    return pytest.mark.parametrize("layer", LAYERS, ids=" ".join, indirect=True)(test)


def that_each_call_packs(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same call, with a weight whose changes torch does not count."""
    with torch.inference_mode():
        return arguments | {"weight": arguments["weight"].clone(memory_format=torch.preserve_format)}


@of_every_layer
def test_the_second_call_packs_nothing(layer: Layer) -> None:
    arguments = layer.inputs()
    weight = arguments["weight"]
    results: list[Tensor] = []

    def launches(**changes: Any) -> list[str]:
        return launches_of(lambda: results.append(hipconv.conv2d(**arguments | changes)))

    each = launches(**that_each_call_packs(arguments))
    assert filters._size == 0
    first, second = launches(), launches()
    plan = hipconv.conv2d_plan(**arguments)
    assert plan.algorithm == layer.algorithm and plan.packed_filters == filters._size > 0, plan
    assert len(each) == len(second) + (0 if layer.is_fused else 1)
    assert len(first) == len(second) + 1
    assert all(torch.equal(result, results[0]) for result in results)
    out = torch.empty_like(results[0])
    assert launches_of(lambda: hipconv.conv2d(**arguments, out=out)) == second and torch.equal(out, results[0])
    weight.data.zero_()  # nobody has told torch
    assert torch.equal(hipconv.conv2d(**arguments), results[0])
    filters.forget(weight)
    assert not hipconv.conv2d(**arguments).any()
    weight.fill_(1)
    filled = hipconv.conv2d(**that_each_call_packs(arguments))
    for _ in range(3):
        assert torch.equal(hipconv.conv2d(**arguments), filled)
    arguments.clear()
    del weight
    gc.collect()
    assert filters._size == 0 and not filters._entries


@pytest.mark.parametrize("change", ["forget", "call"])
def test_weights_may_go_in_the_middle_of_a_change(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in cycles of references go when the collector runs: here, while others are dropped by one thread."""
    drop = filters._drop

    def collect_and_drop(entry: Any) -> None:
        gc.collect()
        drop(entry)

    with environment(**WAYS["simt-wave64"]):
        others = WAVE64["direct"].inputs()
        gc.disable()
        try:
            for _ in range(4):
                arguments = WAVE64["implicit_gemm"].inputs()
                hipconv.conv2d(**arguments)
                arguments["weight"].cycle = arguments["weight"]
                del arguments
            assert len(filters._entries) == 4
            monkeypatch.setattr(filters, "_drop", collect_and_drop)
            if change == "forget":
                filters.forget()
            else:
                monkeypatch.setenv(filters.VARIABLE, str(filters._size))
                hipconv.conv2d(**others)
        finally:
            gc.enable()
        kept = [packed.filters.numel() for entry in filters._entries.values() for packed in entry.by_form.values()]
        assert len(kept) == (change == "call") and filters._size == sum(kept)


def run_within(seconds: float, run: Callable[[], object]) -> None:
    """In a thread, which may hang."""
    errors: list[BaseException] = []

    def catching() -> None:
        try:
            run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=catching, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    assert not errors, errors


def test_finalizers_may_call_in_the_middle_of_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    drop, results = filters._drop, []

    def call_and_drop(entry: Any) -> None:
        monkeypatch.setattr(filters, "_drop", drop)
        filters.forget()
        results.append(hipconv.conv2d(**others))
        assert filters._entries, "it went in the middle of a change"
        drop(entry)

    with environment(**WAYS["simt-wave64"]):
        others, own = WAVE64["direct"].inputs(), WAVE64["implicit_gemm"].inputs()
        expected = hipconv.conv2d(**that_each_call_packs(others))
        hipconv.conv2d(**own)
        monkeypatch.setattr(filters, "_drop", call_and_drop)
        run_within(60, lambda: filters.forget(own["weight"]))
        assert torch.equal(results[0], expected)
        assert not filters._entries and filters._size == 0


def test_a_weight_that_goes_waits_for_no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    drop, begun, may_end = filters._drop, threading.Event(), threading.Event()

    def drop_slowly(entry: Any) -> None:
        begun.set()
        may_end.wait(60)
        drop(entry)

    with environment(**WAYS["simt-wave64"]):
        others, own = WAVE64["direct"].inputs(), WAVE64["implicit_gemm"].inputs()
        hipconv.conv2d(**others)
        hipconv.conv2d(**own)
        monkeypatch.setattr(filters, "_drop", drop_slowly)
        other = threading.Thread(target=filters.forget, args=(others["weight"],))
        other.start()
        assert begun.wait(60)
        run_within(60, own.clear)
        may_end.set()
        other.join()
        assert not filters._entries and filters._size == 0


def test_an_exception_at_any_moment_leaves_the_lock_free() -> None:
    class Stopped(Exception):
        pass

    done = threading.Event()

    def forget_again_and_again() -> None:
        while not done.is_set():
            with contextlib.suppress(Stopped):
                while not done.is_set():
                    filters.forget()

    thread = threading.Thread(target=forget_again_and_again, daemon=True)
    thread.start()
    for _ in range(300):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stopped))
        time.sleep(0.001)
    done.set()
    thread.join(60)
    run_within(60, filters.forget)


def test_a_limit_of_nothing_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with environment(**WAYS["simt-wave64"]):
        arguments = WAVE64["direct"].inputs()
        once = hipconv.conv2d(**arguments)
        filters.forget()
        monkeypatch.setenv(filters.VARIABLE, "0")
        each = launches_of(lambda: hipconv.conv2d(**that_each_call_packs(arguments)))
        for _ in range(2):
            assert launches_of(lambda: hipconv.conv2d(**arguments)) == each and filters._size == 0
        arguments["weight"].data.mul_(2)  # nobody has told torch
        assert torch.equal(hipconv.conv2d(**arguments), 2 * once)
        monkeypatch.setenv(filters.VARIABLE, "a lot")
        with pytest.raises(ValueError, match=r"HIPCONV_PACKED_LIMIT: got 'a lot', expected a number of bytes"):
            hipconv.conv2d(**arguments)
        monkeypatch.setenv(filters.VARIABLE, "")
        hipconv.conv2d(**arguments)
        assert filters._size > 0


def test_a_weight_that_each_call_finds_changed_is_packed_as_without_all_this() -> None:
    """The second step drops the filters that the first one kept, and nothing more is kept until somebody would gain."""
    with environment(**WAYS["simt-wave64"]), torch.no_grad():
        arguments = WAVE64["direct"].inputs()
        weight = arguments["weight"] = torch.nn.Parameter(arguments["weight"])
        each = launches_of(lambda: hipconv.conv2d(**that_each_call_packs(arguments)))
        results = []
        for step in range(5):
            launched = launches_of(lambda: results.append(hipconv.conv2d(**arguments)))
            assert len(launched) == len(each) and (filters._size > 0) == (step == 0)
            weight.mul_(2)
        assert all(torch.equal(after, 2 * before) for before, after in itertools.pairwise(results))
        hipconv.conv2d(**arguments)
        assert filters._size == 0
        for expected in (len(each), len(each) - 1, len(each) - 1):  # the second call with the same values keeps them
            launched = launches_of(lambda: results.append(hipconv.conv2d(**arguments)))
            assert len(launched) == expected and filters._size > 0
        weight.div_(32)  # a step of several calls: its first one keeps
        assert torch.equal(hipconv.conv2d(**arguments), results[0]) and filters._size > 0
        assert len(launches_of(lambda: hipconv.conv2d(**arguments))) == len(each) - 1


def test_a_call_that_records_a_gradient_of_its_weight_packs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharded training may change a weight between steps without torch's counting, in evaluation, too."""
    with environment(**WAYS["simt-wave64"]):
        arguments = WAVE64["direct"].inputs()
        once = hipconv.conv2d(**arguments)
        weight = arguments["weight"] = torch.nn.Parameter(arguments["weight"])
        filters.forget()

        def follows(keeps: bool) -> None:
            result = hipconv.conv2d(**arguments)
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
                weight.mul_(2)
            assert torch.equal(hipconv.conv2d(**arguments), result if keeps else 2 * result)
            assert (filters._size > 0) == keeps

        assert torch.equal(hipconv.conv2d(**arguments), once)
        follows(keeps=False)
        with torch.no_grad():
            follows(keeps=True)
        filters.forget()
        follows(keeps=False)
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        with torch.no_grad():
            follows(keeps=False)
        weight.requires_grad_(False)
        follows(keeps=True)
        arguments["x"].requires_grad_()
        follows(keeps=True)


def test_calls_of_one_weight_share_what_is_alike() -> None:
    with environment(**WAYS["simt-wave64"]):
        arguments = WAVE64["implicit_gemm"].inputs()
        size = hipconv.conv2d_plan(**arguments).packed_filters
        larger = torch.randn(2, 24, 15, 9).bfloat16()
        for x in (arguments["x"], larger, larger.to(memory_format=torch.channels_last)):
            for more in ({}, {"stride": 2}, {"padding": 0, "activation": "relu"}):
                call = arguments | {"x": x, **more}
                assert torch.equal(hipconv.conv2d(**call), hipconv.conv2d(**that_each_call_packs(call)))
                assert filters._size == size
        weight = arguments["weight"]
        for groups, channels in ((1, 24), (2, 48), (4, 96)):  # `direct` cuts them differently
            call = arguments | {"x": torch.randn(1, channels, 9, 9).bfloat16(), "groups": groups, "algorithm": "direct"}
            for _ in range(2):
                assert torch.equal(hipconv.conv2d(**call), hipconv.conv2d(**that_each_call_packs(call)))
        assert len(filters._entries) == 1 and len(filters._entries[id(weight)].by_form) == 4


@pytest.mark.parametrize("algorithm", ["implicit_gemm", "naive", "wave_gemm"])
def test_filters_that_are_read_as_they_are_are_not_kept(algorithm: str) -> None:
    with environment(**WAYS["simt-wave64"]):
        arguments = Layer(algorithm, (1, 64, 6, 7), x_layout="nhwc", weight_layout="nhwc").inputs()
        plan = hipconv.conv2d_plan(**arguments)
        assert plan.packed_filters == 0 and "packed filters" not in str(plan)
        adds_parts = algorithm == "implicit_gemm" and "split" in plan.form
        for _ in range(2):
            assert len(launches_of(lambda: hipconv.conv2d(**arguments))) == 1 + adds_parts
        assert not filters._entries


def test_a_plan_says_what_is_kept() -> None:
    with environment(**WAYS["simt-wave64"]):
        arguments = WAVE64["direct"].inputs()
        plan = hipconv.conv2d_plan(**arguments)
        assert plan.workspace == 0 and f"workspace 0 B, packed filters {plan.packed_filters / 1000:.1f} kB, kept" in str(plan)
        with pytest.raises(ValueError, match=f"needs a workspace of {plan.packed_filters} bytes"):
            hipconv.conv2d(**arguments, workspace_limit=plan.packed_filters - 1)
        prepacked = hipconv.prepack_conv2d(arguments["weight"])
        expected = hipconv.conv2d(**arguments)
        assert torch.equal(hipconv.conv2d(**arguments | {"weight": prepacked}), expected)
        assert len(launches_of(lambda: hipconv.conv2d(**arguments | {"weight": prepacked}))) == 1
