"""The ranks check layers with a group here: against the same layers without one on the whole rows."""

from __future__ import annotations

from typing import Any

import torch

from distributed.halo_checks import everyone, gathered, refusal
from support.tensors import same_bits
import hipconv
from hipconv import distributed


def causal_conv1d() -> None:
    group, _, _ = everyone()
    alone = hipconv.nn.CausalConv1d(6, 4, activation="silu")
    layer = hipconv.nn.CausalConv1d(6, 4, activation="silu", group=group)
    layer.load_state_dict(alone.state_dict())
    x = torch.randn(2, 6, 11, requires_grad=True)
    expected: Any = alone(x, return_final_states=True)
    out: Any = layer(distributed.shard(x, 2, group), return_final_states=True)
    assert same_bits(distributed.gather(out[0], 2, group), expected[0]) and same_bits(out[1], expected[1])
    expected[0].square().sum().backward()
    out[0].square().sum().backward()
    assert layer.weight.grad is not None and alone.weight.grad is not None
    assert torch.allclose(torch.stack(gathered(layer.weight.grad, group)).sum(0), alone.weight.grad, atol=1e-4)


def short_convolution() -> None:
    group, rank, size = everyone()
    alone = hipconv.nn.ShortConvolution(6, 4, bias=True)
    layer = hipconv.nn.ShortConvolution(6, 4, bias=True, group=group)
    layer.load_state_dict(alone.state_dict())
    for tokens in (2, 4 * size + 1):
        x, residual, mask = torch.randn(2, tokens, 6), torch.randn(2, tokens, 6), (torch.rand(2, tokens) > 0.3).float()
        mine = [distributed.shard(t, 1, group) for t in (x, residual, mask)]
        for cache in (None, torch.randn(2, 6, 4)):
            expected, state = alone(x, residual, mask, cache, True)
            out, my_state = layer(*mine, cache, True)
            assert same_bits(distributed.gather(out, 1, group), expected)
            assert same_bits(my_state, state), (tokens, cache is None)
    x, starts = torch.randn(1, 17, 6), torch.tensor([0, 3, 3, 9, 17])
    expected, _ = alone(x, cu_seqlens=starts)
    out, _ = layer(distributed.shard(x, 1, group), cu_seqlens=starts)
    assert same_bits(distributed.gather(out, 1, group), expected)
    texts = [
        refusal(lambda: layer(mine[0], cu_seqlens=starts, output_final_state=True)),
        refusal(lambda: layer(torch.zeros(2, 3, 5 if rank == 1 else 6))),
    ]
    assert texts[0].startswith("ValueError: rank 0 of the group refuses its arguments: cu_seqlens: got one beside cache"), texts
    assert texts[1].startswith("ValueError: rank 1 of the group refuses its arguments: x: got shape (2, 3, 5), expected (batch"), texts
