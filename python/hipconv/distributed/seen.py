"""Checks and plans of calls that are alike are made once: they take the host longer than all the rest of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from ..arguments import require_dense
from ..jit import targets
from ..ops.transforms import autocast_dtype

T = TypeVar("T")
MOST = 4096  # results, then all are dropped
_seen: dict[Any, Any] = {}


def once(key: Any, find: Callable[[], T]) -> T:
    """The result of `find`, which depends on `key` alone, or that of an earlier call. Errors are not kept, and nothing is where
    `key` is None or cannot be hashed.
    """
    try:
        found = None if key is None else _seen.get(key)
    except TypeError:
        return find()
    if found is None:
        found = find()
        if key is not None:
            if len(_seen) >= MOST:
                _seen.clear()
            _seen[key] = found
    return found


def signature(tensors: dict[str, Any], *settings: Any) -> Any:
    """A key of what checks look at, of tensors, or None, and settings; None where one of the former is something else.

    A bool or a float is not the int that it equals. The memory of the tensors is looked at here, as it may be given back from
    one call to the next.
    """
    kinds: list[Any] = []
    for tensor in tensors.values():
        if tensor is None:
            kinds.append(None)
            continue
        if not isinstance(tensor, Tensor) or tensor.device.type not in ("cpu", "cuda"):
            return None
        kinds.append((type(tensor), tensor.dtype, autocast_dtype(tensor), tensor.shape, tensor.device, tensor.layout))
        kinds.append(tensor.requires_grad)
    if tensors["x"] is None:
        return None
    require_dense(**tensors)
    plain = [tuple(value) if type(value) is list else value for value in settings]
    return *kinds, targets.of(tensors["x"].device), *plain, *map(type, plain)
