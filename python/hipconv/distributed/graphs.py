"""Where torch.compile stops: these calls talk to other processes, and look at what is no tensor."""

from __future__ import annotations

from collections.abc import Callable
import functools
import sys
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])
_disabled: dict[Callable[..., Any], Callable[..., Any]] = {}


def outside_of_graphs(function: F) -> F:
    """`torch.compiler.disable(function)`: a graph ends before the call, and another begins behind it. That decorator would
    import all of dynamo, which takes a second, where nobody may compile anything.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*arguments, **options)
        if function not in _disabled:
            _disabled[function] = torch.compiler.disable(function)
        return _disabled[function](*arguments, **options)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]
