"""The operators through torch.export and inductor: the same results, and no copy of a pool of states."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import hipconv
from hipconv import serving

SLOTS = 4099  # a number that is nothing else's


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = hipconv.nn.CausalConv1d(6, 4, activation="silu")

    def forward(self, x: Tensor, initial_states: Tensor) -> tuple[Tensor, Tensor]:
        y, states = self.conv(x * 2, initial_states=initial_states, return_final_states=True)
        return y + 1, states


def test_a_layer_with_states_is_exported() -> None:
    layer, x, states = Layer(), torch.randn(2, 6, 17), torch.randn(2, 6, 3)
    length = torch.export.Dim("length", min=4, max=1000)
    program = torch.export.export(layer, (x, states), dynamic_shapes=({2: length}, None), strict=False)
    for seqlen in (17, 40):
        x = torch.randn(2, 6, seqlen)
        for ours, theirs in zip(program.module()(x, states), layer(x, states), strict=True):
            assert torch.allclose(ours, theirs)


def test_inductor_compiles_every_form() -> None:
    weight = torch.randn(6, 4)

    def forms(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        hipconv.causal_conv1d_fwd(out, x * 2, weight, None, True, kernel="openmp")
        return out + hipconv.causal_conv1d(x, weight, None, "silu", kernel="openmp")

    x = torch.randn(2, 6, 17)
    assert torch.allclose(torch.compile(forms, fullgraph=True)(x), forms(x), atol=1e-6)

    def loss(x: Tensor) -> Tensor:
        y = hipconv.causal_conv1d_fn(x * 2, weight, activation="silu")
        assert isinstance(y, Tensor)
        return y.square().sum()

    x.requires_grad_()
    ours, plain = (torch.autograd.grad(function(x), x)[0] for function in (torch.compile(loss, fullgraph=True), loss))
    assert torch.allclose(ours, plain, atol=1e-5)


def test_inductor_compiles_conv2d_of_any_size_with_weights_of_the_module_around_it() -> None:
    weights = [torch.randn(4, 4, 3, 3, requires_grad=True) for _ in range(2)]

    def layers(x: Tensor) -> Tensor:
        y = hipconv.conv2d(x, weights[0], padding=1, padding_mode="circular", activation="silu")
        return hipconv.conv2d(y, weights[1], padding=(1, 0, 2, 1))

    compiled = torch.compile(layers, fullgraph=True, dynamic=True)
    for size in (6, 9):
        x = torch.randn(2, 4, size, size + 1, requires_grad=True)
        leaves = [x, *weights]
        ours, plain = (torch.autograd.grad(function(x).square().sum(), leaves) for function in (compiled, layers))
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-3) for a, b in zip(ours, plain, strict=True))


def decode(x: Tensor, weight: Tensor, pool: Tensor, indices: Tensor) -> Tensor:
    return serving.causal_conv1d_update(x * 2, pool, weight, None, "silu", indices) + 1


def prefill(x: Tensor, weight: Tensor, pool: Tensor, indices: Tensor) -> Tensor:
    starts = torch.arange(3, dtype=torch.int32, device=x.device)
    return serving.causal_conv1d_fn((x * 2).T, weight, None, pool, starts, indices) + 1


def test_inductor_writes_states_in_place() -> None:
    """The pool is the largest tensor of an inference server: a copy of it a call would show in its memory, and in its time."""
    from torch._inductor.utils import run_and_get_code  # seconds, which every process that collects tests would wait for

    weight, x, indices = torch.randn(6, 4), torch.randn(2, 6), torch.tensor([4000, 3], dtype=torch.int32)
    for step in (decode, prefill):
        pool = torch.randn(SLOTS, 6, 3)
        other, address = pool.clone(), pool.data_ptr()
        result, (code, *_) = run_and_get_code(torch.compile(step, fullgraph=True), x, weight, pool, indices)
        assert torch.allclose(result, step(x, weight, other, indices), atol=1e-6)
        assert torch.equal(pool, other) and pool.data_ptr() == address
        allocated = re.findall(r"= empty_strided\w*\(\(([^)]*)\)", code)
        assert allocated and not any(str(SLOTS) in sizes for sizes in allocated), code


@pytest.mark.skipif(not torch.cuda.is_available(), reason="memory is measured on a GPU")
def test_compiled_steps_need_no_memory_for_the_pool_on_a_gpu() -> None:
    with torch.device("cuda"):
        weight, x, indices = torch.randn(512, 4), torch.randn(2, 512), torch.tensor([4000, 3], dtype=torch.int32)
        pool = torch.randn(SLOTS, 512, 3)
    for step in (decode, prefill):
        other = pool.clone()
        expected = step(x, weight, other, indices)
        compiled = torch.compile(step, fullgraph=True)
        compiled(x, weight, pool.clone(), indices)  # compiles
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = compiled(x, weight, pool, indices)
        assert torch.cuda.max_memory_allocated() - before < pool.nbytes / 100
        assert torch.allclose(result, expected, atol=1e-5) and torch.equal(pool, other)
