"""The torch operators ``torch.ops.hipconv.*``: schemas with exact mutation marks, implementations, fakes.

Defined through ``torch.library.Library``, whose call costs a fifth of ``torch.library.custom_op``'s. One implementation per op
serves every device; the module for the tensor's device is found, and if need be built, at the call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import jit, targets

_library = torch.library.Library("hipconv", "DEF")

_library.define(
    "causal_conv1d_fwd(Tensor(a!) out, Tensor x, Tensor weight, Tensor? bias=None, bool use_silu=False, *, str kernel='auto') -> ()"
)


@torch.library.impl(_library, "causal_conv1d_fwd", "CompositeExplicitAutograd")
def _causal_conv1d_fwd(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, use_silu: bool = False, *, kernel: str = "auto"):
    if torch.is_grad_enabled():
        _refuse_gradients({"out": out, "x": x, "weight": weight, "bias": bias})
    module = jit.module("causal_conv1d", targets.of(x.device))
    module.causal_conv1d_fwd(out, x, weight, bias, use_silu, kernel, _stream(x))


@torch.library.register_fake("hipconv::causal_conv1d_fwd", lib=_library)
def _causal_conv1d_fwd_fake(out, x, weight, bias=None, use_silu=False, *, kernel="auto"):
    # torch also comes here when one of several real tensors is on the meta device; nothing would be computed.
    for name, tensor in (("out", out), ("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name}: got a tensor on {tensor.device}, expected it on {x.device}, where x is")


def _stream(tensor: Tensor) -> int:
    """The current stream of the tensor's device, as the pointer that kernels are launched on."""
    return torch._C._cuda_getCurrentRawStream(tensor.device.index) if tensor.is_cuda else 0


def _refuse_gradients(tensors: dict[str, Tensor | None]) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise ValueError(
                f"{name}: got a tensor that requires grad, expected none while grad mode is on: this form writes into `out` and "
                "records no gradient. Call it under torch.no_grad(), or pass detached tensors."
            )
