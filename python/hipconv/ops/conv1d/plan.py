"""The plan of a causal conv1d call: what it would run, and why, without running it."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ...arguments import SILU, parse_activation, wrong_kind
from ..plans import distinct_bytes, module_for, si, target_of


@dataclasses.dataclass(frozen=True)
class Conv1dPlan:
    """The kernel that a call launches, and what it has to move and compute. `print` it for a summary."""

    target: str
    """The backend and architecture, e.g. "rocm gfx942"."""
    kernel: str
    """The kernel's name; "none" where x has no elements and nothing is launched."""
    form: str
    """Which of its forms the kernel takes, e.g. "simd_along_channels"."""
    chosen_by: str
    """"auto", "kernel" (the keyword), "HIPCONV_CONV1D_KERNEL", or "the empty x"."""
    serves: tuple[str, ...]
    """Every kernel that can serve the call, the fastest first."""
    bytes_moved: int
    """Each distinct input element read once and each output element written once, weight and bias included."""
    flops: int
    """Two a tap and output; bias and activation are not counted."""

    @property
    def floor(self) -> str:
        """Return what bounds the time from below."""
        return f"a copy kernel's time for {si(self.bytes_moved)}B, read and written together"

    def __str__(self) -> str:
        intensity = self.flops / max(1, self.bytes_moved)
        return (
            f"{self.form} on {self.target}, chosen by {self.chosen_by}; kernels that serve: "
            f"{', '.join(self.serves) or 'none'}; {si(self.flops)}FLOP, {intensity:.1f} a byte; floor: {self.floor}"
        )


def causal_conv1d_plan(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    out: Tensor | None = None,
    kernel: str = "auto",
    target: str | None = None,
) -> Conv1dPlan:
    """The plan of ``causal_conv1d(x, weight, bias, activation)`` or, with `out`, of ``causal_conv1d_fwd(out, x, weight, bias,
    …)``.

    The choice is made by the function that launches use. It depends on nothing but shapes, strides, dtypes, the alignment of
    addresses, and on what the target is. No memory of a tensor is read or written.

    Args:
        x, weight, bias, out: as for a call. Tensors on the meta device (``torch.empty(..., device="meta")``) take no memory;
            their storage counts as aligned to 16 bytes.
        activation: None, "silu" or "swish".
        kernel: as for a call. "auto" leaves it to HIPCONV_CONV1D_KERNEL, if set, and then to the library.
        target: an architecture: "gfx942", "sm_90" …, or "cpu". By default that of x's device and, for a meta tensor, that of
            the first GPU, or the CPU where there is none. It need not be in this machine: plans for other GPUs come from the
            same kernels' host code, which the first of them builds for this host, once, with a C++ compiler, and says so on
            stderr.

    Raises:
        TypeError, ValueError: what the call would raise about kinds, shapes, dtypes and kernel names. Devices and overlaps are
            not looked at.
        hipconv.errors.JitError: the module had to be built and could not be.
    """
    use_silu = parse_activation(activation, SILU)
    try:
        planned_for = target_of(x, target)
        module = module_for("causal_conv1d", planned_for)
        into = torch.empty_like(x, device="meta") if out is None else out
        choice, form, chosen_by, serves = module.causal_conv1d_plan(into, x, weight, bias, use_silu, kernel)
    except Exception as error:
        raise wrong_kind(causal_conv1d_plan, locals()) or error from None
    inputs = [tensor for tensor in (x, weight, bias) if tensor is not None]
    return Conv1dPlan(
        target=str(planned_for),
        kernel=choice,
        form=form,
        chosen_by=chosen_by,
        serves=tuple(serves),
        bytes_moved=into.numel() * into.element_size() + sum(distinct_bytes(tensor) for tensor in inputs),
        flops=2 * weight.shape[1] * x.numel(),
    )
