"""The rules of our operators for torch's transforms: derivatives in both directions and of any order, vmap, autocast.

Kernels of our own stand on the dispatch keys, because `torch.library.register_autograd` knows neither forward mode nor
torch.func, and `register_autocast` came after torch 2.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

SingleLevelFunction = _SingleLevelFunction
"""A `torch.autograd.Function` for a kernel of the Autograd key: torch.func calls those once for each of its levels."""

# ---- derivatives -------------------------------------------------------------------------------------------------------------


def _forward_mode_is_under_way() -> bool:
    """Tell whether tensors may carry tangents of the innermost level. Where it is torch.func's, a compiled graph opens it
    without Python's knowledge.
    """
    if in_torch_func():
        innermost = torch._C._functorch.peek_interpreter_stack()
        return innermost is not None and innermost.key() == torch._C._functorch.TransformType.Jvp
    return forward_ad._current_level >= 0


def tangent_of(tensor: Tensor) -> Tensor | None:
    """The forward-mode derivative that the tensor carries at the innermost level, if any."""
    return torch._VF._unpack_dual(tensor, level=0)[1] if _forward_mode_is_under_way() else None


def wants_derivative(*tensors: Tensor | None) -> bool:
    """Tell whether a derivative with respect to one of these is to be recorded, in either direction."""
    given = [tensor for tensor in tensors if tensor is not None]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        return True
    if not _forward_mode_is_under_way() or not torch._C._is_fwd_grad_enabled():
        return False
    return any(tangent_of(tensor) is not None for tensor in given)


def in_torch_func() -> bool:
    """Tell whether a transform of torch.func is under way, which dynamo does not show."""
    return not torch.compiler.is_dynamo_compiling() and torch._C._are_functorch_transforms_active()


def on_autograd_key(library: torch.library.Library, name: str, kernel: Callable[..., Any]) -> None:
    """Make ``kernel(below, ...)`` the operator's kernel for derivatives. `below(...)` calls the operator without it, from
    within the `forward` of a function too.
    """
    operator = getattr(torch.ops.hipconv, name).default

    def on_key(keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        def below(*args: Any, **kwargs: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return operator.redispatch(keyset & torch._C._after_autograd_keyset, *args, **kwargs)

        def below_for_outer_levels(*args: Any, **kwargs: Any) -> Any:
            with (
                torch.set_grad_enabled(grad_mode),
                forward_ad._set_fwd_grad_enabled(forward_mode),
            ):  # the forward of a function clears both
                return below(*args, **kwargs)

        if not torch._C._are_functorch_transforms_active():
            return kernel(below, *args, **kwargs)
        grad_mode, forward_mode = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
        return kernel(below_for_outer_levels, *args, **kwargs)

    library.impl(name, on_key, "Autograd", with_keyset=True)


def apply(function: type[_SingleLevelFunction], *arguments: Any) -> Any:
    """`function.apply`, from a kernel of the Autograd key."""
    with enable_single_level_autograd_function():
        return function.apply(*arguments)  # type: ignore[attr-defined]


@contextlib.contextmanager
def primals(*tensors: Tensor | None) -> Iterator[list[Any]]:
    """Return what a `jvp` saved, without the tangents of the innermost level, whose derivative it is; outer levels go on."""
    with forward_ad._set_fwd_grad_enabled(True):
        yield [None if tensor is None else torch._VF._unpack_dual(tensor, level=0)[0] for tensor in tensors]


# ---- vmap --------------------------------------------------------------------------------------------------------------------


def on_vmap(library: torch.library.Library, name: str, rule: Callable[..., Any]) -> None:
    """Make ``rule(size, in_dims, ...)`` what `torch.vmap` does with the operator. (torch 2.4 has no rules,
    and calls it one by one.)
    """
    if hasattr(torch.library, "register_vmap"):
        torch.library.register_vmap(
            f"hipconv::{name}",
            lambda info, in_dims, *args, **kwargs: rule(info.batch_size, in_dims, *args, **kwargs),
            lib=library,
        )


def fold(tensor: Tensor | None, dim: int | None, size: int, into: int) -> Tensor | None:
    """`tensor` with the axis `dim` that vmap added (None: it has none, and is repeated) folded into axis `into` of the rest."""
    if tensor is None:
        return None
    moved = (
        tensor.unsqueeze(into).expand(*tensor.shape[:into], size, *tensor.shape[into:])
        if dim is None
        else tensor.movedim(dim, into)
    )
    return moved.flatten(into, into + 1)


def one_by_one(
    call: Callable[..., Sequence[Tensor]], size: int, in_dims: Sequence[int | None], *arguments: Any
) -> tuple[list[Tensor], Any]:
    """Do what vmap means, where no fold serves."""
    each = [
        call(*(a if dim is None else a.select(dim, i) for a, dim in zip(arguments, in_dims, strict=True)))
        for i in range(size)
    ]  # fmt: skip
    return [torch.stack(parts) for parts in zip(*each, strict=True)], [0] * len(each[0])


# ---- autocast ----------------------------------------------------------------------------------------------------------------


def cast_by_autocast(library: torch.library.Library, name: str, names: Sequence[str]) -> None:
    """Under autocast, cast the floating arguments `names` to the dtype in force, as torch does for its own convolutions."""
    operator = getattr(torch.ops.hipconv, name).default
    order = [argument.name for argument in operator._schema.arguments]
    positions = [order.index(name) for name in names]

    def register(device_type: str, key: str) -> None:
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

        def cast(value: Any) -> Any:
            floating = isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64
            return value.to(torch.get_autocast_dtype(device_type)) if floating and value.device.type == device_type else value

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return operator(*(cast(value) if k in positions else value for k, value in enumerate(args)), **kwargs)

        library.impl(name, kernel, key)

    register("cpu", "AutocastCPU")
    register("cuda", "AutocastCUDA")


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of a tensor as an operator that `cast_by_autocast` names it for gets it."""
    device_type = tensor.device.type
    if device_type not in ("cpu", "cuda") or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor.dtype
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else tensor.dtype


def autocast(tensor: Any) -> Any:
    """A tensor as such an operator gets it, or None. Differentiable."""
    if tensor is None or (dtype := autocast_dtype(tensor)) == tensor.dtype:
        return tensor
    return tensor.to(dtype)


def without_autocast() -> Any:
    """A context in which no autocast touches what the operators are given."""
    key = torch._C.DispatchKey
    return torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(key.AutocastCPU) | torch._C.DispatchKeySet(key.AutocastCUDA)
    )


def untouched_by_autocast(library: torch.library.Library, name: str) -> None:
    """Under autocast, leave dtypes alone: 16-bit inputs are summed in float32 anyway, and float32 ones are meant."""
    for key in ("AutocastCPU", "AutocastCUDA"):
        library.impl(name, torch.library.fallthrough_kernel, key)


# ---- lazy negation -----------------------------------------------------------------------------------------------------------


def write_through_negation(library: torch.library.Library, name: str) -> None:
    """Serve tensors that are negated when they are read, in the arguments that an operator writes too, where torch's own way
    fails after the operator has run.
    """
    operator = getattr(torch.ops.hipconv, name).default
    written = {argument.name for argument in operator._schema.arguments if argument.alias_info and argument.alias_info.is_write}
    order = [argument.name for argument in operator._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        put_back: list[tuple[Tensor, Tensor]] = []

        def plain(argument: str, value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_neg():
                return value
            resolved = value.resolve_neg()
            if argument in written:
                put_back.append((value, resolved))
            return resolved

        positional = [plain(argument, value) for argument, value in zip(order, args, strict=False)]
        result = operator(*positional, **{argument: plain(argument, value) for argument, value in kwargs.items()})
        for negated, resolved in put_back:
            negated.copy_(resolved)
        return result

    library.impl(name, kernel, "Negative")
