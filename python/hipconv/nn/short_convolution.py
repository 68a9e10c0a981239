"""The causal depthwise convolution of linear-attention models as a layer.

It holds its parameters as the layer that it stands in for does (``weight`` (dim, 1, width), ``bias`` (dim,)), so that
checkpoints load into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..arguments import (
    SILU,
    flag,
    parse_activation,
    require_floats,
    require_integers,
    require_kinds,
    require_shape,
    storage_of,
    wrong_output,
)
from ..ops.conv1d.decode import causal_conv1d_update
from ..ops.conv1d.training import causal_conv1d_with_states
from .shared import DTYPES, LARGEST, OverAGroup, check_parameters

__all__ = ["ShortConvolution"]


class ShortConvolution(OverAGroup, torch.nn.Conv1d):
    """The short convolution of linear-attention models, over (batch, seqlen, dim): arguments and semantics of the layer of this
    name in flash-linear-attention.

    Args:
        hidden_size: channels. kernel_size: taps, >= 1. bias: whether there is one. activation: "silu", "swish" (the same) or
            None.
        backend: accepted and not needed. device, dtype: of the parameters.
        group: a process group (or DeviceMesh) over whose ranks the tokens are split, or None. `forward` then takes and returns
            this rank's tokens, `cu_seqlens` being of the whole row, and the states of the whole row on every rank; packed rows
            have none. `step` is this rank's own, as without a group: every rank advances the sequences that it is given.
        layout, reduce_gradients, validate: with a group, as for `hipconv.distributed.causal_conv1d`. Copies of the layer have
            the same group; it cannot be pickled with one.

    Raises:
        TypeError, ValueError: an argument of the wrong kind, sizes below 1, or above 2147483647 in all. No memory is taken
            then.
    """

    def __init__(
        self,
        hidden_size: int,
        kernel_size: int,
        bias: bool = False,
        activation: str | None = "silu",
        backend: object = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        group: object = None,
        layout: str = "contiguous",
        reduce_gradients: bool = False,
        validate: bool = True,
    ) -> None:
        parse_activation(activation, SILU)
        require_kinds(ShortConvolution.__init__, locals())
        check_parameters(device, dtype, hidden_size=hidden_size, kernel_size=kernel_size)
        super().__init__(
            hidden_size,
            hidden_size,
            kernel_size,
            groups=hidden_size,
            padding=kernel_size - 1,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.hidden_size = hidden_size
        self.activation = activation
        self._set_group(group, layout, reduce_gradients, validate)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        residual: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Tensor | None = None,
        output_final_state: bool = False,
        cu_seqlens: Tensor | None = None,
        chunk_indices: object = None,
        sizes: Sequence[int] | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor | None]:
        """``activation(conv(x)) + residual`` and, if asked for, the state to go on from.

        Args:
            x: (batch, seqlen, dim), any strides. With `cu_seqlens`, batch is 1.
            residual: of the shape of `x`, floating-point, added after the activation.
            mask: (batch, seqlen); `x` counts multiplied by it (and is not written). Not with `cu_seqlens`.
            cache: (sequences, dim, width): the last tokens before x of each sequence, the latest in the last column. Without
                gradients, a call of one token a sequence (with a group, of one token on one rank) overwrites it with the new
                state, and returns it as that.
            output_final_state: return the state after x, of the shape of `cache`.
            cu_seqlens: (sequences + 1,): where the packed sequences begin, and end; nothing of it is read on the host.
            sizes: with a group, the tokens of every rank, if known; needed with validate=False.
            chunk_indices, kwargs: accepted and not needed.

        Returns:
            (batch, seqlen, dim), and the state or None.

        Raises:
            TypeError, ValueError: an argument of the wrong kind, shape, dtype or device, `mask` with `cu_seqlens`, or a packed
                x whose batch is not 1; with a group, a cache and one token on each rank without gradients, which `step` is for.
                `cache` is not written then.
        """
        if self.group is not None:
            return self._split(x, residual, mask, cache, output_final_state, cu_seqlens, sizes)
        return self._alone(x, residual, mask, cache, output_final_state, cu_seqlens)

    def _alone(
        self,
        x: Tensor,
        residual: Tensor | None,
        mask: Tensor | None,
        cache: Tensor | None,
        output_final_state: bool,
        cu_seqlens: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """`forward` of this process's sequences."""
        try:
            batch, seqlen, _ = x.shape
            sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
            if (
                type(output_final_state) is not bool
                or (
                    residual is not None
                    and (residual.shape != x.shape or residual.device != x.device or not _is_plain(residual))
                )
                or (mask is not None and (mask.shape != (batch, seqlen) or mask.is_complex()))
                or (
                    cache is not None
                    and (cache.shape != (sequences, self.hidden_size, self.kernel_size[0]) or not cache.is_floating_point())
                )
                or (
                    cu_seqlens is not None
                    and (
                        batch != 1
                        or mask is not None
                        or cu_seqlens.dim() != 1
                        or sequences < 0
                        or cu_seqlens.dtype not in (torch.int32, torch.int64)
                        or seqlen + sequences * self.kernel_size[0] > LARGEST
                    )
                )
            ):
                output_final_state = flag("output_final_state", output_final_state)
                self._check(x, residual, mask, cache, cu_seqlens)
            if mask is not None:
                masked = x * mask.unsqueeze(-1)
                x = masked if masked.dtype == x.dtype else masked.to(x.dtype)
            if residual is not None and cache is not None and storage_of(residual) == storage_of(cache) is not None:
                residual = residual.clone()  # what it is now: the cache may be overwritten before it is added
            if cu_seqlens is None:
                y, state = self._rows(x, cache, output_final_state)
            else:
                y, state = self._packed(x, cache, output_final_state, cu_seqlens)
            return y if residual is None else y + residual, state if output_final_state else None
        except Exception as error:
            raise self._why(error, locals()) from None

    def _why(self, error: Exception, arguments: Mapping[str, Any]) -> Exception:
        """Return what to raise where `forward` with these arguments has raised `error`."""
        try:
            require_kinds(ShortConvolution.forward, arguments)
            self._check(*(arguments[name] for name in ("x", "residual", "mask", "cache", "cu_seqlens")))
        except (TypeError, ValueError) as wrong:
            return wrong
        if isinstance(error, IndexError) and arguments["cu_seqlens"] is not None:  # which torch finds on the CPU
            return ValueError(
                f"cu_seqlens: got other values than ones that rise from 0 to {arguments['x'].shape[1]}, the tokens of x"
            )
        if isinstance(error, (TypeError, ValueError)) and str(error).startswith("conv_state:"):
            return type(error)(str(error).replace("conv_state", "cache", 1))
        return error

    def _check(
        self, x: Tensor, residual: Tensor | None, mask: Tensor | None, cache: Tensor | None, cu_seqlens: Tensor | None
    ) -> None:
        """Raise what is wrong with the shapes, dtypes and devices of tensors."""
        dim, width = self.hidden_size, self.kernel_size[0]
        if x.dim() != 3 or x.shape[2] != dim:
            raise ValueError(f"x: got shape {tuple(x.shape)}, expected (batch, seqlen, dim) = (batch, seqlen, {dim})")
        batch, seqlen = x.shape[:2]
        sequences = batch
        require_shape("x", x, (batch, seqlen, dim), "(batch, seqlen, dim)", x)
        if x.dtype not in DTYPES:
            raise TypeError(f"x: got dtype {x.dtype}, expected {', '.join(map(str, DTYPES))}")
        if cu_seqlens is not None:
            if mask is not None:
                raise ValueError(
                    "mask: got one beside cu_seqlens, expected only one of the two; pack without the padded tokens instead"
                )
            if batch != 1:
                raise ValueError(
                    f"x: got shape {tuple(x.shape)}, expected a batch of 1 with cu_seqlens: (1, total tokens, dim)"
                )
            if cu_seqlens.dim() != 1 or not len(cu_seqlens):
                raise ValueError(
                    f"cu_seqlens: got shape {tuple(cu_seqlens.shape)}, expected (sequences + 1,), of at least one element"
                )
            require_integers(cu_seqlens=cu_seqlens)
            require_shape("cu_seqlens", cu_seqlens, tuple(cu_seqlens.shape), "(sequences + 1,)", x)
            sequences = len(cu_seqlens) - 1
            if seqlen + sequences * width > LARGEST:
                raise ValueError(
                    f"cu_seqlens: got {sequences} sequences in {seqlen} tokens, expected at most {LARGEST} tokens, {width} "
                    f"more for each"
                )
        if residual is not None:
            require_floats(residual=residual)
            require_shape("residual", residual, (batch, seqlen, dim), "the shape of x", x)
        if mask is not None:
            if mask.is_complex() or (mask.is_floating_point() and mask.element_size() == 1):
                raise TypeError(f"mask: got dtype {mask.dtype}, expected bools or real numbers")
            require_shape("mask", mask, (batch, seqlen), "(batch, seqlen)", x)
        if cache is not None:
            require_floats(cache=cache)
            require_shape("cache", cache, (sequences, dim, width), "(sequences, dim, width)", x)
            in_place = seqlen * batch == sequences and not torch.is_grad_enabled()
            if in_place and (wrong := wrong_output("cache", cache, cu_seqlens is not None or width == 1)):
                raise wrong

    def step(
        self,
        x: Tensor,
        residual: Tensor | None,
        cache: Tensor | None,
        output_final_state: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """`forward` of one token a sequence without gradients: `cache` is overwritten with the new state.
        A group has no part in it.
        """
        with torch.no_grad():
            if self.group is not None:
                return self._alone(x, residual, None, cache, output_final_state, cu_seqlens)
            return self(x, residual, None, cache, output_final_state, cu_seqlens)

    @property
    def state_size(self) -> int:
        """Elements of one sequence's cache."""
        return self.hidden_size * self.kernel_size[0]

    def extra_repr(self) -> str:
        options = f"kernel_size={self.kernel_size[0]}, bias={self.bias is not None}, activation={self.activation!r}"
        return f"{self.hidden_size}, {options}"

    def _rows(self, x: Tensor, cache: Tensor | None, output_final_state: bool) -> tuple[Tensor, Tensor | None]:
        weight, width = self.weight[:, 0], self.kernel_size[0]
        if x.shape[1] == 1 and cache is not None and not torch.is_grad_enabled():
            if width == 1 and (wrong := wrong_output("cache", cache)):
                raise wrong
            y = causal_conv1d_update(x[:, 0], cache, weight, self.bias, self.activation)[:, None]
            return y, cache if width > 1 else cache.copy_(x.mT)  # of a window of one token the update knows no state
        rows = x.mT
        initial_states = None if cache is None else cache[..., 1:].to(x.dtype)
        y, _ = causal_conv1d_with_states(rows, weight, self.bias, None, initial_states, False, self.activation is not None)
        if not output_final_state:
            return y.mT, None
        before = x.new_zeros(x.shape[0], self.hidden_size, width) if cache is None else cache.to(x.dtype)
        return y.mT, torch.cat((before, rows[..., -width:]), -1)[..., -width:]

    def _split(
        self,
        x: Tensor,
        residual: Tensor | None,
        mask: Tensor | None,
        cache: Tensor | None,
        output_final_state: bool,
        cu_seqlens: Tensor | None,
        sizes: Sequence[int] | None,
    ) -> tuple[Tensor, Tensor | None]:
        """`forward` of this rank's tokens."""
        from ..distributed.layers import short_convolution

        arguments = locals()

        def check() -> None:
            require_kinds(ShortConvolution.forward, arguments)
            self._check(x, residual, mask, None, None)
            if cache is not None:
                require_shape("cache", cache, (x.shape[0], self.hidden_size, self.kernel_size[0]), "(sequences, dim, width)", x)

        filters = self.weight[:, 0], self.bias, self.activation
        return short_convolution(
            x,
            residual,
            mask,
            cache,
            output_final_state,
            cu_seqlens,
            filters,
            check,
            group=self.group,
            sizes=sizes,
            **self.options,
        )

    def _packed(
        self, x: Tensor, cache: Tensor | None, output_final_state: bool, starts: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Each sequence with its cache in front, as one packed row."""
        weight, width = self.weight[:, 0], self.kernel_size[0]
        starts = starts if starts.dtype == torch.int32 else starts.long()
        tokens = x[0]
        count, sequences = tokens.shape[0], starts.shape[0] - 1
        in_place = cache is not None and count == sequences and not torch.is_grad_enabled()
        if in_place and (wrong := wrong_output("cache", cache)):
            raise wrong
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


def _is_plain(tensor: Tensor) -> bool:
    """Dense, and of floating-point numbers that torch computes with."""
    return tensor.is_floating_point() and tensor.element_size() > 1 and tensor.layout is torch.strided
