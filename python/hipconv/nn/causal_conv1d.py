"""The causal depthwise convolution of Mamba models as a layer.

It holds its parameters as the layer that it stands in for does (``weight`` (dim, 1, width), ``bias`` (dim,)), so that
checkpoints load into it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..arguments import SILU, parse_activation, require_kinds
from ..ops.conv1d.decode import causal_conv1d_update
from ..ops.conv1d.training import causal_conv1d_fn
from .shared import OverAGroup, check_parameters

__all__ = ["CausalConv1d"]


class CausalConv1d(OverAGroup, torch.nn.Conv1d):
    """A causal depthwise convolution: what Mamba layers build from ``nn.Conv1d(dim, dim, width, groups=dim, padding=width -
    1)``.

    Args:
        dim: channels. width: taps, >= 1. bias: whether there is one. activation: "silu", "swish" (the same) or None.
        device, dtype: of the parameters.
        group: a process group (or DeviceMesh) over whose ranks the tokens are split, or None: `forward` then takes and returns
            this rank's, as `hipconv.distributed.causal_conv1d` does. `step` is this rank's own, as without a group.
        layout, reduce_gradients, validate: with a group, as for `hipconv.distributed.causal_conv1d`. Copies of the layer have
            the same group; it cannot be pickled with one.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, sizes below 1, or above 2147483647 in all. No memory is taken
            then.
    """

    def __init__(
        self,
        dim: int,
        width: int = 4,
        bias: bool = True,
        activation: str | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        group: object = None,
        layout: str = "contiguous",
        reduce_gradients: bool = False,
        validate: bool = True,
    ) -> None:
        parse_activation(activation, SILU)
        require_kinds(CausalConv1d.__init__, locals())
        check_parameters(device, dtype, dim=dim, width=width)
        super().__init__(dim, dim, width, groups=dim, padding=width - 1, bias=bias, device=device, dtype=dtype)
        self.activation = activation
        self._set_group(group, layout, reduce_gradients, validate)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        seq_idx: Tensor | None = None,
        initial_states: Tensor | None = None,
        return_final_states: bool = False,
        sizes: Sequence[int] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`hipconv.causal_conv1d_fn` with the layer's parameters.

        Args:
            x: (batch, dim, seqlen), any strides. seq_idx, initial_states, return_final_states: as for
                `hipconv.causal_conv1d_fn`.
            sizes: with a group, the tokens of every rank, if known; needed with validate=False.

        Returns:
            (batch, dim, seqlen), in the memory layout of `x`; with return_final_states also the states, (batch, dim, width -
            1).
        """
        if self.group is not None:
            from .. import distributed

            return distributed.causal_conv1d(
                x, self.weight[:, 0], self.bias, group=self.group, seq_idx=seq_idx, initial_states=initial_states,
                return_final_states=return_final_states, activation=self.activation, sizes=sizes, **self.options,
            )  # fmt: skip
        try:
            return causal_conv1d_fn(
                x, self.weight[:, 0], self.bias, seq_idx, initial_states, return_final_states, activation=self.activation
            )
        except (TypeError, ValueError) as error:
            raise self._why(error, x, 3, "(batch, dim, seqlen)") from None

    def step(
        self, x: Tensor, conv_state: Tensor, cache_seqlens: Tensor | None = None, conv_state_indices: Tensor | None = None
    ) -> Tensor:
        """The outputs of new tokens, `conv_state` advanced past them in place. No gradient is recorded.

        Args:
            x: (batch, dim), or (batch, dim, tokens).
            conv_state: (batch, dim, state_len), state_len >= width - 1, the latest token in the last column. Not used at width
                1.
            cache_seqlens, conv_state_indices: as for `hipconv.causal_conv1d_update`.
        """
        try:
            return causal_conv1d_update(
                x, conv_state, self.weight[:, 0], self.bias, self.activation, cache_seqlens, conv_state_indices
            )
        except (TypeError, ValueError) as error:
            raise self._why(error, x, 2, "(batch, dim) or (batch, dim, seqlen)") from None

    def _why(self, error: Exception, x: Tensor, least_rank: int, axes: str) -> Exception:
        """Return what to raise where a function has raised `error`: weight is the layer's own,
        so that it is x that does not fit.
        """
        dim = self.in_channels
        if isinstance(x, Tensor) and (not least_rank <= x.dim() <= 3 or x.shape[1] != dim):
            return type(error)(f"x: got shape {tuple(x.shape)}, expected {axes} with dim = {dim}")
        if isinstance(x, Tensor) and x.device != self.weight.device:
            return type(error)(f"x: got a tensor on {x.device}, expected it on {self.weight.device}, where the layer is")
        return error

    def extra_repr(self) -> str:
        return f"{self.in_channels}, width={self.kernel_size[0]}, bias={self.bias is not None}, activation={self.activation!r}"
