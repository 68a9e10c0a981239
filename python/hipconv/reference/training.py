"""The training functions in plain torch with float64 accumulation; autograd through them gives the gradients."""

from __future__ import annotations

import torch
from torch import Tensor
import torch.nn.functional as F


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    use_silu: bool = False,
) -> tuple[Tensor, Tensor]:
    """Causal depthwise conv1d of rows that continue from a state, or hold several packed sequences.

    A row is ``[initial_states | x]``, with zeros for a missing initial state; the state's tokens have the sequence id of the
    row's first token. A tap counts where its token has the id of the output's token. Tokens with a negative id are padding:
    their output is zero, and nothing flows back through it.

    Args:
        x: (batch, dim, seqlen), any float dtype, any strides.
        weight: (dim, width).
        bias: (dim,), or None or an empty tensor for none.
        seq_idx: (batch, seqlen), integers, or None: each row is one sequence.
        initial_states: (batch, dim, width - 1), or None.
        use_silu: apply SiLU.

    Returns:
        The output, (batch, dim, seqlen), float64, not rounded; and the final state, (batch, dim, width - 1), in the dtype of
        `x`: the last width - 1 tokens of the row, those of other sequences than the last token's (and all, if that is padding)
        replaced by zeros.
    """
    seqlen = x.shape[2]
    past = weight.shape[1] - 1
    before = x.new_zeros(*x.shape[:2], past) if initial_states is None else initial_states
    row = torch.cat([before, x], dim=2)
    ids = row.new_zeros(len(x), seqlen, dtype=torch.long) if seq_idx is None else seq_idx.long()
    first = ids[:, :1] if seqlen else ids.new_zeros(len(x), 1)
    row_ids = torch.cat([first.expand(-1, past), ids], dim=1)

    wide = row.double()
    sums = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    if bias is not None and bias.numel():
        sums = sums + bias.double()[None, :, None]
    for i in range(past + 1):
        counts = row_ids[:, i : i + seqlen] == ids
        if initial_states is None:
            counts = counts & (torch.arange(seqlen, device=x.device) + i >= past)
        # Not a product with zero: 0 * inf is NaN. Chosen before the tap as well as behind it, for the sake of the gradients.
        seen = torch.where(counts[:, None, :], wide[..., i : i + seqlen], 1.0)
        sums = sums + torch.where(counts[:, None, :], weight[:, i].double()[None, :, None] * seen, 0.0)
    out = F.silu(sums) if use_silu else sums
    out = torch.where((ids >= 0)[:, None, :], out, 0.0)

    last = ids[:, -1:] if seqlen else first
    kept = (row_ids[:, seqlen:] == last) & (last >= 0)
    return out, torch.where(kept[:, None, :], row[..., seqlen:], 0.0)
