"""The encoders and decoders of Wan's kind that replace_conv3d runs as a whole, and the norm between their convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
import torch.nn.functional as F

from conv3d.wan import Autoencoder, WanDecoder3d, WanEncoder3d
from support.backends import WAYS, device_of, environment
from support.tensors import DTYPES
import hipconv
from hipconv.ops.conv3d.rms_norm import rms_norm

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["cpu", "simt-wave64", *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


def check_same(found: tuple[list[Tensor], list], expected: tuple[list[Tensor], list]) -> None:
    """Chunks, and the caches that the last one left."""
    for a, b in zip([*found[0], *found[1]], [*expected[0], *expected[1]], strict=True):
        if a is None and b is None:  # shortcuts have no cache
            continue
        assert a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4), (a.shape, (a - b).abs().max())


@pytest.mark.parametrize("is_residual", [False, True])
def test_a_decoder_run_as_a_whole_gives_the_same_chunks_and_caches(device: torch.device, is_residual: bool) -> None:
    torch.manual_seed(0)
    model = Autoencoder(is_residual).to(device).eval()
    latents = torch.randn(1, 4, 3, 2, 3, device=device)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    video = torch.randn(1, 3, 9, 8, 8, device=device)
    with torch.no_grad():
        expected, encoded = model(latents), model.encode(video)
        assert [chunk.shape[2] for chunk in expected[0]] == [1, 4, 4] and [c.shape[2] for c in encoded[0]] == [1, 2, 2]
        report = hipconv.replace_conv3d(model)
        given = latents.clone()
        check_same(model(given), expected)
        assert torch.equal(given, latents)
        check_same(model.encode(video), encoded)
    lines = str(report).splitlines()
    assert any("up_blocks.0.resnets.0.conv1" in line and "norm1, " in line and "nonlinearity" in line for line in lines)
    assert any("resample.1" in line and "resample.0" in line for line in lines) and report.replaced == len(report.layers)
    assert isinstance(model.decoder, WanDecoder3d) and type(model.decoder) is not WanDecoder3d
    assert isinstance(model.encoder, WanEncoder3d) and type(model.encoder) is not WanEncoder3d
    report.undo()
    assert type(model.decoder) is WanDecoder3d and type(model.encoder) is WanEncoder3d
    assert all(torch.equal(tensor, state[name]) and tensor.is_contiguous() for name, tensor in model.state_dict().items())


def test_who_looks_at_layers_sees_what_they_give() -> None:
    """Hooks, gradients, training and autocast have the layers called one by one, as the model calls them."""
    torch.manual_seed(0)
    model = Autoencoder().eval()
    latents = torch.randn(1, 4, 2, 2, 3)
    with torch.no_grad():
        expected = model(latents)
    hipconv.replace_conv3d(model)
    seen: list[Tensor] = []
    block: Any = model.decoder.get_submodule("up_blocks.0.resnets.0")
    handle = block.register_forward_hook(lambda module, inputs, result: seen.append(result))
    with torch.no_grad():
        check_same(model(latents), expected)
    handle.remove()
    assert len(seen) == 2
    chunks, _ = model(latents)
    gradients = torch.autograd.grad(chunks[1].square().sum(), list(block.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    with torch.no_grad():
        check_same(model.train()(latents), expected)
        with torch.autocast("cpu"):
            assert torch.allclose(model.eval()(latents)[0][1].float(), expected[0][1], atol=0.2)


def test_a_decoder_of_other_parts_keeps_its_own_forward() -> None:
    for change in ("nonlinearity", "mode", "conv"):
        model = Autoencoder().eval()
        block: Any = model.decoder.up_blocks[0]
        if change == "nonlinearity":
            block.resnets[0].nonlinearity = torch.nn.GELU()
        elif change == "mode":
            block.upsamplers[0].resample[0].mode = "bilinear"
        else:
            block.resnets[1].conv1._padding = (1, 1, 1, 1, 1, 0)
        hipconv.replace_conv3d(model)
        assert type(model.decoder) is WanDecoder3d


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_the_norm_is_torchs(device: torch.device, dtype: torch.dtype) -> None:
    bound = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    for batch, channels, size in ((1, 96, (2, 3, 5)), (2, 8, (1, 2, 3)), (1, 384, (3, 1, 2)), (2, 12, (2, 3, 3))):
        frames = torch.randn(batch, channels, size[0] + 1, *size[1:], device=device).to(dtype)
        x = frames.contiguous(memory_format=torch.channels_last_3d)[:, :, : size[0]]
        weight, bias = torch.randn(2, channels, 1, 1, 1, device=device).to(dtype)
        for more, silu in ((None, True), (bias, False), (bias, True)):
            expected = F.normalize(x.double(), dim=1) * channels**0.5 * weight.double() + (0 if more is None else more.double())
            expected = F.silu(expected) if silu else expected
            result = rms_norm(x, weight, more, channels**0.5, silu=silu)
            # torch's way rounds after each of its steps
            assert ((result.double() - expected).abs() / (1 + expected.abs())).max() < 4 * bound
            again = x.clone(memory_format=torch.preserve_format)
            assert rms_norm(again, weight, more, channels**0.5, silu=silu, out=again) is again and torch.equal(again, result)
    zeros = rms_norm(torch.zeros_like(x), weight, None, 1.0, silu=True)
    assert torch.equal(zeros, torch.zeros_like(zeros))
