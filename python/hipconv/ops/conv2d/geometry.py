"""The arguments of a conv2d mean this: strides, padding and shapes as plain integers, checked before anything runs.

Nothing here looks at a tensor's memory. Integers may be symbolic (torch.SymInt).
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...arguments import describe, parse_activation, require_dense, wrong_dtype
from .activations import ACTIVATIONS

PADDING_MODES = ("zeros", "reflect", "replicate", "circular")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

Ints = int | Sequence[int]
Padding = str | Ints


class Options(NamedTuple):
    """All of a conv2d but its tensors."""

    stride: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, bottom, left, right
    dilation: tuple[int, int]
    groups: int
    padding_mode: str
    activation: str


def options(
    kernel: tuple[int, int], stride: Ints, padding: Padding, dilation: Ints, groups: int, padding_mode: str, activation: str
) -> Options:
    """Arguments as the public function takes them, for filters of `kernel` = (height, width)."""
    parse_activation(activation, ACTIVATIONS)
    if not isinstance(padding_mode, str):
        raise TypeError(f"padding_mode: got {describe(padding_mode)}, expected one of {listed(PADDING_MODES)}")
    if padding_mode not in PADDING_MODES:
        raise ValueError(f"padding_mode: got {describe(padding_mode)}, expected one of {listed(PADDING_MODES)}")
    pair = _pair("stride", stride, 1)
    dilations = _pair("dilation", dilation, 1)
    count = group_count(groups)
    return Options(pair, _padding(padding, kernel, pair, dilations), dilations, count, padding_mode, activation)


_SEQUENCE, _VALUE = object(), object()  # mark what stands before them


@functools.lru_cache(1024, typed=True)
def _cached_options(kernel: tuple[int, int], groups: int, padding_mode: str, activation: str, *flat: Any) -> Options:
    """`flat` has stride, padding and dilation, value by value: the cache tells a float or a bool from the int that it equals
    among its arguments, but not within a tuple.
    """
    values: list[Any] = []
    start = 0
    for end, mark in enumerate(flat):
        if mark is _SEQUENCE or mark is _VALUE:
            values.append(flat[start:end] if mark is _SEQUENCE else flat[start])
            start = end + 1
    stride, padding, dilation = values
    return options(kernel, stride, padding, dilation, groups, padding_mode, activation)


def cached_options(
    kernel: tuple[int, int], stride: Ints, padding: Padding, dilation: Ints, groups: int, padding_mode: str, activation: str
) -> Options:
    """Return or raise what `options` does, in a microsecond where it is called again."""
    try:
        flat: list[Any] = []
        for value in (stride, padding, dilation):
            if isinstance(value, (tuple, list)):
                flat += value
                flat.append(_SEQUENCE)
            else:
                flat.append(value)
                flat.append(_VALUE)
        return _cached_options(kernel, groups, padding_mode, activation, *flat)
    except TypeError:  # perhaps because of what cannot be hashed
        try:
            return options(kernel, stride, padding, dilation, groups, padding_mode, activation)
        except (TypeError, ValueError) as error:
            raise error from None


def check_choices(algorithm: str, workspace_limit: int) -> int:
    """Check that a name and a number of bytes are what they should be; return the number as an int."""
    if not isinstance(algorithm, str):
        raise TypeError(f"algorithm: got {describe(algorithm)}, expected a string")
    limit = workspace_limit if isinstance(workspace_limit, int) else integer(workspace_limit)
    if limit is None:
        raise TypeError(f"workspace_limit: got {describe(workspace_limit)}, expected a number of bytes")
    if not 0 <= limit < 2**63:
        raise ValueError(
            f"workspace_limit: got {describe(workspace_limit)}, expected a number of bytes of at least 0, in 64 bits"
        )
    return limit


def _padding(
    padding: Padding, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> tuple[int, int, int, int]:
    if isinstance(padding, str):
        if padding == "valid":
            return 0, 0, 0, 0
        if padding != "same":
            raise ValueError(
                f"padding: got {describe(padding)}, expected 'same', 'valid', an int, a pair or (top, bottom, left, right)"
            )
        if stride != (1, 1):
            raise ValueError(
                f"padding: got 'same' with stride {stride}, expected stride 1: the result has the size of x only then"
            )
        height, width = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
        return height // 2, height - height // 2, width // 2, width - width // 2
    if isinstance(padding, Sequence) and len(padding) == 4:
        top, bottom, left, right = integers("padding", padding, 0)
        return top, bottom, left, right
    height, width = _pair("padding", padding, 0)
    return height, height, width, width


def _pair(name: str, value: Padding, at_least: int) -> tuple[int, int]:
    """(height, width)"""
    values = integers(name, value if isinstance(value, Sequence) and not isinstance(value, str) else (value,), at_least)
    if len(values) not in (1, 2):
        more = ", or (top, bottom, left, right)" if name == "padding" else ""
        raise ValueError(f"{name}: got {describe(value)}, expected an int or a pair{more}")
    return values[0], values[-1]


def integers(name: str, values: Sequence[Any], at_least: int) -> tuple[int, ...]:
    result = []
    for value in values:
        number = integer(value)
        if number is None:
            raise TypeError(f"{name}: got {describe(value)}, expected integers")
        _check_range(name, number, at_least)
        result.append(number)
    return tuple(result)


def group_count(groups: Any) -> int:
    number = integer(groups)
    if number is None:
        raise TypeError(f"groups: got {describe(groups)}, expected an int")
    _check_range("groups", number, 1)
    return number


def _check_range(name: str, value: int, at_least: int) -> None:
    if value < at_least:
        raise ValueError(f"{name}: got {describe(value)}, expected at least {at_least}")
    if value > 2**31 - 1:
        raise ValueError(f"{name}: got {describe(value)}, expected at most 2147483647")


def integer(value: Any) -> Any:
    """Return an integer of any class, numpy's too, as an int; None for a bool, a tensor and what is none."""
    if type(value) is int or isinstance(value, torch.SymInt):
        return value
    if isinstance(value, (bool, Tensor)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def listed(names: Sequence[str | None]) -> str:
    return ", ".join("None" if name is None else f"'{name}'" for name in names)


# ---- shapes ------------------------------------------------------------------------------------------------------------------


def kernel_size(weight: Sequence[int]) -> tuple[int, int]:
    """(height, width) of filters of this shape."""
    if len(weight) != 4:
        raise ValueError(f"weight: got shape {tuple(weight)}, expected (out_channels, in_channels / groups, height, width)")
    return weight[2], weight[3]


def check_groups(x: Sequence[int], weight: Sequence[int], groups: int, axes: str) -> None:
    """Refuse channels that groups do not divide, and filters that do not fit them. `axes` names those of a filter."""
    channels, filters = x[1], weight[0]
    if channels < 1:
        raise ValueError(f"x: got shape {tuple(x)}, expected at least one channel")
    if channels % groups:
        raise ValueError(f"groups: got {groups} for x of shape {tuple(x)}, expected a divisor of its {channels} channels")
    if filters % groups:
        raise ValueError(
            f"groups: got {groups} for weight of shape {tuple(weight)}, expected a divisor of its {filters} filters"
        )
    if weight[1] != channels // groups or min(weight[2:]) < 1:
        raise ValueError(
            f"weight: got shape {tuple(weight)}, expected (out_channels, {channels // groups}, {axes}), the "
            f"{channels} channels of x over {groups} groups, and a filter of at least one tap"
        )


def check_padding(axis: str, size: int, before: int, after: int, mode: str) -> None:
    """Refuse padding that an axis of this size is too short for."""
    limit = {"reflect": size - 1, "circular": size, "replicate": 2**31 - 1 if size > 0 else 0}.get(mode)
    if limit is not None and max(before, after) > limit:
        raise ValueError(
            f"padding: got {before} and {after} for an x of {axis} {size}, expected at most {limit} with padding_mode '{mode}'"
        )


def windows(x: Sequence[int], axis: str, padded: int, taps: int, step: int, dilation: int, verb: str = "is") -> int:
    """Count the windows of taps of an axis that is so long with padding; ValueError if there is none."""
    span = dilation * (taps - 1) + 1
    if padded < span:
        raise ValueError(
            f"x: got shape {tuple(x)}, whose {axis} with padding {verb} {padded}, expected at least {span}, which {taps} taps "
            f"{dilation} apart span: the result would be empty"
        )
    return (padded - span) // step + 1


def out_shape(x: Sequence[int], weight: Sequence[int], o: Options) -> tuple[int, int, int, int]:
    """(batch, out_channels, height, width) of the result for x and weight of these shapes; ValueError where they do not fit."""
    kernel = kernel_size(weight)
    check_groups(x, weight, o.groups, "height, width")
    sizes = []
    for axis, size, taps, step, dilation, before, after in zip(
        ("height", "width"), x[2:], kernel, o.stride, o.dilation, o.padding[::2], o.padding[1::2], strict=True
    ):
        check_padding(axis, size, before, after, o.padding_mode)
        sizes.append(windows(x, axis, size + before + after, taps, step, dilation))
    return x[0], weight[0], sizes[0], sizes[1]


class Kind(NamedTuple):
    """A tensor without its memory. `offset` is how far its first element lies behind a 16-byte boundary, in bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def on_meta(self) -> Tensor:
        """A tensor of this kind that has no memory."""
        flat = torch.empty(0, dtype=self.dtype, device="meta")
        return flat.as_strided(self.shape, self.strides, self.offset // self.dtype.itemsize)


def kind_of(tensor: Tensor) -> Kind:
    # A meta tensor's storage counts as one that begins on such a boundary.
    at = int(tensor.storage_offset()) * tensor.element_size() if tensor.is_meta else tensor.data_ptr()
    return Kind(tensor.dtype, tensor.shape, tensor.stride(), at % 16)


Described = Tensor | Kind


def check_dtypes(x: Described, weight: Described, **others: Described | None) -> None:
    for name, tensor in {"x": x, "weight": weight, **others}.items():
        if tensor is not None and (wrong := wrong_dtype(name, tensor.dtype)):
            raise wrong
    if weight.dtype != x.dtype:
        raise TypeError(f"weight: got dtype {weight.dtype}, expected that of x, {x.dtype}")


def check(
    x: Described,
    weight: Described,
    bias: Described | None,
    residual: Described | None,
    out: Described | None,
    out_dtype: torch.dtype | None,
    o: Options,
) -> tuple[int, int, int, int]:
    """The shape of the result, after all dtypes and shapes have been found to fit."""
    check_dtypes(x, weight, bias=bias, residual=residual, out=out)
    if len(x.shape) != 4:
        raise ValueError(
            f"x: got shape {tuple(x.shape)}, expected (batch, channels, height, width), or (channels, height, width)"
        )
    shape = out_shape(x.shape, weight.shape, o)
    if bias is not None and tuple(bias.shape) != shape[1:2]:
        raise ValueError(f"bias: got shape {tuple(bias.shape)}, expected (out_channels,) = ({shape[1]},)")
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected that of the result, {shape}")
    check_out_dtype(out_dtype)
    if out is not None and out_dtype is not None and out.dtype != out_dtype:
        raise TypeError(f"out: got dtype {out.dtype}, expected out_dtype, {out_dtype}")
    return shape


def check_out_dtype(out_dtype: object) -> None:
    if out_dtype is not None and not (isinstance(out_dtype, torch.dtype) and out_dtype in DTYPES):
        raise TypeError(f"out_dtype: got {describe(out_dtype)}, expected None, torch.float32, torch.float16 or torch.bfloat16")


def check_places(x: Tensor, **others: Tensor | None) -> None:
    """That all tensors are dense and on the device of x, which is one that is served."""
    require_dense(x=x, **others)
    for name, tensor in others.items():
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name}: got a tensor on {tensor.device}, expected it on {x.device}, where x is")
    if x.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(
            f"x: got a tensor on {x.device}, expected one on the CPU or on a GPU that this torch calls 'cuda' (CUDA and ROCm)"
        )


# ---- layouts -----------------------------------------------------------------------------------------------------------------


def is_channels_last(x: Tensor, weight: Tensor) -> bool:
    """Tell whether channels are the denser axis of x: of weight where x has one channel or pixel,
    and not if that leaves it open too.
    """
    for tensor in (x, weight):
        _, channels, height, width = tensor.shape
        if channels != 1 and (height != 1 or width != 1):
            return tensor.stride(1) < tensor.stride(3 if width != 1 else 2)
    return False


def new_result(x: Tensor, weight: Tensor, shape: tuple[int, int, int, int], dtype: torch.dtype | None) -> Tensor:
    """An uninitialised result for these inputs: dense, in the layout of x."""
    layout = torch.channels_last if is_channels_last(x, weight) else torch.contiguous_format
    return torch.empty(shape, dtype=dtype or x.dtype, device=x.device, memory_format=layout)
