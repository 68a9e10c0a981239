"""This tells whether a conv2d may round float32 factors to TF32: what its keyword says,
else what torch's settings say for convolutions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...arguments import describe

PRECISIONS = ("ieee", "tf32")
"""torch's own names: true float32, and factors of 11 bits."""

_has_cudnn = torch.version.cuda is not None
_setting_of = getattr(torch._C, "_get_fp32_precision_getter", None)  # torch 2.9 and later


def check(precision: str | None) -> None:
    if precision is None or (isinstance(precision, str) and precision in PRECISIONS):
        return
    error = ValueError if isinstance(precision, str) else TypeError
    raise error(f"float32_precision: got {describe(precision)}, expected 'ieee', 'tf32', or None for what torch's settings say")


def of_torch() -> str:
    """Return what torch's settings say for convolutions by cuDNN: whatever its own convolution would read.

    `torch.backends.cudnn.allow_tf32` up to torch 2.8. Since then `torch.backends.cudnn.conv.fp32_precision`, which inherits
    from `torch.backends.cudnn.fp32_precision` and `torch.backends.fp32_precision`, and which `allow_tf32` sets, too.
    """
    if _setting_of is None:
        return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
    return "tf32" if _setting_of("cuda", "conv") == "tf32" else "ieee"


def of_call(precision: str | None, x: Tensor) -> str:
    """Read a call's keyword. torch computes true float32 on ROCm and on CPUs, whatever cuDNN's settings are;
    so do we (and simt).
    """
    if precision is not None:
        check(precision)
        return precision
    return of_torch() if _has_cudnn and x.is_cuda and x.dtype == torch.float32 else "ieee"
