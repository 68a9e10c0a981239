"""The forward as callers meet it: what it refuses, operators, fake tensors, streams, devices, graphs."""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import Any

import pytest
import torch
from torch import Tensor, zeros

from conv1d.cases import BAD_CALLS, X_SHAPE, Case, assert_matches, run
from support.marks import needs_gpu
import hipconv
from hipconv import jit, targets

# ---- bad input ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_input_is_refused_by_name_and_writes_nothing(device: torch.device, name: str) -> None:
    make_changes, error, words = BAD_CALLS[name]
    with device:
        good = {"out": zeros(*X_SHAPE) + 42, "x": zeros(*X_SHAPE), "weight": zeros(6, 4), "bias": zeros(6), "use_silu": False}
        arguments = good | make_changes()
    out = arguments["out"]
    before = out.clone() if isinstance(out, Tensor) else None
    with pytest.raises(error) as caught:
        hipconv.causal_conv1d_fwd(**arguments)
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in: {caught.value}"
    if before is not None and before.device.type != "meta":
        assert torch.equal(out, before)


@needs_gpu
def test_tensors_on_two_devices_are_refused() -> None:
    x = torch.zeros(X_SHAPE, device="cuda")
    for name in ("out", "weight", "bias"):
        arguments: dict[str, Any] = {"out": torch.empty_like(x), "weight": zeros(6, 4).cuda(), "bias": zeros(6).cuda()}
        arguments[name] = arguments[name].cpu()
        with pytest.raises(ValueError, match=f"{name}: got a tensor on cpu, expected it on cuda:0, where x is"):
            hipconv.causal_conv1d_fwd(x=x, **arguments)


def test_the_raw_op_refuses_too(device: torch.device) -> None:
    x = torch.zeros(X_SHAPE, device=device)
    with pytest.raises(ValueError, match=r"weight: got shape \(5, 4\)"):
        torch.ops.hipconv.causal_conv1d_fwd(torch.empty_like(x), x, torch.zeros(5, 4, device=device))


def test_parameters_are_welcome_without_grad_mode(device: torch.device) -> None:
    x = torch.randn(X_SHAPE, device=device)
    weight = torch.nn.Parameter(torch.randn(6, 4, device=device))
    with torch.no_grad():
        out = run(x, weight)
    assert not out.requires_grad
    assert_matches(out, x, weight.detach(), None, False)


@pytest.mark.parametrize("input_name", ["x", "weight", "bias"])
def test_out_may_not_share_memory_with_an_input(device: torch.device, input_name: str) -> None:
    buffer = torch.randn(2, 6, 16, device=device)
    out = buffer[:, :, :10]
    views = {"x": buffer[:, :, 5:15], "weight": buffer[0, :, 8:12], "bias": buffer[1, :, 9]}
    with device:
        arguments: dict[str, Any] = {"x": zeros(*X_SHAPE), "weight": zeros(6, 4), "bias": zeros(6)}
    before = buffer.clone()
    with pytest.raises(ValueError, match=f"out: shares memory with {input_name}"):
        hipconv.causal_conv1d_fwd(out, **(arguments | {input_name: views[input_name]}))
    assert torch.equal(buffer, before)


def test_overlap_is_decided_exactly() -> None:
    """Random views of one buffer, against the addresses themselves: refused if and only if a byte is shared."""
    draw = random.Random(2)
    buffer = torch.zeros(4096)
    counts = {True: 0, False: 0}

    def view(shape: tuple[int, int, int]) -> tuple[Tensor, set[int], bool]:
        strides = tuple(draw.choice([1, 2, 3, 4, 5, 6, 7, 12, 24, 30, 36, 48, 60, 72]) for _ in shape)
        offset = draw.randrange(40)
        grid = itertools.product(*(range(size) for size in shape))
        addresses = [offset + sum(i * stride for i, stride in zip(index, strides, strict=True)) for index in grid]
        return buffer.as_strided(shape, strides, offset), set(addresses), len(set(addresses)) < len(addresses)

    for _ in range(3000):
        shape = (draw.randint(1, 3), draw.randint(1, 4), draw.randint(1, 5))
        x, x_addresses, _ = view(shape)
        out, out_addresses, out_folds = view(shape)
        shares = bool(x_addresses & out_addresses)
        counts[shares] += 1
        expected = pytest.raises(ValueError, match="memory") if out_folds or shares else contextlib.nullcontext()
        with expected:
            hipconv.causal_conv1d_fwd(out, x, torch.ones(shape[1], 2))
    assert min(counts.values()) > 300  # both outcomes were tried


# ---- torch -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_opcheck(device: torch.device, bias: bool) -> None:
    x, weight, b, out = Case(2, 6, 20, 4, torch.float32, torch.float32, has_bias=bias).inputs(device)
    torch.library.opcheck(
        torch.ops.hipconv.causal_conv1d_fwd.default, (out.zero_(), x, weight, b, True), {"kernel_name": "auto"}
    )


def test_compiles_into_one_graph(device: torch.device) -> None:
    x, weight, bias, _ = Case(2, 6, 20, 4, torch.float32, torch.float32).inputs(device)

    def twice(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        hipconv.causal_conv1d_fwd(out, x * 2, weight, bias, True)
        return out + 1

    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), twice(x))


def test_fake_tensors_need_no_kernel() -> None:
    x = torch.empty(2, 6, 20, device="meta")
    hipconv.causal_conv1d_fwd(torch.empty_like(x), x, torch.empty(6, 4, device="meta"))


def test_the_cpu_kernel_uses_the_openmp_runtime_that_torch_has_loaded() -> None:
    """A second one would start threads of its own and ignore torch.set_num_threads."""
    x = torch.randn(4, 64, 2048)
    run(x, torch.randn(64, 4))
    with open("/proc/self/maps") as maps:
        runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line or "libiomp" in line}
    assert len(runtimes) == 1, runtimes


def test_two_architectures_in_one_process_are_two_modules() -> None:
    """pybind11 takes modules of one name for one, and would serve the second architecture with the first one's kernels."""
    wide, narrow = (jit.module("causal_conv1d", targets.Target("simt", wave)) for wave in ("wave64", "wave32"))
    assert wide is not narrow and wide.__file__ != narrow.__file__


# ---- GPU only ----------------------------------------------------------------------------------------------------------------


@needs_gpu
def test_runs_on_the_current_stream() -> None:
    x, weight, bias, out = Case(4, 512, 4096, 4, torch.float32, torch.float32).inputs(torch.device("cuda"))
    run(x, weight)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # a launch on another stream would overtake this and read the old x
        x.mul_(2)
        hipconv.causal_conv1d_fwd(out, x, weight, bias, True)
    stream.synchronize()
    assert_matches(out, x, weight, bias, True)


@needs_gpu
def test_runs_on_the_device_of_its_tensors() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU here")
    x, weight, bias, out = Case(2, 64, 100, 4, torch.float32, torch.float32).inputs(torch.device("cuda:1"))
    with torch.cuda.device(0):
        hipconv.causal_conv1d_fwd(out, x, weight, bias, True)
        assert torch.cuda.current_device() == 0
    assert_matches(out, x, weight, bias, True)


@needs_gpu
def test_a_graph_is_captured_after_warmup_and_refused_before() -> None:
    x, weight, bias, out = Case(2, 64, 100, 4, torch.bfloat16, torch.bfloat16).inputs(torch.device("cuda"))
    graph = torch.cuda.CUDAGraph()
    loaded = dict(jit._loaded)
    jit._loaded.clear()
    jit._loaded_for_gpu.clear()
    try:
        with pytest.raises(hipconv.errors.CaptureError, match="warmup"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            hipconv.causal_conv1d_fwd(out, x, weight, bias, True)
        hipconv.warmup()
    finally:
        jit._loaded.update(loaded)
    with torch.cuda.graph(graph):
        hipconv.causal_conv1d_fwd(out, x, weight, bias, True)
    for seed in (1, 2):
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
        out.fill_(torch.nan)
        graph.replay()
        assert_matches(out, x, weight, bias, True)
