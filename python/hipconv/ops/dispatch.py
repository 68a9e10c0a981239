"""The operators ``torch.ops.hipconv.*`` share this: the library that they are defined in, and the ways past torch's dispatcher.

Operators are defined through ``torch.library.Library``, whose call costs a fifth of ``torch.library.custom_op``'s, with exact
mutation marks. One implementation per operator serves every device; the module for the tensor's device is found, and if need be
built, at the call.

The public functions go past the operators when nothing would notice (`kernels_for`, `nobody_looks_on`): reaching an operator
costs more than the rest of a call. Whoever does look on finds the operator: torch.compile and export, modes, subclasses,
functorch, tracers, profilers.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import has_torch_function_variadic

from .. import jit
from . import transforms

library = torch.library.Library("hipconv", "DEF")


def fake(operator: str) -> Callable[[Callable], Callable]:
    """Decorate the fake of one of the operators.

    torch looks up the source line that registers a fake, which takes a millisecond for each file that has one.
    """
    return lambda function: torch.library.register_fake(f"hipconv::{operator}", function, lib=library)


def refuse_mixed_devices(x: Tensor, **others: Tensor | None) -> None:
    """torch also comes to a fake when one of several real tensors is on the meta device; nothing would be computed."""
    for name, tensor in others.items():
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name}: got a tensor on {tensor.device}, expected it on {x.device}, where x is")


def stream(tensor: Tensor) -> int:
    """The current stream of the tensor's device, as the pointer that kernels are launched on."""
    return torch._C._cuda_getCurrentRawStream(tensor.device.index) if tensor.is_cuda else 0


def kernels_for(name: str, x: Tensor, *others: Tensor | None) -> ModuleType | None:
    """The module `name` for x's device, if it is loaded and nothing in Python looks on; else None.

    Its functions that come before or go past the operators ask torch's dispatcher the rest of the question, in C++, and do
    nothing if it has something to do. (Those of the module causal_conv1d ask for Python too.)
    """
    if type(x) is not Tensor or is_dynamo_compiling() or (others and has_torch_function_variadic(x, *others)):
        return None
    return jit.loaded(name, x)


_question: Callable[..., bool] | None = None


def nobody_looks_on(*tensors: Tensor | None) -> bool:
    """Tell whether torch's dispatcher has nothing to do for these, as any loaded module knows. Autograd is not asked."""
    global _question
    if is_dynamo_compiling():
        return False
    if _question is None:  # of the first call of a process
        kernels = None if tensors[0] is None else kernels_for("causal_conv1d", tensors[0])
        if kernels is None:
            return False
        _question = kernels.nothing_looks_on
    return _question(*tensors)


def refuse_derivatives(**tensors: Tensor | None) -> None:
    """For a form that writes: no derivative that a caller waits for gets lost. Its operator asks this."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            continue
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise ValueError(
                f"{name}: got a tensor that requires grad, expected none while grad mode is on: this call writes into "
                f"its arguments (out, states or caches) and records no gradient. Call it under torch.no_grad(), or pass "
                f"detached tensors."
            )
        if transforms.tangent_of(tensor) is not None:
            raise ValueError(
                f"{name}: got a dual tensor, expected none: this call writes into its arguments (out, states or caches) "
                "and has no forward-mode derivative. Pass the primal, `torch.autograd.forward_ad.unpack_dual(tensor).primal`."
            )


def refuse_derivatives_of_torch_func(**tensors: Tensor | None) -> None:
    """The same before the operator, which does not get to see torch.func's own tensors."""
    if transforms.in_torch_func():
        refuse_derivatives(**tensors)


def fake_of(operator: str, check: Callable[..., None] = lambda *_, **__: None) -> Callable[..., None]:
    """Fake an operator that writes only into what it is given. torch also comes to it when one of several real tensors is on
    the meta device; where all are, `check` may refuse them, x first and the others by name.
    """

    def fake_of_writes(*arguments, **options):
        names = (argument.name for argument in getattr(torch.ops.hipconv, operator).default._schema.arguments)
        tensors = {
            name: value for name, value in (*zip(names, arguments, strict=False), *options.items()) if isinstance(value, Tensor)
        }
        x = tensors.pop("x") if "x" in tensors else tensors.pop("out")
        refuse_mixed_devices(x, **tensors)
        check(x, **tensors)

    return fake_of_writes
