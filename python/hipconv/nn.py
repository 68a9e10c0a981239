"""Layers: the causal depthwise convolution of Mamba models, and that of linear-attention models.

Both hold their parameters as the layers that they stand in for do (``weight`` (dim, 1, width), ``bias`` (dim,)), so that checkpoints
load into them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .drop_in import causal_conv1d_fn, causal_conv1d_update
from .training import causal_conv1d_with_states

__all__ = ["CausalConv1d", "ShortConvolution"]


class CausalConv1d(torch.nn.Conv1d):
    """A causal depthwise convolution: what Mamba layers build from ``nn.Conv1d(dim, dim, width, groups=dim, padding=width - 1)``.

    Args:
        dim: channels. width: taps, >= 1. bias: whether there is one. activation: "silu", "swish" (the same) or None.
        device, dtype: of the parameters.
    """

    def __init__(
        self,
        dim: int,
        width: int = 4,
        bias: bool = True,
        activation: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, dim, width, groups=dim, padding=width - 1, bias=bias, device=device, dtype=dtype)
        self.activation = _known(activation)

    def forward(  # type: ignore[override]
        self, x: Tensor, seq_idx: Tensor | None = None, initial_states: Tensor | None = None, return_final_states: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """`hipconv.causal_conv1d_fn` with the layer's parameters.

        Args:
            x: (batch, dim, seqlen), any strides. seq_idx, initial_states, return_final_states: as for `hipconv.causal_conv1d_fn`.

        Returns:
            (batch, dim, seqlen), in the memory layout of `x`; with return_final_states also the states, (batch, dim, width - 1).
        """
        return causal_conv1d_fn(x, self.weight[:, 0], self.bias, seq_idx, initial_states, return_final_states, activation=self.activation)

    def step(self, x: Tensor, conv_state: Tensor, cache_seqlens: Tensor | None = None, conv_state_indices: Tensor | None = None) -> Tensor:
        """The outputs of new tokens, `conv_state` advanced past them in place. No gradient is recorded.

        Args:
            x: (batch, dim), or (batch, dim, tokens).
            conv_state: (batch, dim, state_len), state_len >= width - 1, the latest token in the last column. Not used at width 1.
            cache_seqlens, conv_state_indices: as for `hipconv.causal_conv1d_update`.
        """
        return causal_conv1d_update(x, conv_state, self.weight[:, 0], self.bias, self.activation, cache_seqlens, conv_state_indices)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, width={self.kernel_size[0]}, bias={self.bias is not None}, activation={self.activation!r}"


class ShortConvolution(torch.nn.Conv1d):
    """The short convolution of linear-attention models, over (batch, seqlen, dim): arguments and semantics of the layer of this name in
    flash-linear-attention.

    Args:
        hidden_size: channels. kernel_size: taps, >= 1. bias: whether there is one. activation: "silu", "swish" (the same) or None.
        backend: accepted and not needed. device, dtype: of the parameters.
    """

    def __init__(
        self,
        hidden_size: int,
        kernel_size: int,
        bias: bool = False,
        activation: str | None = "silu",
        backend: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            hidden_size, hidden_size, kernel_size, groups=hidden_size, padding=kernel_size - 1, bias=bias, device=device, dtype=dtype
        )
        self.hidden_size = hidden_size
        self.activation = _known(activation)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        residual: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Tensor | None = None,
        output_final_state: bool = False,
        cu_seqlens: Tensor | None = None,
        chunk_indices: Tensor | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor | None]:
        """``activation(conv(x)) + residual`` and, if asked for, the state to go on from.

        Args:
            x: (batch, seqlen, dim), any strides. With `cu_seqlens`, batch is 1.
            residual: like `x`, added after the activation.
            mask: (batch, seqlen); `x` counts multiplied by it (and is not written). Not with `cu_seqlens`.
            cache: (sequences, dim, width): the last tokens before x of each sequence, the latest in the last column. Without
                gradients, a call of one token a sequence overwrites it with the new state, and returns it as that.
            output_final_state: return the state after x, of the shape of `cache`.
            cu_seqlens: (sequences + 1,): where the packed sequences begin, and end; nothing of it is read on the host.
            chunk_indices, kwargs: accepted and not needed.

        Returns:
            (batch, seqlen, dim), and the state or None.

        Raises:
            ValueError: `mask` with `cu_seqlens`, a packed x whose batch is not 1, or a cache of the wrong shape.
        """
        if cu_seqlens is not None and mask is not None:
            raise ValueError("mask: got one beside cu_seqlens, expected only one of the two; pack without the padded tokens instead")
        if cu_seqlens is not None and x.shape[0] != 1:
            raise ValueError(f"x: got shape {tuple(x.shape)}, expected a batch of 1 with cu_seqlens: (1, total tokens, dim)")
        width = self.kernel_size[0]
        sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        if cache is not None and tuple(cache.shape) != (sequences, self.hidden_size, width):
            raise ValueError(
                f"cache: got shape {tuple(cache.shape)}, expected (sequences, dim, width) = {(sequences, self.hidden_size, width)}"
            )
        if mask is not None:
            x = x * mask.unsqueeze(-1)
        if cu_seqlens is None:
            y, state = self._rows(x, cache, output_final_state)
        else:
            y, state = self._packed(x, cache, output_final_state, cu_seqlens)
        return y if residual is None else y + residual, state if output_final_state else None

    def step(
        self,
        x: Tensor,
        residual: Tensor | None,
        cache: Tensor | None,
        output_final_state: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """`forward` of one token a sequence without gradients: `cache` is overwritten with the new state."""
        with torch.no_grad():
            return self(x, residual, None, cache, output_final_state, cu_seqlens)

    @property
    def state_size(self) -> int:
        """Elements of one sequence's cache."""
        return self.hidden_size * self.kernel_size[0]

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, kernel_size={self.kernel_size[0]}, bias={self.bias is not None}, activation={self.activation!r}"

    def _rows(self, x: Tensor, cache: Tensor | None, output_final_state: bool) -> tuple[Tensor, Tensor | None]:
        weight, width = self.weight[:, 0], self.kernel_size[0]
        if x.shape[1] == 1 and cache is not None and not torch.is_grad_enabled():
            y = causal_conv1d_update(x[:, 0], cache, weight, self.bias, self.activation)[:, None]
            return y, cache if width > 1 else cache.copy_(x.mT)  # of a window of one token the update knows no state
        rows = x.mT
        initial_states = None if cache is None else cache[..., 1:].to(x.dtype)
        y, _ = causal_conv1d_with_states(rows, weight, self.bias, None, initial_states, False, self.activation is not None)
        if not output_final_state:
            return y.mT, None
        before = x.new_zeros(x.shape[0], self.hidden_size, width) if cache is None else cache.to(x.dtype)
        return y.mT, torch.cat((before, rows[..., -width:]), -1)[..., -width:]

    def _packed(self, x: Tensor, cache: Tensor | None, output_final_state: bool, starts: Tensor) -> tuple[Tensor, Tensor | None]:
        """Each sequence with its cache in front, as one packed row."""
        weight, width = self.weight[:, 0], self.kernel_size[0]
        tokens = x[0]
        count, sequences = tokens.shape[0], starts.shape[0] - 1
        past = 0 if cache is None else width - 1
        at = torch.arange(count, device=x.device)
        sequence = torch.searchsorted(starts[1:].to(at.dtype), at, right=True)
        places = at + (sequence + 1) * past
        row, ids = tokens, sequence
        if cache is not None and past:
            number = torch.arange(sequences, device=x.device)
            of_cache = (starts[:-1] + number * past)[:, None] + torch.arange(past, device=x.device)
            row = tokens.new_zeros(count + sequences * past, self.hidden_size)
            row = row.index_copy(0, places, tokens)
            row = row.index_copy(0, of_cache.flatten(), cache[..., 1:].mT.reshape(-1, self.hidden_size).to(x.dtype))
            ids = torch.empty(row.shape[0], dtype=torch.long, device=x.device)
            ids = ids.index_copy(0, places, sequence).index_copy(0, of_cache.flatten(), number.repeat_interleave(past))
        seq_idx = ids[None].to(torch.int32)
        out, _ = causal_conv1d_with_states(row.mT[None], weight, self.bias, seq_idx, None, False, self.activation is not None)
        y = out[0].mT
        if cache is not None:
            y = y[places]
        in_place = cache is not None and count == sequences and not torch.is_grad_enabled()
        if not (output_final_state or in_place):
            return y[None], None
        # The last `width` of (cache, tokens), counted from each sequence's begin: below zero in the cache.
        position = (starts[1:] - starts[:-1])[:, None] - width + torch.arange(width, device=x.device)
        if count:
            state = tokens[(starts[:-1, None] + position).clamp(0, count - 1)].mT
        else:
            state = tokens.new_zeros(sequences, self.hidden_size, width)
        before = torch.zeros_like(state) if cache is None else cache.to(x.dtype)
        column = (position + width).clamp(max=width - 1)[:, None].expand_as(before)
        state = torch.where(position[:, None] < 0, before.gather(-1, column), state)
        return y[None], cache.copy_(state) if cache is not None and in_place else state


def _known(activation: str | None) -> str | None:
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"activation: got {activation!r}, expected None, 'silu' or 'swish'")
    return activation
