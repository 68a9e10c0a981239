"""The layer `hipconv.nn.Conv2d`, and `hipconv.replace_conv2d`, which puts it into models."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
import torch.nn.functional as F

from support.backends import backends, device_of, use_backend
from support.marks import needs_gpu
import hipconv
from hipconv.nn import group_norm
from hipconv.nn.group_norm import GroupNorm

SETTINGS: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1, "bias": False},
    {"padding": "same", "dilation": 2, "groups": 2},
    {"padding": (2, 1), "padding_mode": "reflect"},
    {"padding": 1, "padding_mode": "circular", "stride": (1, 2)},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("backend", backends())
def test_layer_is_torchs(backend: str, settings: dict[str, Any]) -> None:
    device, close = device_of(backend), 5e-3 if backend == "gpu" else 1e-5  # torch's default on GPUs may be TF32

    torch.manual_seed(1)
    theirs = nn.Conv2d(4, 6, 3, **settings).to(device)
    torch.manual_seed(1)
    ours = hipconv.nn.Conv2d(4, 6, 3, **settings).to(device)
    assert repr(ours) == repr(theirs)
    assert [(name, tuple(p.shape)) for name, p in ours.named_parameters()] == [
        (n, tuple(p.shape)) for n, p in theirs.named_parameters()
    ]
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4, 9, 8, device=device)
    with use_backend(backend):
        for like in (x, x.to(memory_format=torch.channels_last), x[0]):
            expected = theirs.double()(like.double()).float()
            theirs.float()
            torch.testing.assert_close(ours(like), expected, rtol=close, atol=close)


@pytest.mark.parametrize("name", ["relu", "gelu_tanh", "silu"])
def test_activation_residual_and_gradients(name: str) -> None:
    ours = hipconv.nn.Conv2d(3, 5, 3, padding=1, activation=name)
    assert ours.bias is not None
    assert f"activation='{name}'" in repr(ours)
    x, residual = torch.randn(2, 3, 6, 7, requires_grad=True), torch.randn(2, 5, 6, 7)
    expected = getattr(F, name.partition("_")[0])(F.conv2d(x, ours.weight, ours.bias, padding=1) + residual, **_options(name))
    found = ours(x, residual)
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected.square().sum(), (x, ours.weight, ours.bias))
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), (x, ours.weight, ours.bias)), wanted, rtol=1e-4, atol=1e-4
    )


def _options(name: str) -> dict[str, str]:
    return {"approximate": "tanh"} if name == "gelu_tanh" else {}


def test_layer_travels() -> None:
    layer = hipconv.nn.Conv2d(3, 4, 3, activation="silu")
    x = torch.randn(1, 3, 5, 5)
    stored = io.BytesIO()
    torch.save(layer, stored)
    stored.seek(0)
    others = [
        copy.deepcopy(layer),
        torch.load(stored, weights_only=False),
        torch.compile(layer, backend="eager", fullgraph=True),
    ]
    for other in others:
        assert torch.equal(other(x), layer(x))
    assert others[0].weight is not layer.weight
    doubled = copy.deepcopy(layer).double()
    assert torch.equal(doubled(x.double()), F.silu(F.conv2d(x.double(), doubled.weight, doubled.bias)))


def test_wrong_arguments_name_themselves() -> None:
    with pytest.raises(ValueError, match="activation: got 'swoosh'"):
        hipconv.nn.Conv2d(3, 4, 3, activation="swoosh")
    with pytest.raises(TypeError, match="model: got"):
        hipconv.replace_conv2d("model")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="model: got a Conv2d itself"):
        hipconv.replace_conv2d(nn.Conv2d(3, 4, 3))


class Block(nn.Module):
    """Layers as ResNets have them: one activation layer called twice, a shortcut, one convolution whose result has two uses."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.GELU(), nn.Identity())
        self.a, self.norm_a = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.b, self.norm_b = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.twice = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.act = nn.SiLU()
        self.head = nn.Conv2d(8, 2, 1)
        self.slope = nn.LeakyReLU(0.2)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 2)
                nn.init.normal_(module.bias)
                module.running_mean, module.running_var = torch.randn(8), torch.rand(8) + 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.relu(self.norm_a(self.a(x)))
        y = self.relu(self.norm_b(self.b(y)) + x)
        z = self.twice(y)
        return self.slope(self.head(self.act(z) + z))


def test_replace_folds_fuses_and_says_why() -> None:
    model = Block().eval()
    x = torch.randn(2, 3, 9, 7)
    before, keys = model(x), list(model.state_dict())
    report = hipconv.replace_conv2d(model, fold_batchnorm=True)
    torch.testing.assert_close(model(x), before, rtol=1e-4, atol=1e-4)
    became = {layer.name: layer for layer in report.layers}
    assert report.replaced == 5
    assert became["stem.0"].taken_in == ("stem.1", "stem.2")
    assert model.stem[0].activation == "gelu"
    assert became["a"].taken_in == ("norm_a",)
    assert became["a"].why == "relu is called 2 times"
    assert became["b"].taken_in == ("norm_b",)
    assert became["b"].why == ""
    assert became["twice"].taken_in == ()
    assert became["twice"].why == "act is one of 2 uses of its result"
    assert became["head"].taken_in == ()  # a slope that no kernel has
    assert report.notes == []
    assert "5 of 5 convolutions are replaced" in str(report)
    assert model.head.weight.is_contiguous(memory_format=torch.channels_last)
    copy.deepcopy(model)(x)
    report.undo()
    report.undo()
    assert torch.equal(model(x), before)
    assert list(model.state_dict()) == keys
    assert type(model.a) is nn.Conv2d
    assert model.a.weight.is_contiguous()


def test_replace_leaves_what_may_do_more() -> None:
    class Own(nn.Conv2d):
        pass

    model = nn.Sequential(
        nn.Conv2d(3, 4, 1),
        nn.BatchNorm2d(4),
        Own(4, 4, 1),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1)),
        nn.Conv2d(4, 4, 1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 1).double(),
    )
    model[4].register_forward_hook(lambda *_: None)
    model[5].register_forward_hook(lambda *_: None)
    report = hipconv.replace_conv2d(model, fold_batchnorm=True, channels_last=False)
    reasons = {layer.name: (layer.replaced, layer.why) for layer in report.layers}
    assert reasons["0"][0]
    assert "training mode" in reasons["0"][1]
    assert "is a Own" in reasons["2"][1]
    assert "ParametrizedConv2d" in reasons["3"][1]
    assert reasons["4"] == (False, "has hooks")
    assert "float64" in reasons["6"][1]
    assert not model._forward_pre_hooks


def test_replace_shares_parameters_and_shared_layers() -> None:
    shared = nn.Conv2d(3, 3, 1)
    a, b = nn.Sequential(shared, nn.ReLU()), nn.Sequential(shared, nn.ReLU())
    model = nn.ModuleDict({"a": a, "b": b})
    weight = shared.weight
    report = hipconv.replace_conv2d(model)
    assert a[0] is b[0]
    assert a[0].weight is weight
    assert a[0].activation == "none"  # it is called in two places
    assert [layer.name for layer in report.layers] == ["a.0", "b.0"]
    assert [layer.why for layer in report.layers] == ["b.1 follows it in one of 2 places"] * 2
    assert isinstance(a[1], nn.ReLU)


def test_replace_where_fx_cannot_follow() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
            self.last, self.act = nn.Conv2d(4, 4, 1), nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(self.last(self.body(x))) if x.sum() > -1e9 else x

    model = Looks()
    x = torch.randn(1, 3, 8, 8)
    before = model(x)
    report = hipconv.replace_conv2d(model)
    assert {layer.name: layer.taken_in for layer in report.layers} == {"body.0": ("body.1",), "body.2": (), "last": ()}
    torch.testing.assert_close(model(x), before)
    reason = "symbolically traced variables cannot be used as inputs to control flow"
    meaning = "what follows a layer is taken from the order of each Sequential"
    assert f"torch.fx cannot follow Looks.forward ({reason}): {meaning}\n" in str(report)
    report.undo()
    assert "torch.fx" not in str(hipconv.replace_conv2d(model, fuse_activations=False))


class Branches(nn.Module):
    """A convolution, and an activation of its result that depends on which arguments a call has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.same, self.act = nn.Conv2d(3, 3, 1), nn.SiLU()
        self.body = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())

    def end(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.same(x))


class ByNone(Branches):
    def forward(self, x: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor:
        y = self.body[0](self.end(x))
        if skip is None:
            return y
        return self.body[1](y) + skip


class ByKeyword(Branches):
    def forward(self, x: torch.Tensor, *, skip: torch.Tensor | None = None) -> torch.Tensor:
        y = self.body[0](self.end(x))
        return self.body[1](y) if skip is None else y + skip


class ByStars(Branches):
    def forward(self, x: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
        y = self.body[0](self.end(x))
        skip = others.get("skip")
        return y if skip is None else self.body[1](y) + skip


class WithoutTheLayer(Branches):
    """One call has the activation behind another layer."""

    def forward(self, x: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor:
        y = self.end(x)
        return self.body[1](y) if skip is None else self.body[1](self.body[0](y)) + skip


@pytest.mark.parametrize("kind", [ByNone, ByKeyword, ByStars, WithoutTheLayer])
def test_replace_asks_what_follows_with_and_without_optional_arguments(kind: type[Branches]) -> None:
    model = kind().eval()
    x = torch.randn(1, 3, 5, 4)
    before = model(x), model(x, skip=x)
    report = hipconv.replace_conv2d(model)
    torch.testing.assert_close((model(x), model(x, skip=x)), before)
    became = {layer.name: layer for layer in report.layers}
    assert became["same"].taken_in == ("act",)
    assert became["body.0"].taken_in == ()
    assert became["body.0"].why == "body.1 follows it in some calls only"
    assert report.notes == []


class FailsByDefault(Branches):
    def forward(self, x: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor:
        if skip is None and x.sum() > -1e9:
            return self.same(self.body(x))
        return self.end(self.body(x)) + (0 if skip is None else skip)


class FailsWithAll(Branches):
    def forward(self, x: torch.Tensor, features: bool = False) -> torch.Tensor:
        y = self.body(x)
        return self.same(y) if features else self.end(y)


@pytest.mark.parametrize(
    ("kind", "how"),
    [(FailsByDefault, "without its optional arguments"), (FailsWithAll, "with all of its arguments")],
)
def test_replace_where_fx_follows_one_of_two_calls(kind: type[Branches], how: str) -> None:
    """A layer is taken in where the call that was followed and the order of a Sequential agree."""
    model = kind().eval()
    x = torch.randn(1, 3, 5, 4)
    second = x if kind is FailsByDefault else True
    before = model(x), model(x, second)
    report = hipconv.replace_conv2d(model)
    torch.testing.assert_close((model(x), model(x, second)), before)
    assert {layer.name: layer.taken_in for layer in report.layers} == {"first": (), "same": (), "body.0": ("body.1",)}
    assert f"torch.fx cannot follow {kind.__name__}.forward {how} (symbolically traced" in str(report)


def test_replace_says_why_a_batch_norm_stays() -> None:
    class Shared(Branches):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.same(self.norm(self.first(x)))) + self.body[1](self.body[0](self.body[0](x)))

    model = Shared().eval()
    x = torch.randn(1, 3, 5, 4)
    before = model(x)
    report = hipconv.replace_conv2d(model, fold_batchnorm=True)
    torch.testing.assert_close(model(x), before)
    assert {layer.name: layer.why for layer in report.layers} == {
        "first": "norm is called 2 times",
        "same": "norm is called 2 times",
        "body.0": "body.1 follows one of 2 calls of it",
    }
    report.undo()
    assert [layer.why for layer in hipconv.replace_conv2d(model, fuse_activations=False).layers] == ["", "", ""]


def test_replace_takes_in_nothing_that_the_graph_shows_twice() -> None:
    class Features(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.body[0](x)
            return self.body[1](y) - y

    model = Features()
    x = torch.randn(1, 3, 8, 8)
    before = model(x)
    report = hipconv.replace_conv2d(model)
    assert [layer.taken_in for layer in report.layers] == [()]
    torch.testing.assert_close(model(x), before)


def _normed() -> nn.Sequential:
    norm = nn.GroupNorm(4, 16)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), norm, nn.SiLU(), nn.Conv2d(16, 4, 3)).requires_grad_(False)


def test_replace_has_group_norms_keep_the_layout() -> None:
    model = _normed()
    theirs, norm = copy.deepcopy(model), model[1]
    report = hipconv.replace_conv2d(model)
    assert report.norms == ["1"] and "1 group norms keep channels_last memory" in str(report)
    assert type(model[1]) is GroupNorm and model[1].weight is norm.weight and repr(model[1]) == repr(norm)
    x = torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(model(x), theirs(x))
    torch.testing.assert_close(copy.deepcopy(model)(x), theirs(x))
    report.undo()
    assert model[1] is norm
    assert not hipconv.replace_conv2d(model, channels_last=False).norms
    GroupNorm.from_torch(nn.GroupNorm(2, 4, affine=False))(torch.randn(1, 4, 3, 3))


def test_a_group_norm_is_that_of_its_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic, with what torch's kernels for GPUs compute of a channel."""

    def stats(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        return x.mean((0, 2, 3)), (x.var((0, 2, 3), correction=0) + eps).rsqrt()

    def elemt(x: Any, weight: Any, bias: Any, mean: Any, invstd: Any, eps: float, *, out: torch.Tensor) -> None:
        out.copy_(F.batch_norm(x, mean, invstd.pow(-2), weight, bias, False, 0.0, 0.0))

    monkeypatch.setattr(torch, "batch_norm_stats", stats)
    monkeypatch.setattr(torch, "batch_norm_elemt", elemt)
    x = (3 * torch.randn(2, 8, 5, 6) + torch.arange(8)[:, None, None]).contiguous(memory_format=torch.channels_last)
    x[:, 5] = 2.0  # a channel that does not vary
    weight, bias = torch.randn(8), torch.randn(8)
    for scale, shift in ((weight, bias), (None, None)):
        found = group_norm.normalized(x, 4, scale, shift, 1e-5)
        torch.testing.assert_close(found, F.group_norm(x, 4, scale, shift, 1e-5), rtol=1e-4, atol=1e-4)
        assert found.is_contiguous(memory_format=torch.channels_last)
        video = x.unflatten(2, (1, 5)).contiguous(memory_format=torch.channels_last_3d)
        assert torch.equal(group_norm.normalized(video, 4, scale, shift, 1e-5)[:, :, 0], found)
        frames = torch.randn(2, 8, 3, 5, 6).contiguous(memory_format=torch.channels_last_3d)
        found = group_norm.normalized(frames, 4, scale, shift, 1e-5)
        torch.testing.assert_close(found, F.group_norm(frames, 4, scale, shift, 1e-5), rtol=1e-4, atol=1e-4)
        assert found.is_contiguous(memory_format=torch.channels_last_3d)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_group_norm_on_a_gpu(dtype: torch.dtype) -> None:
    layer = GroupNorm(32, 64, device="cuda", dtype=dtype).requires_grad_(False)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    for shape, keeps in (
        ((2, 64, 130, 131), True), ((9, 64, 130, 131), False), ((1, 64, 8, 8), False), ((1, 64, 5, 60, 61), True),
        ((2, 64, 2, 8, 8), False),
    ):  # fmt: skip
        layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        x = (2 * torch.randn(shape, device="cuda") + 1).to(dtype, memory_format=layout)
        found, plain = layer(x), F.group_norm(x, 32, layer.weight, layer.bias)
        expected = F.group_norm(x.double(), 32, layer.weight.double(), layer.bias.double())
        assert (found - expected).abs().max() <= 2 * (plain - expected).abs().max() + 1e-5
        assert found.is_contiguous(memory_format=layout) == keeps
    x = torch.randn(1, 64, 130, 131, device="cuda", dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), x)
    assert gradient.isfinite().all()


def test_replaced_model_trains() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.SiLU())
    theirs = copy.deepcopy(model)
    hipconv.replace_conv2d(model, fold_batchnorm=True)  # in training the batch norm stays
    x = torch.randn(2, 3, 8, 8)
    results = []
    for each in (model, theirs):
        optimizer = torch.optim.SGD(each.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = each(x).square().mean()
            loss.backward()
            optimizer.step()
        results.append(loss.detach())
    torch.testing.assert_close(*results)
