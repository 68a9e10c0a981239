"""Prefill as torch's operator: schema, compiled graphs, fake tensors; captured graphs on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from serving.prefill_cases import CPU, Case, cached_call, check, expected, good_call, same_values
from support.marks import needs_gpu
from support.tensors import mismatch
from hipconv import serving

# ---- torch -------------------------------------------------------------------------------------------------------------------


def _raw(arguments: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    names = ("conv_states", "x", "weight", "bias", "query_start_loc", "cache_indices")
    return [arguments[name] for name in names], {"has_initial_state": arguments["has_initial_state"], "use_silu": True}


def test_opcheck(device: torch.device) -> None:
    arguments = Case([5, 2, 9], 8).inputs(device)
    arguments["conv_states"] = arguments["conv_states"].nan_to_num(0.0)
    positional, named = _raw(arguments)
    torch.library.opcheck(
        torch.ops.hipconv.causal_conv1d_varlen.default, (torch.zeros_like(arguments["x"]), *positional), named
    )
    parts = [torch.zeros(16, size, device=device) for size in (3, 3, 2)]
    torch.library.opcheck(torch.ops.hipconv.causal_conv1d_varlen_split.default, (*parts, *positional), named)


def test_compiles_into_one_graph(device: torch.device) -> None:
    arguments = Case([5, 2, 9], 8).inputs(device)

    def step(x: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
        out = serving.causal_conv1d_fn(**(arguments | {"x": x * 2, "conv_states": pool}))
        q, _, v = serving.causal_conv1d_split_qkv(**(arguments | {"x": out, "conv_states": pool}), k_dim=3, v_dim=2)
        doubled = x + x
        return q + 1, v + serving.causal_conv1d_fn(**(arguments | {"x": doubled, "conv_states": pool, "out": doubled}))[:2].T

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    pools = [arguments["conv_states"].clone() for _ in range(2)]
    for ours, plain in zip(compiled(arguments["x"], pools[0]), step(arguments["x"], pools[1]), strict=True):
        assert torch.equal(ours, plain)
    assert same_values(*pools)


def test_fake_tensors_need_no_kernel() -> None:
    real = Case([5, 2], 8).inputs(CPU)
    arguments: dict[str, Any] = {name: value.to("meta") if isinstance(value, Tensor) else value for name, value in real.items()}
    assert serving.causal_conv1d_fn(**arguments).shape == (8, 7)
    assert serving.causal_conv1d_split_qkv(**arguments, k_dim=2, v_dim=4)[2].shape == (7, 4)


def test_autograd_notices_what_a_call_wrote(device: torch.device) -> None:
    """Past the dispatcher as well as through it: a graph that saved one of these tensors must not use it."""
    for first in (True, False):  # the first call of a process loads the module, through the dispatcher
        arguments = good_call(device)
        written = [arguments["out"], arguments["conv_states"]]
        versions = [tensor._version for tensor in written]
        serving.causal_conv1d_fn(**arguments)
        assert all(tensor._version > version for tensor, version in zip(written, versions, strict=True)), first


def test_modes_see_the_operator(device: torch.device) -> None:
    seen: list[str] = []

    class Names(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    with Names():
        serving.causal_conv1d_fn(**good_call(device))
    assert "hipconv::causal_conv1d_varlen" in seen


def test_metadata_is_accepted_and_not_needed(device: torch.device) -> None:
    arguments = Case([5, 2], 8).inputs(device)
    metadata = serving.compute_causal_conv1d_metadata(arguments["query_start_loc"])
    assert metadata == (None, None, None)
    check(arguments | {"metadata": object()})
    serving.causal_conv1d_fn(**arguments, metadata=metadata, seq_lens_cpu=[5, 2])


# ---- GPU only ----------------------------------------------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("kernel", ["auto", "tile", "naive"])
def test_no_host_synchronisation(kernel: str) -> None:
    """Peers read query_start_loc back at every call."""
    arguments = Case([5, 2, 900, 1], 64, 4, torch.bfloat16, torch.bfloat16, dead_tokens=2).inputs(torch.device("cuda"))
    check(arguments | {"kernel": kernel})
    cached = cached_call(torch.device("cuda"), [15, 3], [70, 20], 16)
    serving.causal_conv1d_fn(**cached, kernel=kernel)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        serving.causal_conv1d_fn(**arguments, kernel=kernel)
        serving.causal_conv1d_fn(**arguments, kernel=kernel, out=arguments["x"])
        serving.causal_conv1d_fn(**cached, kernel=kernel)
        serving.causal_conv1d_split_qkv(**arguments, k_dim=16, v_dim=32, kernel=kernel)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize("kernel", ["auto", "tile", "naive"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_captured_graph_serves_other_lengths_slots_and_flags(kernel: str, in_place: bool) -> None:
    device = torch.device("cuda")
    shapes = [[5, 2, 900, 1, 0, 92], [1000, 0, 0, 0, 0, 0], [1, 1, 1, 1, 500, 400], [3, 300, 3, 300, 3, 300]]
    static = Case(shapes[0], 64, 4, torch.bfloat16, torch.bfloat16).inputs(device)
    x = static["x"].clone()
    pool = static["conv_states"].clone()
    out = static["x"] if in_place else torch.empty_like(x)
    serving.causal_conv1d_fn(**static, kernel=kernel, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        serving.causal_conv1d_fn(**static, kernel=kernel, out=out)
    for number, lengths in enumerate(shapes):
        now = Case(lengths, 64, 4, torch.bfloat16, torch.bfloat16, dead_tokens=1000 - sum(lengths)).inputs(device, seed=number)
        now["cache_indices"][number] = -1
        wanted, wanted_pool, live = expected(now)
        for name in ("x", "conv_states", "query_start_loc", "cache_indices", "has_initial_state", "weight", "bias"):
            static[name].copy_(now[name])
        graph.replay()
        assert mismatch(out[:, live], wanted[:, live]) is None
        assert same_values(static["conv_states"], wanted_pool)
    assert pool.shape == static["conv_states"].shape
