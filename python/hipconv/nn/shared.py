"""The layers of causal convolutions share this: a process group, and the limits of their parameters."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch

from ..arguments import describe

LARGEST = 2**31 - 1  # sizes in 32 bits are what kernels take
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class OverAGroup(torch.nn.Module):
    """A layer that may have a process group, which can neither be copied nor pickled."""

    group: object
    options: dict[str, Any]  # of the call over the group

    def _set_group(self, group: object, layout: str, reduce_gradients: bool, validate: bool) -> None:
        if group is not None:
            from ..distributed.halo import check_name
            from ..distributed.routes import LAYOUTS

            check_name("layout", layout, LAYOUTS)
        self.group = group
        self.options = {"layout": layout, "reduce_gradients": reduce_gradients, "validate": validate}

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """With the same group."""
        if self.group is not None:
            memo[id(self.group)] = self.group
        new = memo[id(self)] = type(self).__new__(type(self))
        new.__setstate__(copy.deepcopy(self.__dict__, memo))
        return new

    def __getstate__(self) -> dict[str, Any]:
        if self.group is not None:
            raise TypeError(
                f"group: got {describe(self.group)}, expected None where a layer is pickled, as torch.save does too: other "
                f"processes "
                "cannot have this group. Save its state_dict(), or set `layer.group = None` before, and the group where it is "
                "loaded"
            )
        return self.__dict__.copy()


def check_parameters(device: torch.device | str | int | None, dtype: torch.dtype | None, **sizes: int) -> None:
    """Raise what a layer's parameters cannot be, before they take memory."""
    for name, size in sizes.items():
        if not 1 <= size <= LARGEST:
            raise ValueError(f"{name}: got {size}, expected 1 to {LARGEST}")
    if math.prod(sizes.values()) > LARGEST:
        got = " and ".join(map(str, sizes.values()))
        raise ValueError(f"{', '.join(sizes)}: got {got}, expected a product, the elements of weight, of at most {LARGEST}")
    if dtype not in (None, *DTYPES):
        raise TypeError(f"dtype: got {dtype}, expected None, {', '.join(map(str, DTYPES))}")
    try:
        torch.device("cpu" if device is None else device)
    except RuntimeError:
        raise ValueError(f"device: got {describe(device)}, expected a device that torch knows, such as 'cuda'") from None
