"""The second stream of a call, on tensors of the CPU: a stand-in by which what it does is over before the large kernel is.

A result of a launch that came before the second stream's work is hidden until that is over. So a call has the bits of one
device only if neither stream needs, or writes, what the other one writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from typing import Any
from unittest import mock

import torch
from torch import Tensor
import torch.distributed as dist

from hipconv.distributed import beside, overlapped, rows


@contextlib.contextmanager
def two_streams(stand_in: bool = True) -> Iterator[list[str]]:
    """The list has "kernel", "exchange" and "joined" in the order in which the host came to them. On a GPU, which has two
    streams, no `stand_in` is needed.
    """
    order: list[str] = []
    hidden: list[Tensor] = []
    running = [False]

    class Late(beside.Beside):
        def __init__(self, like: Tensor) -> None:
            self.hides = True
            hidden.clear()

        @contextlib.contextmanager
        def running(self) -> Iterator[None]:
            found = [tensor.clone() for tensor in hidden]
            for tensor in hidden:
                tensor.fill_(torch.nan)
            running[0] = True
            yield
            running[0] = False
            for tensor, values in zip(hidden, found, strict=True):
                tensor.copy_(values)
            order.append("joined")

        def keep(self, *tensors: Tensor | None) -> None:
            pass

    def launched(of: Any, result: Any) -> Any:
        def launch(*arguments: Any) -> Any:
            order.append("kernel")
            found = of(*arguments)
            if not running[0]:
                hidden.extend(
                    tensor for tensor in result(found, arguments) if tensor is not None and tensor.is_floating_point()
                )
            return found

        return launch

    def exchanged(*arguments: Any, of: Any = dist.all_to_all_single, **options: Any) -> Any:
        order.append("exchange")
        return of(*arguments, **options)

    launches: Any = {
        (rows, "_convolve"): lambda _, arguments: [arguments[3]],
        (rows, "_differentiate"): lambda found, _: found,
        (overlapped.Part, "run"): lambda _, arguments: [arguments[5]],
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(dist, "all_to_all_single", exchanged))
        for (where, name), result in launches.items():
            stack.enter_context(mock.patch.object(where, name, launched(getattr(where, name), result)))
        for module in (rows, overlapped) if stand_in else ():
            stack.enter_context(mock.patch.object(module, "Beside", Late))
        yield order


def order_on_two_streams(run: Callable[[Any, None], object], case: Any) -> list[str]:
    """Run a case where the exchange is beside the large kernel, and over before it. Returns what the host did in turn."""
    with two_streams() as order:
        run(case, None)
    return order
