"""Convolutions of one, two and three dimensions that PyTorch tests its own with: OpInfo's samples and error inputs, and the
modules' tests.

They come from the installed torch (torch.testing._internal), and torch computes what they should give. A convolution of one
dimension is run as one of two with a height of one.
"""

from __future__ import annotations

from collections.abc import Iterator
import functools
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn
import torch.nn.functional as F
from torch.testing._internal import common_methods_invocations, common_modules, common_nn
from torch.testing._internal.opinfo import core as opinfo

import hipconv

OPS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
NAMES = ("conv1d", "conv2d", "conv3d")
MODULES = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


# For each of its samples torch looks for a unittest that asks, among the source lines of all callers: there is none.
nobody_asks = mock.patch.object(opinfo, "extract_test_fn", lambda: None, create=True)


class TorchCase(NamedTuple):
    name: str
    x: Tensor  # (batch,) channels, then one to three sizes
    weight: Tensor
    bias: Tensor | None
    options: dict[str, Any]  # stride, padding, dilation, groups, padding_mode

    @property
    def dimensions(self) -> int:
        return self.weight.dim() - 2

    def with_dtype(self, dtype: torch.dtype, device: torch.device) -> TorchCase:
        def cast(tensor: Tensor) -> Tensor:
            return tensor.detach().to(device, dtype)

        return self._replace(x=cast(self.x), weight=cast(self.weight), bias=None if self.bias is None else cast(self.bias))


def on_hipconv(case: TorchCase, *tensors: Tensor | None, **options: Any) -> Tensor:
    """`hipconv.conv2d`, or `conv3d`, of these tensors, or of the case's."""
    x, weight, bias = tensors or (case.x, case.weight, case.bias)
    assert x is not None and weight is not None
    if case.dimensions > 1:
        convolve: Any = hipconv.conv2d if case.dimensions == 2 else hipconv.conv3d
        return convolve(x, weight, bias, **case.options, **options)

    def of_row(value: Any, plain: int) -> Any:
        return value if isinstance(value, str) else (plain, *(value if isinstance(value, tuple) else (value,)))

    plain = {"stride": 1, "padding": 0, "dilation": 1}
    wide = {name: of_row(value, plain[name]) if name in plain else value for name, value in case.options.items()}
    return hipconv.conv2d(x.unsqueeze(-2), weight.unsqueeze(-2), bias, **wide, **options).squeeze(-2)


def on_torch(case: TorchCase, *tensors: Tensor | None) -> Tensor:
    """torch's own, with its padding modes as nn.Conv1d and its like have them."""
    x, weight, bias = tensors or (case.x, case.weight, case.bias)
    assert x is not None and weight is not None
    options = dict(case.options)
    mode = options.pop("padding_mode", "zeros")
    if mode != "zeros":
        padding = options.pop("padding")
        sides = [side for size in reversed(padding) for side in (size, size)]
        x = F.pad(x, sides, mode=mode)
    return OPS[case.dimensions](x, weight, bias, **options)


def _of_op(name: str) -> Any:
    return next(op for op in common_methods_invocations.op_db if op.name == f"nn.functional.{name}")


def _of_module(module: Any, x: Tensor, name: str) -> TorchCase:
    options = {option: getattr(module, option) for option in ("stride", "padding", "dilation", "groups", "padding_mode")}
    return TorchCase(name, x, module.weight, module.bias, options)


def _all() -> Iterator[TorchCase]:
    torch.manual_seed(0)
    for name in NAMES:
        for number, sample in enumerate(_of_op(name).sample_inputs("cpu", torch.float32, requires_grad=False)):
            weight, bias = sample.args
            yield TorchCase(f"op_db {name} {number}", sample.input, weight, bias, dict(sample.kwargs))
    for info in common_modules.module_db:
        if info.module_cls in MODULES:
            inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
            for number, each in enumerate(inputs):
                module = info.module_cls(*each.constructor_input.args, **each.constructor_input.kwargs)
                yield _of_module(module, each.forward_input.args[0], f"module_db {info.module_cls.__name__} {number}")
    for number, test in enumerate([*common_nn.module_tests, *common_nn.get_new_module_tests()]):
        name = test.get("fullname") or test.get("module_name", "")
        if name.startswith(("Conv1d", "Conv2d", "Conv3d")):
            make = test.get("constructor") or functools.partial(getattr(nn, name), *test["constructor_args"])
            yield _of_module(
                make(), torch.randn(test["input_size"]), f"common_nn {number} {name} {test.get('desc', '')}".rstrip()
            )


@functools.cache
@nobody_asks
def cases() -> tuple[TorchCase, ...]:
    """Each shape with each set of options once."""

    def as_lists(value: Any, dimensions: int) -> Any:
        return value if isinstance(value, (str, tuple)) else (value,) * dimensions

    seen: dict[Any, TorchCase] = {}
    for case in _all():
        plain = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "padding_mode": "zeros"} | case.options
        said = tuple((name, as_lists(plain[name], case.dimensions)) for name in plain)
        seen.setdefault((case.x.shape, case.weight.shape, case.bias is None, said), case)
    return tuple(seen.values())


class Refusal(NamedTuple):
    name: str
    case: TorchCase


@functools.cache
@nobody_asks
def refusals() -> tuple[Refusal, ...]:
    """Return what both functions of torch refuse. float64, which only they serve, becomes float32; other types stay."""

    def as_served(tensor: Any) -> Any:
        return tensor.float() if isinstance(tensor, Tensor) and tensor.dtype == torch.float64 else tensor

    found = []
    for name in NAMES:
        for number, error in enumerate(_of_op(name).error_inputs("cpu")):
            sample = error.sample_input
            weight, bias = (as_served(each) for each in sample.args)
            case = TorchCase(f"op_db {name} error {number}", as_served(sample.input), weight, bias, dict(sample.kwargs))
            found.append(Refusal(f"{case.name}: {error.error_regex}", case))
    return tuple(found)
