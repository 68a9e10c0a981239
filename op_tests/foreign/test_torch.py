"""PyTorch's own samples of conv1d, conv2d and conv3d: forward, derivatives, vmap, autocast, fake tensors,
and what is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from conv2d.cases import exact
from foreign.torch_cases import Refusal, TorchCase, cases, on_hipconv, on_torch, refusals
from support.backends import WAYS, device_of, environment, on_kernels
from support.tensors import DTYPES
import hipconv

pytestmark = pytest.mark.usefixtures("one_thread")
EACH = pytest.mark.parametrize("case", cases(), ids=lambda case: case.name.replace(" ", "-"))


@pytest.fixture(params=on_kernels())
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with environment(**WAYS["simt-wave64"]):
        yield device_of(request.param)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype, case: TorchCase) -> None:
    """To two units of the dtype, and those of the largest sum that float32 can have on the way."""
    factors = [each.detach().abs().amax().item() if each.numel() else 0.0 for each in (case.x, case.weight)]
    largest = factors[0] * factors[1] * case.weight[0].numel()
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(
        found.double(), expected.double(), rtol=2 * unit, atol=2 * unit + torch.finfo(torch.float32).eps * largest
    )


@EACH
def test_forward(case: TorchCase, device: torch.device) -> None:
    """By every algorithm that serves it and rounds its result alone, in three dtypes and, with a batch, both layouts."""
    for dtype in DTYPES.values():
        cast = case.with_dtype(dtype, device)
        expected = on_torch(cast.with_dtype(torch.float64, device))
        close(on_hipconv(cast), expected, dtype, case)
        for algorithm in exact((hipconv.conv2d_router if case.dimensions < 3 else hipconv.conv3d_router).METHODS):
            try:
                found = on_hipconv(cast, algorithm=algorithm)
            except ValueError as error:
                assert "algorithm" in str(error)
                continue
            assert found.shape == expected.shape and found.dtype == dtype, algorithm
            close(found, expected, dtype, case)
        if (cast.x.dim() == 4 and case.dimensions < 3) or cast.x.dim() == 5:
            memory_format = torch.channels_last if cast.x.dim() == 4 else torch.channels_last_3d
            last = cast._replace(x=cast.x.contiguous(memory_format=memory_format))
            close(on_hipconv(last), expected, dtype, case)


@EACH
def test_derivatives(case: TorchCase, device: torch.device) -> None:
    """Derivatives of first and second order are as torch's."""
    cast = case.with_dtype(torch.float32, device)
    inputs = [each.detach().requires_grad_() for each in (cast.x, cast.weight, cast.bias) if each is not None]
    results = []
    for function in (on_hipconv, on_torch):
        tensors = [*inputs, *[None] * (3 - len(inputs))]
        out = function(cast, *tensors)
        first = torch.autograd.grad((out * out.detach().tanh()).sum() + out.square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(torch.stack([each.square().sum() for each in first]).sum(), inputs, allow_unused=True)
        results.append([*first, *second])
    for found, expected in zip(*results, strict=True):
        assert (found is None) == (expected is None)
        if found is not None and found.numel():
            scale = max(1.0, float(expected.detach().abs().amax()))
            torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-5 * scale)


@EACH
def test_vmap_and_autocast(case: TorchCase, device: torch.device) -> None:
    cast = case.with_dtype(torch.float32, device)
    several = torch.stack([cast.x, cast.x.flip(-1), -cast.x])
    found = torch.vmap(lambda x: on_hipconv(cast, x, cast.weight, cast.bias))(several)
    expected = torch.stack([on_torch(cast.with_dtype(torch.float64, device)._replace(x=x.double())) for x in several])
    close(found, expected, torch.float32, case)
    with torch.autocast(device.type, torch.bfloat16):
        found = on_hipconv(cast)
    rounded = cast.with_dtype(torch.bfloat16, device)
    assert found.dtype == torch.bfloat16
    close(found, on_torch(rounded.with_dtype(torch.float64, device)), torch.bfloat16, case)


@EACH
def test_shapes_without_running(case: TorchCase, device: torch.device) -> None:
    """torch.compile learns from a call the shape, dtype and strides of what it would give."""
    cast = case.with_dtype(torch.float32, device)
    real = on_hipconv(cast)
    with FakeTensorMode() as mode:
        tensors = [None if each is None else mode.from_tensor(each) for each in (cast.x, cast.weight, cast.bias)]
        fake = on_hipconv(cast, *tensors)
    assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


@pytest.mark.parametrize("refusal", refusals(), ids=lambda refusal: refusal.name.replace(" ", "-"))
def test_what_torch_refuses_is_refused(refusal: Refusal, device: torch.device) -> None:
    """With the name of an argument, which is the one of torch's message or one that is wrong, too."""
    with pytest.raises((TypeError, ValueError), match=r"^(x|weight|bias|stride|padding|dilation|groups)\b"):
        on_hipconv(refusal.case)
