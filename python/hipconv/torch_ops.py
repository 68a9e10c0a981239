"""The torch operators ``torch.ops.hipconv.*``: schemas with exact mutation marks, implementations, fakes.

Defined through ``torch.library.Library``, whose call costs a fifth of ``torch.library.custom_op``'s. One implementation per op
serves every device; the module for the tensor's device is found, and if need be built, at the call.

The public functions go past the operators when nothing would notice (`kernels_for`): reaching an operator costs more than the rest of
a call. Whoever does look on finds the operator: torch.compile and export, modes, subclasses, functorch, tracers, profilers.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor
from torch.overrides import has_torch_function_variadic

from . import jit, targets

_library = torch.library.Library("hipconv", "DEF")

_library.define(
    "causal_conv1d_fwd(Tensor(a!) out, Tensor x, Tensor weight, Tensor? bias=None, bool use_silu=False, *, str kernel='auto') -> ()"
)
_library.define("causal_conv1d(Tensor x, Tensor weight, Tensor? bias=None, bool use_silu=False, *, str kernel='auto') -> Tensor")


@torch.library.impl(_library, "causal_conv1d_fwd", "CompositeExplicitAutograd")
def _causal_conv1d_fwd(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, use_silu: bool = False, *, kernel: str = "auto"):
    module = jit.module("causal_conv1d", targets.of(x.device))
    module.causal_conv1d_fwd(out, x, weight, bias, use_silu, kernel, stream(x))


@torch.library.register_fake("hipconv::causal_conv1d_fwd", lib=_library)
def _causal_conv1d_fwd_fake(out, x, weight, bias=None, use_silu=False, *, kernel="auto"):
    _refuse_mixed_devices(x, out=out, weight=weight, bias=bias)


@torch.library.impl(_library, "causal_conv1d", "CompositeExplicitAutograd")
def _causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None = None, use_silu: bool = False, *, kernel: str = "auto"):
    module = jit.module("causal_conv1d", targets.of(x.device))
    return module.causal_conv1d(x, weight, bias, use_silu, kernel, stream(x))


@torch.library.register_fake("hipconv::causal_conv1d", lib=_library)
def _causal_conv1d_fake(x, weight, bias=None, use_silu=False, *, kernel="auto"):
    _refuse_mixed_devices(x, weight=weight, bias=bias)
    return torch.empty_like(x)


def _refuse_mixed_devices(x: Tensor, **others: Tensor | None) -> None:
    """torch also comes to a fake when one of several real tensors is on the meta device; nothing would be computed."""
    for name, tensor in others.items():
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name}: got a tensor on {tensor.device}, expected it on {x.device}, where x is")


def stream(tensor: Tensor) -> int:
    """The current stream of the tensor's device, as the pointer that kernels are launched on."""
    return torch._C._cuda_getCurrentRawStream(tensor.device.index) if tensor.is_cuda else 0


def kernels_for(name: str, x: Tensor, *others: Tensor | None) -> ModuleType | None:
    """The module `name` for x's device, if it is loaded and nothing in Python looks on; else None.

    Its functions named ``*_directly`` ask the rest of the question, of torch's dispatcher, and do nothing if it has something to do.
    """
    if type(x) is not Tensor or torch.compiler.is_compiling() or has_torch_function_variadic(x, *others):
        return None
    return jit.loaded(name, x.device)
