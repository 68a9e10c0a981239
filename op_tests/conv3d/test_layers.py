"""hipconv.nn.CausalConv3d, and the layers that replace_conv3d takes over.
op_tests/run_video_vaes.py runs diffusers' own models.
"""

from __future__ import annotations

from collections.abc import Iterator
import copy

import pytest
import torch
from torch import Tensor, nn
import torch.nn.functional as F

from conv3d.blocks import CogVideoXCausalConv3d, HunyuanVideoCausalConv3d, LTXVideoCausalConv3d
from conv3d.wan import WanCausalConv3d
from support.backends import WAYS, device_of, environment
import hipconv

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["cpu", "simt-wave64", *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


# ---- the layer ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time_padding", ["zeros", "first"])
def test_steps_are_the_whole(device: torch.device, time_padding: str) -> None:
    layer = hipconv.nn.CausalConv3d(8, 6, 3, padding=1, time_padding=time_padding, activation="silu", device=device)
    x = torch.randn(1, 8, 7, 5, 6, device=device).contiguous(memory_format=torch.channels_last_3d)
    with torch.no_grad():
        whole = layer(x)
        for sizes in ([1, 4, 1, 1], [7], [2, 2, 3]):
            layer.reset()
            chunks = torch.cat([layer.step(chunk) for chunk in x.split(sizes, 2)], 2)
            assert torch.allclose(chunks, whole, atol=1e-6)
        front = x[:, :, :1].expand(-1, -1, 2, -1, -1)
        frames = torch.cat([front if time_padding == "first" else torch.zeros_like(front), x], 2)
        expected = F.silu(F.conv3d(frames, layer.weight, layer.bias, padding=(0, 1, 1)))
    assert torch.allclose(whole, expected, atol=1e-5)


@pytest.mark.parametrize("time_padding", ["zeros", "first"])
def test_a_step_without_frames_gives_none_and_changes_nothing(device: torch.device, time_padding: str) -> None:
    layer = hipconv.nn.CausalConv3d(8, 6, 3, padding=1, time_padding=time_padding, device=device)
    x = torch.randn(1, 8, 4, 5, 6, device=device)
    with torch.no_grad():
        whole = layer(x)
        for sizes in ([1, 0, 0, 3], [3, 0, 1], *([[0, 4]] if time_padding == "zeros" else [])):
            layer.reset()
            chunks = [layer.step(chunk) for chunk in x.split(sizes, 2)]
            assert [chunk.shape[2] for chunk in chunks] == sizes
            assert torch.allclose(torch.cat(chunks, 2), whole, atol=1e-6)
        layer.reset()
        if time_padding == "first":
            with pytest.raises(ValueError, match=r"^x: got shape \(1, 8, 0, 5, 6\), expected at least a frame, or a cache"):
                layer.step(x[:, :, :0])
            assert torch.allclose(layer.step(x), whole, atol=1e-6)


def test_a_layer_loads_torchs_state_trains_and_says_what_is_wrong(device: torch.device) -> None:
    plain, layer = nn.Conv3d(4, 4, (3, 1, 1), device=device), hipconv.nn.CausalConv3d(4, 4, (3, 1, 1), device=device)
    layer.load_state_dict(plain.state_dict())
    x = torch.randn(2, 4, 3, 4, 4, device=device, requires_grad=True)
    loss = [layer(x).square().sum(), plain(F.pad(x, (0, 0, 0, 0, 2, 0))).square().sum()]
    ours, theirs = torch.autograd.grad(loss[0], [x, layer.weight]), torch.autograd.grad(loss[1], [x, plain.weight])
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, theirs, strict=True))
    with pytest.raises(
        ValueError, match=r"requires grad, .* this call writes into its arguments \(out, states or caches\) and records"
    ):
        layer.step(x)
    with torch.no_grad():
        layer.step(x)
        with pytest.raises(ValueError, match=r"^input: got shape \(1, 4, 3, 4, 4\), .* call reset\(\) first"):
            layer.step(x[:1])
        again = copy.deepcopy(layer)
        assert torch.equal(again.step(x), layer.step(x))
    assert "time_padding='zeros'" in repr(layer) and list(layer.state_dict()) == ["weight", "bias"]
    with pytest.raises(ValueError, match=r"^time_padding: got 'last'"):
        hipconv.nn.CausalConv3d(4, 4, 3, time_padding="last")
    with pytest.raises(ValueError, match=r"^padding: got \(0, 1, 1\), expected an int or a pair"):
        hipconv.nn.CausalConv3d(4, 4, 3, padding=(0, 1, 1))  # type: ignore[arg-type]


# ---- layers of models --------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wan = WanCausalConv3d(4, 6, 3, padding=1)
        self.wan_time = WanCausalConv3d(4, 6, (3, 1, 1), stride=(2, 1, 1))
        self.hunyuan = HunyuanVideoCausalConv3d(4, 6, 3)
        self.cogvideox = CogVideoXCausalConv3d(4, 6, 3)
        self.cogvideox_edges = CogVideoXCausalConv3d(4, 6, 3, "replicate")
        self.cogvideox_pixels = CogVideoXCausalConv3d(4, 6, 1)
        self.ltx = LTXVideoCausalConv3d(4, 6, 3)
        self.ltx_both_sides = LTXVideoCausalConv3d(4, 6, 3, is_causal=False)
        self.plain = nn.Conv3d(4, 6, 3, stride=(1, 2, 2), padding=1, padding_mode="circular")

    def forward(self, x: Tensor) -> list[Tensor]:
        cached = [self.wan(x, x[:, :, :2]), self.wan(x, x[:, :, :1]), self.wan(x), self.wan_time(x)]
        first, cache = self.cogvideox(x)
        second, last = self.cogvideox(x.flip(2), cache)
        others = [
            self.hunyuan(x),
            self.cogvideox_edges(x)[0],
            self.cogvideox_pixels(x)[0],
            self.ltx(x),
            self.ltx_both_sides(x),
            self.plain(x),
        ]
        return [*cached, first, second, *(tensor for tensor in (cache, last) if tensor is not None), *others]


def test_replaced_layers_compute_the_same_and_go_back(device: torch.device) -> None:
    model = Model().to(device)
    x = torch.randn(1, 4, 4, 5, 6, device=device)
    with torch.no_grad():
        expected = model(x)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        report = hipconv.replace_conv3d(model)
        found = model(x)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, expected, strict=True)) and len(found) == len(expected)
    assert isinstance(model.wan, WanCausalConv3d) and type(model.wan) is not WanCausalConv3d
    assert report.replaced == 9 and str(report).endswith("9 of 9 convolutions are replaced")

    def gradients_of(model: Model) -> tuple[Tensor, ...]:
        return torch.autograd.grad(torch.stack([r.square().sum() for r in model(x)]).sum(), list(model.parameters()))

    gradients = [gradients_of(model), gradients_of(copy.deepcopy(model))]
    report.undo()
    plain = gradients_of(model)
    for of_replaced in gradients:
        assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(of_replaced, plain, strict=True))
    assert type(model.wan) is WanCausalConv3d and type(model.plain) is nn.Conv3d
    assert all(torch.equal(tensor, state[name]) and tensor.is_contiguous() for name, tensor in model.state_dict().items())
    report.undo()


def test_what_is_left_is_named() -> None:
    model = Model().double()
    assert "is of torch.float64" in str(hipconv.replace_conv3d(model))
    odd = Model()
    odd.wan._padding = (1, 1, 1, 1, 1, 0)
    odd.hunyuan.pad_mode = "reflect"
    lines = str(hipconv.replace_conv3d(odd))
    assert "wan " in lines and "pads frames otherwise" in lines and "pads by 'reflect'" in lines
    with pytest.raises(TypeError, match=r"^model: got 3, expected a torch\.nn\.Module"):
        hipconv.replace_conv3d(3)  # type: ignore[arg-type]
