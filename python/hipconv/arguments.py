"""Checks of arguments that the public functions share. Each error names the argument, what it was and what was expected.

Where a call may be a few microseconds in all, they come when it has failed: ``raise wrong_kind(function, locals()) or error``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from numbers import Integral, Number
import reprlib
from typing import Any

import torch
from torch import Tensor


class _Brief(reprlib.Repr):
    """`repr`, but short: of tensors only the dtype and shape,
    and of objects that are not Python's own or torch's only the type.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = self.maxdict = 2
        self.maxlist = self.maxtuple = 4
        self.maxstring = self.maxother = 50

    def repr(self, x: Any) -> str:
        text = super().repr(x)
        return text if len(text) <= 150 else f"{text[:150]}..."

    def repr1(self, x: Any, level: int) -> str:
        if isinstance(x, Tensor):
            return f"a {x.dtype} tensor of shape {tuple(x.shape)}"
        if isinstance(x, int) and x.bit_length() > 256:  # of which Python may refuse to print all digits
            return f"an int of {x.bit_length()} bits"
        if type(x).__module__ not in ("builtins", "torch") and not isinstance(x, Number):
            return f"an object of type {type(x).__name__}"
        return super().repr1(x, level)


describe = _Brief().repr  # what an object is, for a message


# ---- kinds -------------------------------------------------------------------------------------------------------------------


def _is_int(value: object) -> bool:
    """numpy's integers are numbers too."""
    return isinstance(value, (Integral, torch.SymInt)) and not isinstance(value, bool)


def _is_flag(value: object) -> bool:
    """None is no, as 0 is; numpy's bools are meant too."""
    return value is None or type(value).__name__ in ("bool", "bool_") or (isinstance(value, int) and value in (0, 1))


def _is_one_or_more_ints(value: object) -> bool:
    return _is_index(value) or (isinstance(value, Sequence) and not isinstance(value, str) and all(map(_is_index, value)))


def _is_index(value: object) -> bool:
    """Integers of any class; not tensors, which may be on a GPU."""
    return _is_int(value) or (hasattr(type(value), "__index__") and not isinstance(value, (bool, Tensor)))


# The annotation of a public function's parameter promises these, part by part: a test, and the words of an error.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "None": (lambda value: value is None, "None"),
    "Tensor": (lambda value: isinstance(value, Tensor), "a torch.Tensor"),
    "tuple[Tensor, Tensor, Tensor]": (
        lambda value: isinstance(value, (tuple, list)) and len(value) == 3 and all(isinstance(part, Tensor) for part in value),
        "a tuple of three torch.Tensor, for q, k and v",
    ),
    "PackedFilters": (lambda value: type(value).__name__ == "PackedFilters", "what prepack_conv2d made"),
    "bool": (_is_flag, "a bool"),
    "int": (
        lambda value: _is_int(value) and (isinstance(value, torch.SymInt) or -(2**63) <= value < 2**63),
        "an int of 64 bits",
    ),
    "Ints": (_is_one_or_more_ints, "an int or a pair of integers"),
    "Padding": (lambda value: isinstance(value, str) or _is_one_or_more_ints(value), "a string, an int or a tuple of integers"),
    "str": (lambda value: isinstance(value, str), "a string"),
    "Sequence[str]": (
        lambda value: (
            isinstance(value, (Sequence, Set, Mapping))
            and not isinstance(value, str)
            and all(isinstance(v, str) for v in value)
        ),
        "a list of strings",
    ),
    "torch.device": (lambda value: isinstance(value, torch.device), "a torch.device"),
    "torch.dtype": (lambda value: isinstance(value, torch.dtype), "a torch.dtype"),
}


def wrong_kind(function: Callable, arguments: Mapping[str, object]) -> TypeError | ValueError | None:
    """The error that names the first argument of `function` that is not of the annotated kind, if one is; else None.

    Also that a string is no name, which C++ might be unable to print, and that a tensor has no memory any more.
    """
    for name, annotation in function.__annotations__.items():
        kinds = [_KINDS.get(kind) for kind in annotation.split(" | ")]
        if name == "return" or None in kinds:
            continue
        value = arguments[name]
        if not any(kind[0](value) for kind in kinds if kind):
            return TypeError(f"{name}: got {describe(value)}, expected {' or '.join(kind[1] for kind in kinds if kind)}")
        parts = value if isinstance(value, (tuple, list)) else [value]
        if freed := next(filter(None, (wrong_memory(name, part) for part in parts if isinstance(part, Tensor))), None):
            return freed
        if isinstance(value, str) and not (value.isascii() and len(value) <= 50):
            return ValueError(
                f"{name}: got {describe(value)}, expected one of the names that the documentation of {function.__name__} has"
            )
    return None


def require_kinds(function: Callable, arguments: Mapping[str, object]) -> None:
    """Raise what `wrong_kind` finds: before the work, where a call takes long anyway."""
    error = wrong_kind(function, arguments)
    if error:
        raise error


def require_ints(**arguments: object) -> None:
    """Raise TypeError for the first that is no integer: comparisons take bools, numpy's too, and torch takes them for sizes."""
    for name, value in arguments.items():
        if not _is_int(value):
            raise TypeError(f"{name}: got {describe(value)}, expected an int")


def require_int_or_none(**arguments: object) -> None:
    """Raise TypeError for the first that is neither None nor an int: C++ would take a bool for one."""
    for name, value in arguments.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"{name}: got {describe(value)}, expected an int or None")


def require_index(**arguments: object) -> None:
    """Raise TypeError for the first that is no integer of any class: torch's operators take dtypes for integers too."""
    for name, value in arguments.items():
        if type(value) is not int and not hasattr(value, "__index__"):
            raise TypeError(f"{name}: got {describe(value)}, expected an int")


def flag(name: str, value: object) -> bool:
    """An argument that says yes or no."""
    if not _is_flag(value):
        raise TypeError(f"{name}: got {describe(value)}, expected a bool")
    return bool(value)


# ---- activations -------------------------------------------------------------------------------------------------------------

SILU = {None: False, "silu": True, "swish": True}


def parse_activation(
    activation: Any, known: Mapping[Any, Any], bools: bool = False, error: type[ValueError] = ValueError
) -> Any:
    """Return what an `activation` means by the table `known`; with `bools`, as inference servers pass them,
    those mean themselves.
    """
    if bools and (activation is True or activation is False):
        return activation
    try:
        return known[activation]
    except (KeyError, TypeError):  # what cannot be hashed is no key either
        names = [describe(name) for name in known]
        if bools:
            names.insert(1, "a bool")
        listed = f"one of {', '.join(names)}" if len(names) > 4 else f"{', '.join(names[:-1])} or {names[-1]}"
        raise error(f"activation: got {describe(activation)}, expected {listed}") from None


# ---- the peers' errors -------------------------------------------------------------------------------------------------------


class InvalidValue(ValueError, RuntimeError):
    """A wrong shape, stride or device: RuntimeError there, ValueError everywhere else in hipconv."""


class UnknownActivation(ValueError, NotImplementedError):
    """An activation's name that means nothing: NotImplementedError there, ValueError everywhere else in hipconv."""


class InvalidType(TypeError, RuntimeError):
    """A wrong dtype: RuntimeError there, TypeError everywhere else in hipconv."""


def as_the_peers(error: Exception) -> Exception:
    """Make the error of a function that Dao-AILab's package has too: code that catches its errors still does;
    the text is hipconv's own.
    """
    if isinstance(error, TypeError):
        return InvalidType(*error.args)
    return InvalidValue(*error.args) if isinstance(error, ValueError) else error


# ---- shapes ------------------------------------------------------------------------------------------------------------------


def wrong_rows(x: Tensor, weight: Tensor) -> ValueError | None:
    """Why x is not (batch, dim, seqlen), or weight not (dim, width), if so; in the words of C++."""
    if x.dim() != 3:
        return ValueError(f"x: got shape {tuple(x.shape)}, expected 3 dimensions (batch, dim, seqlen)")
    return wrong_weight(x, 1, weight)


def wrong_weight(x: Tensor, channels: int, weight: Tensor) -> ValueError | None:
    """Why weight is not (dim, width), if so, where dim is x.size(channels); in the words of C++."""
    if weight.dim() != 2:
        return ValueError(f"weight: got shape {tuple(weight.shape)}, expected 2 dimensions (dim, width)")
    dim = x.shape[channels]
    if weight.shape[0] != dim or weight.shape[1] < 1:
        return ValueError(
            f"weight: got shape {tuple(weight.shape)}, expected (dim, width) = ({dim}, width >= 1), dim being "
            f"x.size({channels})"
        )
    return None


def wrong_dtype(name: str, dtype: torch.dtype) -> TypeError | None:
    """Why no kernel computes with a dtype, if so; in the words of C++."""
    if dtype in (torch.float32, torch.float16, torch.bfloat16):
        return None
    return TypeError(f"{name}: got dtype {dtype}, expected torch.float32, torch.float16 or torch.bfloat16")


def wrong_parts(x: Tensor, is_shaped: bool, axes: str, k_dim: int, v_dim: int) -> ValueError:
    """Why the channels of x, if it has any, cannot be split into q and k of `k_dim` and v of `v_dim` channels."""
    if not is_shaped:
        return ValueError(f"x: got shape {tuple(x.shape)}, expected {axes}")
    return ValueError(
        f"k_dim, v_dim: got {describe(k_dim)} and {describe(v_dim)}, expected 2 * k_dim + v_dim = dim of x, whose shape is "
        f"{tuple(x.shape)}"
    )


def require_floats(**tensors: Tensor | None) -> None:
    """Raise TypeError for the first that does not hold floating-point numbers, of 16 bits at least:
    torch computes with no others.
    """
    for name, tensor in tensors.items():
        if tensor is not None and not (tensor.is_floating_point() and tensor.element_size() > 1):
            raise TypeError(f"{name}: got dtype {tensor.dtype}, expected a floating-point one, such as torch.float32")


def require_integers(**tensors: Tensor | None) -> None:
    """Raise TypeError for the first that does not hold integers; bools are none."""
    for name, tensor in tensors.items():
        if tensor is not None and (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool):
            raise TypeError(f"{name}: got dtype {tensor.dtype}, expected integers, such as torch.int32")


def wrong_layout(name: str, tensor: Tensor) -> TypeError:
    """The error for a tensor that is not dense."""
    return TypeError(f"{name}: got a tensor of layout {tensor.layout}, expected a dense one (torch.strided)")


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """A tensor's storage; None for one that has none of its own, as wrappers of tensors have, or in a graph."""
    if torch.compiler.is_compiling():
        return None
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def storage_of(tensor: Tensor) -> int | None:
    """Which storage a tensor is in, or None."""
    storage = _storage(tensor)
    return None if storage is None else storage._cdata


def wrong_memory(name: str, tensor: Tensor) -> ValueError | None:
    """Why nothing can be read where a tensor lies, if so: its storage was emptied, as FSDP does,
    and torch would read all the same.
    """
    if torch.compiler.is_compiling() or tensor.is_meta or tensor.layout is not torch.strided or tensor._is_zerotensor():
        return None
    storage = _storage(tensor)
    if storage is None or storage.nbytes() or tensor.numel() == 0:
        return None
    return ValueError(
        f"{name}: got a tensor of shape {tuple(tensor.shape)} whose memory was given back, expected one that has it"
    )


def not_dense(**tensors: Tensor | None) -> TypeError | ValueError | None:
    """The error for the first that is not dense, or has no memory, if one is so."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.layout is not torch.strided:
            return wrong_layout(name, tensor)
        if tensor is not None and (wrong := wrong_memory(name, tensor)):
            return wrong
    return None


def require_dense(**tensors: Tensor | None) -> None:
    """Raise TypeError for the first that is not, ValueError for the first without memory."""
    if wrong := not_dense(**tensors):
        raise wrong


def require_shape(name: str, tensor: Tensor, shape: tuple[int, ...], axes: str, like: Tensor) -> None:
    """Raise ValueError or TypeError for a tensor that is not dense, of this shape and on the device of `like`."""
    require_dense(**{name: tensor})
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected {axes} = {shape}")
    if tensor.device != like.device:
        raise ValueError(f"{name}: got a tensor on {tensor.device}, expected it on {like.device}")


def _overlaps_itself(tensor: Tensor) -> bool:
    """Tell whether two elements share memory; of tensors as small as states, whose axes do not nest,
    it looks at every element's place.
    """
    axes = sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    covered = 1
    for stride, size in axes:
        if stride < covered:
            break
        covered += (size - 1) * stride
    else:
        return False
    places = torch.zeros((), dtype=torch.int64)
    for stride, size in axes:
        if stride == 0:
            return True
        places = places[..., None] + torch.arange(size) * stride
    return places.unique().numel() < tensor.numel()


def wrong_output(name: str, out: Tensor | None, torch_writes: bool = True) -> TypeError | ValueError | None:
    """Why torch will not write into a tensor, or should not, if so; or, where it was asked to, has not.

    Kernels of ours write what torch does not in one case, an inference tensor: `torch_writes` says that none of them does it.
    """
    if out is None or torch.compiler.is_compiling():
        return None
    if out.layout is not torch.strided:
        return wrong_layout(name, out)
    if wrong := wrong_memory(name, out):
        return wrong
    if out._is_zerotensor():
        return ValueError(f"{name}: got a tensor of zeros that has no memory, expected one to write into")
    if out.numel() and _overlaps_itself(out):
        return ValueError(
            f"{name}: got strides {out.stride()} for shape {tuple(out.shape)}, expected each element to have memory of its "
            f"own (not an expanded tensor)"
        )
    if out.requires_grad and out.is_leaf and torch.is_grad_enabled():
        return ValueError(f"{name}: got a leaf that requires grad, expected a tensor to write into, or torch.no_grad()")
    if torch_writes and out.is_inference() and not torch.is_inference_mode_enabled():
        return ValueError(
            f"{name}: got an inference tensor, expected one made outside of torch.inference_mode(), or to be called inside"
        )
    return None


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors have an element in common, exactly; for a storage's size in time, where their ranges meet."""
    if a.numel() == 0 or b.numel() == 0 or storage_of(a) is None or storage_of(a) != storage_of(b):
        return False
    spans = []
    for tensor in (a, b):
        size = tensor.element_size()
        reach = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
        spans.append((tensor.storage_offset() * size, (tensor.storage_offset() + reach + 1) * size))
    if spans[0][1] <= spans[1][0] or spans[1][1] <= spans[0][0]:
        return False
    if a.element_size() != b.element_size():
        return True  # perhaps: nobody interleaves those
    places = torch.zeros(a.untyped_storage().nbytes() // a.element_size(), dtype=torch.bool)
    places.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(places.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def require_apart(written: Mapping[str, Tensor | None], read: Mapping[str, Tensor | None]) -> None:
    """Raise ValueError for the first written tensor that has an element in common with another one, written or read."""
    done: dict[str, Tensor | None] = dict(read)
    for name, out in written.items():
        for other, tensor in done.items():
            if out is not None and tensor is not None and share_memory(out, tensor):
                raise ValueError(
                    f"{name}: shares memory with {other}, expected memory of its own (interleaved views of one buffer are fine)"
                )
        done[name] = out
