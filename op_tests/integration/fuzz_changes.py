"""The changes that the fuzzer makes to a good argument: its values in other memory, nearly good ones, and what it cannot be."""

from __future__ import annotations

from collections.abc import Callable
import enum
import math
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from integration.forms import Arguments

Change = Callable[[random.Random, Arguments, Any], Any]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DTYPES = (
    *FLOATS,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint32,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
)
POISON = {torch.bool: True, torch.int32: 0x5A5A5A5A, torch.int64: 0x5A5A5A5A5A5A5A5A}


# ---- tensors that mean the same ----------------------------------------------------------------------------------------------


def other_memory(rng: random.Random, tensor: Tensor) -> Tensor:
    """The values in other strides, at another offset, among poison."""
    axes = rng.sample(range(tensor.dim()), tensor.dim())
    strides, covered = [0] * tensor.dim(), rng.choice((1, 1, 1, 2, 3))
    for axis in axes:
        strides[axis] = covered
        covered = covered * max(tensor.shape[axis], 1) + rng.choice((0, 0, 0, 1, 8))
    offset = rng.choice((0, 0, 1, 3, 8))
    memory = torch.full(
        (offset + covered + 3,),
        POISON.get(tensor.dtype, 90 if not tensor.is_floating_point() else math.nan),
        dtype=tensor.dtype,
    )
    view = memory.as_strided(tensor.shape, strides, offset)
    return view.copy_(tensor.detach()).requires_grad_(tensor.requires_grad)


class Subclass(Tensor):
    """One that changes nothing."""


class Wrapped(Tensor):
    """One that looks on, as tensors of other libraries do."""

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})


def inference(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.detach().clone()


SAME: dict[str, Callable[[random.Random, Tensor], Tensor]] = {
    "other memory": other_memory,
    "a subclass": lambda rng, tensor: tensor.detach().as_subclass(Subclass),
    "a subclass that looks on": lambda rng, tensor: tensor.detach().as_subclass(Wrapped),
    "a parameter": lambda rng, tensor: torch.nn.Parameter(tensor.detach(), requires_grad=False),
    "an inference tensor": lambda rng, tensor: inference(tensor),
    "negated lazily": lambda rng, tensor: torch._neg_view(-tensor.detach()) if tensor.dtype.is_floating_point else tensor,
    "a graph's": lambda rng, tensor: tensor.detach().requires_grad_() * 1 if tensor.dtype.is_floating_point else tensor,
    "other integers": lambda rng, tensor: (
        tensor
        if tensor.dtype not in (torch.int32, torch.int64)
        else tensor.to(rng.choice((torch.int64, torch.int16, torch.int8)))
    ),
}


# ---- nearly good tensors -----------------------------------------------------------------------------------------------------


def other_size(rng: random.Random, tensor: Tensor) -> Tensor:
    shape = list(tensor.shape)
    if shape:
        axis = rng.randrange(len(shape))
        shape[axis] = rng.choice((0, 1, max(0, shape[axis] - 1), shape[axis] + 1, 2 * shape[axis], 67))
    return torch.zeros(shape, dtype=tensor.dtype)


def huge(rng: random.Random, tensor: Tensor) -> Tensor:
    """Return one element, expanded to sizes that no memory has."""
    shape = list(tensor.shape)
    if shape:
        shape[rng.randrange(len(shape))] = rng.choice((2**31 - 1, 2**31, 2**40))
    return torch.zeros((), dtype=tensor.dtype).expand(shape)


def other_rank(rng: random.Random, tensor: Tensor) -> Tensor:
    axis = rng.randrange(tensor.dim() + 1)
    if tensor.dim() and rng.random() < 0.5:
        return tensor.select(axis - 1, 0) if tensor.shape[axis - 1] else tensor.sum(axis - 1)
    return tensor.unsqueeze(axis)


def overlapping(rng: random.Random, tensor: Tensor) -> Tensor:
    """Whose elements share memory with each other."""
    memory = torch.ones(sum(tensor.shape) + 8, dtype=tensor.dtype)
    return memory.as_strided(tensor.shape, [rng.choice((0, 1, 1)) for _ in tensor.shape], 1)


def alias(rng: random.Random, arguments: Arguments, tensor: Tensor) -> Tensor:
    """In the memory of another argument, as far as it suffices."""
    others = [
        other for other in arguments.values() if type(other) is Tensor and other.layout is torch.strided and not other.is_meta
    ]
    others = [
        other for other in others if other.dtype == tensor.dtype and other.numel() > 0 and other.untyped_storage().nbytes()
    ]
    if not others or not tensor.dim():
        return tensor
    other = rng.choice(others).detach()
    if rng.random() < 0.4:
        return other
    available = int(other.untyped_storage().nbytes() // other.element_size() - other.storage_offset())
    strides, last = list(tensor.contiguous().stride()), 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True) if size)
    if last >= available:
        strides, last = [0] * tensor.dim(), 0
    return other.as_strided(tensor.shape, strides, int(other.storage_offset()) + rng.randint(0, int(available - last - 1)))


def other_values(rng: random.Random, tensor: Tensor) -> Tensor:
    """Return other values: floats may be anything, and ids lead nowhere."""
    found = tensor.detach().clone()
    flat = found.reshape(-1)
    floats = (math.nan, math.inf, -math.inf, 3e38, 1e-45, 0.0)
    limits = (-1, -2, 0, 1, 2, 3, 5, 17, 10**6, 2**31 - 1, -(2**31), 2**40, -(2**62), 2**63 - 1)
    limit = 2**63 if tensor.dtype in (torch.int64,) else 2**31
    for _ in range(rng.choice((1, 1, 3, 30))):
        if flat.numel():
            at = rng.randrange(flat.numel())
            if tensor.is_floating_point():
                flat[at] = rng.choice(floats)
            elif tensor.dtype in (torch.int32, torch.int64):
                flat[at] = rng.choice([value for value in limits if -limit <= value < limit])
    return found.as_subclass(Tensor)


NEARLY: dict[str, Change] = {
    "another size": lambda rng, arguments, tensor: other_size(rng, tensor),
    "another rank": lambda rng, arguments, tensor: other_rank(rng, tensor),
    "transposed": lambda rng, arguments, tensor: tensor.movedim(-1, 0) if tensor.dim() > 1 else tensor,
    "another dtype": lambda rng, arguments, tensor: tensor.detach().to(rng.choice(DTYPES)),
    "another float": lambda rng, arguments, tensor: tensor.detach().to(rng.choice(FLOATS)),
    "elsewhere": lambda rng, arguments, tensor: tensor.detach().to("meta"),
    "expanded": lambda rng, arguments, tensor: (
        (tensor[:1] if len(tensor) else tensor).expand(tensor.shape) if tensor.dim() else tensor
    ),
    "overlapping": lambda rng, arguments, tensor: overlapping(rng, tensor),
    "an alias": alias,
    "other values": lambda rng, arguments, tensor: other_values(rng, tensor),
    "huge": lambda rng, arguments, tensor: huge(rng, tensor),
    "requiring grad": lambda rng, arguments, tensor: (
        tensor.detach().requires_grad_() if tensor.is_floating_point() or tensor.is_complex() else tensor
    ),
    "empty": lambda rng, arguments, tensor: torch.empty(0, dtype=tensor.dtype),
    "without axes": lambda rng, arguments, tensor: torch.zeros((), dtype=tensor.dtype),
    "eight axes": lambda rng, arguments, tensor: tensor.reshape(*tensor.shape, *[1] * (8 - tensor.dim())),
    "of many axes": lambda rng, arguments, tensor: torch.ones([2] * 12, dtype=tensor.dtype),
    "sparse": lambda rng, arguments, tensor: tensor.detach().to_sparse(),
    "conjugated": lambda rng, arguments, tensor: tensor.detach().to(torch.complex64).conj(),
    "zero without memory": lambda rng, arguments, tensor: torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype),
    "freed": lambda rng, arguments, tensor: freed(tensor),
    "an array": lambda rng, arguments, tensor: np.zeros(tuple(tensor.shape), np.float32),
    "lists": lambda rng, arguments, tensor: tensor.detach().float().tolist() if tensor.numel() < 64 else [[0.0]],
}


def freed(tensor: Tensor) -> Tensor:
    """Whose memory was given back, as FSDP does with parameters."""
    found = tensor.detach().clone().as_subclass(Tensor)
    found.untyped_storage().resize_(0)
    return found


# ---- anything ----------------------------------------------------------------------------------------------------------------


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("has no repr")

    def __bool__(self) -> bool:
        raise RuntimeError("is neither true nor false")


class Number(enum.IntEnum):
    TWO = 2


class Text(str):
    """A string of another type."""


ANYTHING: dict[str, Callable[[], Any]] = {
    "None": lambda: None, "-1": lambda: -1, "0": lambda: 0, "1": lambda: 1, "2": lambda: 2, "3": lambda: 3,
    "2**31 - 1": lambda: 2**31 - 1, "2**31": lambda: 2**31, "2**62": lambda: 2**62, "2**63": lambda: 2**63,
    "-2**63": lambda: -(2**63), "10**5000": lambda: 10**5000, "1.0": lambda: 1.0, "1.5": lambda: 1.5, "nan": lambda: math.nan,
    "True": lambda: True, "False": lambda: False, "numpy's 2": lambda: np.int64(2), "numpy's True": lambda: np.bool_(True),
    "numpy's 1.0": lambda: np.float32(1), "an enum": lambda: Number.TWO, "''": str, "'x'": lambda: "x",
    "'silu'": lambda: "silu", "'SiLU'": lambda: "SiLU", "'same'": lambda: "same", "'cpu'": lambda: "cpu",
    "'naive'": lambda: "naive", "another string": lambda: Text("silu"), "a NUL": lambda: "si\0lu",
    "a surrogate": lambda: "\udc80", "a long string": lambda: "x" * 10**5, "bytes": lambda: b"silu", "()": tuple,
    "(1,)": lambda: (1,), "(1, 1)": lambda: (1, 1), "[1, 2, 0, 1]": lambda: [1, 2, 0, 1], "(1, -1)": lambda: (1, -1),
    "(True, 1)": lambda: (True, 1), "(2**40, 1)": lambda: (2**40, 1), "[[1]]": lambda: [[1]], "a range": lambda: range(2),
    "many": lambda: [1] * 10**4, "a dict": lambda: {"a": 1}, "a set": lambda: {1}, "a type": lambda: int,
    "a function": lambda: len, "an object": object, "an unprintable object": Unprintable, "a dtype": lambda: torch.int8,
    "float16": lambda: torch.float16, "a device": lambda: torch.device("cpu"), "a tensor": lambda: torch.randn(2, 3),
    "a number in a tensor": lambda: torch.tensor(1), "tensors": lambda: [torch.randn(2, 3)] * 3,
    "a storage": lambda: torch.zeros(3).untyped_storage(), "an iterator": lambda: iter([1, 2]), "complex": lambda: 1j,
    "Ellipsis": lambda: ...,
}  # fmt: skip
