"""Checks of arguments that the public functions share. Each error names the argument, what it was and what was expected."""

from __future__ import annotations

import torch
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


# ---- values, read back from the device: for validate_data=True -------------------------------------------------------------------


def check_starts(query_start_loc: Tensor, tokens: int) -> None:
    """Raise ValueError unless the starts do not decrease and lie within the tokens."""
    starts = query_start_loc.tolist()
    for i, start in enumerate(starts):
        before = starts[i - 1] if i else 0
        if start < before:
            raise ValueError(f"query_start_loc[{i}]: got {start}, expected at least {before}: starts do not decrease")
        if start > tokens:
            raise ValueError(f"query_start_loc[{i}]: got {start}, expected at most {tokens}, the tokens of x")


def check_between(name: str, values: Tensor, low: int, high: int, meaning: str, *, allowed: tuple[int | None, ...] = ()) -> None:
    """Raise ValueError for the first value that is not in [low, high) nor among the allowed."""
    wrong = (values < low) | (values >= high)
    for value in allowed:
        if value is not None:
            wrong &= values != value
    offenders = torch.nonzero(wrong)
    if len(offenders):
        index = tuple(offenders[0].tolist())
        place = ", ".join(str(i) for i in index)
        raise ValueError(f"{name}[{place}]: got {int(values[index])}, expected {low} to {high - 1}, {meaning}")
