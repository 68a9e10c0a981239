"""The blocks of HunyuanVideo's, CogVideoX's and LTX's kinds that replace_conv3d runs as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
import torch.nn.functional as F

from conv3d.blocks import CogVideoXModel, HunyuanVideoModel, LTXModel
from support.backends import WAYS, device_of, environment
from support.tensors import DTYPES
import hipconv
from hipconv.ops.conv3d.nearest import enlarged, enlarged_to
from hipconv.ops.conv3d.rms_norm import rms_norm
from hipconv.ops.conv3d.scaled import scaled

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS: dict[str, Any] = {"HunyuanVideo": HunyuanVideoModel, "CogVideoX": CogVideoXModel, "LTX": LTXModel}


@pytest.fixture(params=["cpu", "simt-wave64", *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


def model_of(name: str, device: torch.device | str = "cpu") -> tuple[Any, Tensor]:
    """A model in eval mode, and latents for it."""
    torch.manual_seed(0)
    return MODELS[name]().to(device).eval(), torch.randn(1, 4, 3, 4, 5, device=device)


def check_same(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-4) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", MODELS)
def test_blocks_run_as_a_whole_give_the_same_and_go_back(device: torch.device, name: str) -> None:
    model, latents = model_of(name, device)
    kinds = {layer: type(layer) for layer in model.modules()}
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with torch.no_grad():
        expected = model.decode(latents)
        report = hipconv.replace_conv3d(model)
        given = latents.clone()
        found = model.decode(given)
        check_same(found, expected)
        assert torch.equal(given, latents)
        if device.type == "cpu" or name != "HunyuanVideo":  # whose last norm, of so small a video, is torch's own on a GPU
            assert all(frames.is_contiguous(memory_format=torch.channels_last_3d) for frames in found)
    assert any(f"{model.block}.conv1 " in line and model.computed in line for line in str(report).splitlines())
    assert report.replaced == len(report.layers)
    block = model.get_submodule(model.block)
    assert isinstance(block, kinds[block]) and type(block) is not kinds[block]
    report.undo()
    assert {layer: type(layer) for layer in model.modules()} == kinds
    assert all(torch.equal(tensor, state[key]) and tensor.is_contiguous() for key, tensor in model.state_dict().items())
    with torch.no_grad():
        check_same(model.decode(latents), expected, 1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_who_looks_at_layers_sees_what_they_give(name: str) -> None:
    """Hooks, gradients, training and autocast have the layers called one by one, as the model calls them."""
    model, latents = model_of(name)
    with torch.no_grad():
        expected = model.decode(latents)
    hipconv.replace_conv3d(model)
    block = model.get_submodule(model.block)
    seen: list[Tensor] = []
    handle = block.nonlinearity.register_forward_hook(lambda module, inputs, result: seen.append(result))
    with torch.no_grad():
        check_same(model.decode(latents), expected)
    handle.remove()
    calls = len(seen)
    assert calls >= 4
    gradients = torch.autograd.grad(model.decode(latents)[0].square().sum(), list(block.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    with torch.no_grad():
        check_same(model.decode(latents), expected)
        assert len(seen) == calls
        model.train()
        model.apply(lambda layer: setattr(layer, "p", 0.0) if isinstance(layer, torch.nn.Dropout) else None)
        check_same(model.decode(latents), expected)
        model.eval()
        with torch.autocast("cpu"):
            assert torch.allclose(model.decode(latents)[0].float(), expected[0], atol=0.3)


@pytest.mark.parametrize("name", MODELS)
def test_a_block_of_other_parts_keeps_its_own_forward(name: str) -> None:
    model, latents = model_of(name)
    block = model.get_submodule(model.block)
    block.nonlinearity, kind = torch.nn.GELU(), type(block)
    with torch.no_grad():
        expected = model.decode(latents)
        report = hipconv.replace_conv3d(model)
        check_same(model.decode(latents), expected)
    assert type(block) is kind and model.computed not in str(report)


@pytest.mark.parametrize(("axes", "eps"), [((5,), 1e-5), ((5,), None), ((4, 5), 1e-5)])
def test_a_norm_of_torch_gives_the_same(axes: tuple[int, ...], eps: float | None) -> None:
    """It has the name of LTX's."""
    norm = torch.nn.RMSNorm(axes, eps, elementwise_affine=False)
    model, x = torch.nn.Sequential(torch.nn.Conv3d(4, 4, 3, padding=1), norm).eval(), torch.randn(1, 4, 3, 4, 5)
    with torch.no_grad():
        expected = model(x)
        hipconv.replace_conv3d(model)
        check_same([model(x)], [expected])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_frames_are_enlarged_as_torch_does_it(dtype: torch.dtype) -> None:
    for channels, frames, factors in ((8, 3, (2, 2, 2)), (6, 4, (1, 2, 3)), (16, 1, (2, 1, 2)), (3, 2, (3, 1, 1))):
        x = torch.randn(2, channels, frames, 3, 4).to(dtype)
        for given in (x, x.to(memory_format=torch.channels_last_3d), x.transpose(3, 4)):
            result = enlarged(given, factors)
            expected = given.repeat_interleave(factors[0], 2).repeat_interleave(factors[1], 3).repeat_interleave(factors[2], 4)
            assert torch.equal(result, expected) and result.is_contiguous(memory_format=torch.channels_last_3d)
            assert torch.equal(enlarged(given, factors, first_apart=True), expected[:, :, factors[0] - 1 :])


def test_frames_are_enlarged_to_a_size_as_torch_does_it() -> None:
    x = torch.randn(1, 8, 3, 3, 4)
    for size in ((3, 6, 8), (6, 3, 4), (5, 7, 9)):
        assert torch.equal(enlarged_to(x, size), F.interpolate(x, size))
        first, others = F.interpolate(x[:, :, :1], (1, *size[1:])), F.interpolate(x[:, :, 1:], (size[0] - 1, *size[1:]))
        assert torch.equal(enlarged_to(x, size, first_apart=True), torch.cat([first, others], 2))


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_the_end_of_a_norm_is_torchs(device: torch.device, dtype: torch.dtype) -> None:
    bound = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    for channels, size, small, first_apart in (
        (64, (3, 4, 37), (1, 1, 1), False), (24, (5, 6, 8), (3, 3, 1), True), (8, (4, 4, 40), (2, 1, 2), False),
        (8, (1, 3, 3), (1, 3, 3), True), (12, (2, 3, 3), (2, 3, 3), False), (8, (4, 5, 7), (3, 2, 3), True),
    ):  # fmt: skip
        x = torch.randn(2, channels, *size, device=device).to(dtype).contiguous(memory_format=torch.channels_last_3d)
        scale, shift = torch.randn(2, 2, channels, *small, device=device)
        wide, more = (enlarged_to(each, size, first_apart).double() for each in (scale, shift))
        for silu in (True, False):
            expected = F.silu(x.double() * wide + more) if silu else x.double() * wide + more
            result = scaled(x, scale, shift, silu=silu, first_apart=first_apart)
            assert result.dtype == dtype and ((result.double() - expected).abs() / (1 + expected.abs())).max() < bound
            again = x.clone(memory_format=torch.preserve_format)
            assert scaled(again, scale, shift, silu=silu, first_apart=first_apart, out=again) is again
            assert torch.equal(again, result)


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_a_norm_without_a_weight_adds_its_eps(device: torch.device, dtype: torch.dtype) -> None:
    bound = {torch.float32: 1e-5, torch.bfloat16: 2**-6, torch.float16: 2**-9}[dtype]
    x = torch.randn(1, 16, 2, 3, 4, device=device).to(dtype).contiguous(memory_format=torch.channels_last_3d)
    for bias in (None, torch.randn(16, device=device).to(dtype)):
        expected = x.double() / (x.double().square().mean(1, keepdim=True) + 0.5).sqrt()
        expected = F.silu(expected if bias is None else expected + bias.double()[:, None, None, None])
        error = (rms_norm(x, None, bias, 4.0, eps=8.0, silu=True) - expected).abs() / (1 + expected.abs())
        assert error.max() < bound
