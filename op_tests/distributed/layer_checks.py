"""The ranks check layers with a group here: against the same layers without one on the whole rows."""

from __future__ import annotations

import copy
import pickle
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
    assert texts[1].startswith(
        "ValueError: rank 1 of the group refuses its arguments: x: got shape (2, 3, 5), expected (batch"
    ), texts


def steps_are_each_ranks_own() -> None:
    """`step` advances this rank's sequences; a call of one token on each rank beside a cache, which may mean either,
    is refused.
    """
    group, rank, size = everyone()
    torch.manual_seed(rank)
    batch = 1 + rank % 2
    x, cache = torch.randn(batch, 1, 6), torch.randn(batch, 6, 4)
    alone, layer = (hipconv.nn.ShortConvolution(6, 4, group=g) for g in (None, group))
    layer.load_state_dict(alone.state_dict())
    mine, others = cache.clone(), cache.clone()
    out, state = layer.step(x, None, mine, True)
    expected, _ = alone.step(x, None, others, True)
    assert same_bits(out, expected) and state is mine and same_bits(mine, others) and not same_bits(mine, cache)
    x, cache = torch.randn(2, 1, 6), torch.randn(2, 6, 4)
    with torch.no_grad():
        text = refusal(lambda: layer(x, cache=cache, output_final_state=True))
    assert text.startswith(f"ValueError: x: got one token on each of {size} ranks beside a cache"), text


def a_cache_is_written() -> None:
    """As the layer alone writes it: without gradients, by a call of one token in all; whichever rank has it."""
    group, rank, size = everyone()
    alone, layer = (hipconv.nn.ShortConvolution(6, 4, group=g) for g in (None, group))
    layer.load_state_dict(alone.state_dict())
    x, cache = torch.randn(2, 1, 6), torch.randn(2, 6, 4)
    with torch.no_grad():
        for who in range(size):
            for wants_state in (False, True):
                expected, mine = cache.clone(), cache.clone()
                wanted, _ = alone(x, cache=expected, output_final_state=wants_state)
                out, state = layer(x[:, : int(rank == who)], cache=mine, output_final_state=wants_state)
                assert same_bits(mine, expected) and not same_bits(mine, cache)
                assert state is mine if wants_state else state is None
                assert same_bits(out, wanted[:, : int(rank == who)])
        texts = [
            refusal(lambda: layer(x[:, : int(rank == 1)], cache=cache[:1].expand(2, 6, 4) if rank == 1 else cache)),
            refusal(lambda: layer(x[:, : int(rank == 1)], cache=cache, output_final_state=rank == 1)),
        ]
    assert texts[0].startswith("ValueError: rank 1 of the group refuses its arguments: cache: got strides (0, 4, 1)"), texts
    assert texts[1].startswith("ValueError: output_final_state: got True on rank 1 of the group, expected False"), texts
    before = cache.clone()
    layer(x[:, : int(rank == 1)], cache=cache)  # with gradients
    assert same_bits(cache, before)


def options_reach_the_layers() -> None:
    """Zigzag parts, sizes without a header, gradients that are summed."""
    group, _, size = everyone()
    options: Any = {"group": group, "layout": "zigzag", "reduce_gradients": True, "validate": False}
    alone, layer = hipconv.nn.CausalConv1d(6, 4), hipconv.nn.CausalConv1d(6, 4, **options)
    layer.load_state_dict(alone.state_dict())
    whole = torch.randn(2, 6, 8 * size)
    x = distributed.shard(whole, 2, group, layout="zigzag")
    expected: Any = alone(whole)
    out: Any = layer(x, sizes=[8] * size)
    assert same_bits(distributed.gather(out, 2, group, layout="zigzag"), expected)
    expected.square().sum().backward()
    out.square().sum().backward()
    assert layer.weight.grad is not None and alone.weight.grad is not None
    assert torch.allclose(layer.weight.grad, alone.weight.grad, atol=1e-4)
    assert refusal(lambda: layer(x)).startswith("ValueError: sizes: got None with validate=False")
    short, of_group = hipconv.nn.ShortConvolution(6, 4), hipconv.nn.ShortConvolution(6, 4, **options)
    of_group.load_state_dict(short.state_dict())
    for cache in (None, torch.randn(2, 6, 4)):
        wanted, state = short(whole.mT, cache=cache, output_final_state=True)
        got, my_state = of_group(x.mT, cache=cache, output_final_state=True, sizes=[8] * size)
        assert same_bits(distributed.gather(got, 1, group, layout="zigzag"), wanted) and same_bits(my_state, state)
    text = refusal(lambda: hipconv.nn.CausalConv1d(6, 4, group=group, layout="zig"))
    assert text.startswith("ValueError: layout: got 'zig', expected one of 'contiguous', 'zigzag'"), text


def copies() -> None:
    """A copy of a layer has its group; a pickled one says what to do instead."""
    group, _, _ = everyone()
    for kind in (hipconv.nn.CausalConv1d, hipconv.nn.ShortConvolution):
        layer = torch.nn.Sequential(kind(6, 4, group=group))
        twin: Any = copy.deepcopy(layer)
        assert twin[0].group is group and twin[0].weight is not layer[0].weight
        x = torch.randn(1, 6, 6)
        out, again = ((one(x),) if kind is hipconv.nn.CausalConv1d else one(x) for one in (layer, twin))
        assert same_bits(out[0], again[0])
        text = refusal(lambda m=layer: pickle.dumps(m))
        assert text.startswith(
            "TypeError: group: got an object of type ProcessGroup, expected None where a layer is pickled"
        ), text
        twin[0].group = None
        loaded = pickle.loads(pickle.dumps(twin))
        assert same_bits(loaded[0].weight, twin[0].weight) and loaded[0].group is None
