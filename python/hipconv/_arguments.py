"""Checks of arguments that the public functions share. Each error names the argument, what it was and what was expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def require_tensors(**arguments: object) -> None:
    """Raise TypeError for the first that is not a tensor."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{name}: got {type(value).__name__}, expected a torch.Tensor")


def require_optional_tensors(**arguments: object) -> None:
    """Raise TypeError for the first that is neither None nor a tensor."""
    require_tensors(**{name: value for name, value in arguments.items() if value is not None})


def wants_silu(activation: str | bool | None) -> bool:
    """Whether an `activation` argument, as the inference servers pass it, means SiLU."""
    if activation is None or activation is False:
        return False
    if activation is True or activation in ("silu", "swish"):
        return True
    raise ValueError(f"activation: got {activation!r}, expected None, a bool, 'silu' or 'swish'")


def require_int_or_none(**arguments: object) -> None:
    """Raise TypeError for the first that is neither None nor an int."""
    for name, value in arguments.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"{name}: got {value!r}, expected an int or None")


# What the annotation of a public function's parameter promises: a test, and the words of an error.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "Tensor": (lambda value: isinstance(value, Tensor), "a torch.Tensor"),
    "Tensor | None": (lambda value: value is None or isinstance(value, Tensor), "a torch.Tensor or None"),
    "tuple[Tensor, Tensor, Tensor] | None": (
        lambda value: (
            value is None or (isinstance(value, (tuple, list)) and len(value) == 3 and all(isinstance(part, Tensor) for part in value))
        ),
        "a tuple of three torch.Tensor, for q, k and v, or None",
    ),
    "int": (lambda value: _is_int64(value), "an int of 64 bits"),
    "int | None": (lambda value: value is None or _is_int64(value), "an int of 64 bits or None"),
    "str": (lambda value: isinstance(value, str), "a str"),
}


def _is_int64(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def wrong_kind(function: Callable, arguments: Mapping[str, object]) -> TypeError | None:
    """The error that names the first argument of `function` that is not of the annotated kind, if one is; else None.

    For calls that fail anyway: one that succeeds pays nothing to have its arguments checked.
    """
    for name, annotation in function.__annotations__.items():
        if name == "return" or annotation not in _KINDS:
            continue
        value = arguments[name]
        is_right, expected = _KINDS[annotation]
        if not is_right(value):
            got = repr(value) if isinstance(value, (int, float)) else type(value).__name__
            return TypeError(f"{name}: got {got}, expected {expected}")
    return None


def wrong_parts(x: Tensor, is_shaped: bool, axes: str, k_dim: int, v_dim: int) -> ValueError:
    """Why the channels of x, if it has any, cannot be split into q and k of `k_dim` and v of `v_dim` channels."""
    if not is_shaped:
        return ValueError(f"x: got shape {tuple(x.shape)}, expected {axes}")
    return ValueError(f"k_dim, v_dim: got {k_dim} and {v_dim}, expected 2 * k_dim + v_dim = dim of x, whose shape is {tuple(x.shape)}")
