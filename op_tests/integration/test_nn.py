"""The layers against torch's own convolution, in f64 where gradients are compared."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
import torch.nn.functional as F

from hipconv.nn import CausalConv1d, ShortConvolution

CASES = list(itertools.product((1, 2, 4, 7), (None, "silu"), (False, True)))


def expected(layer: torch.nn.Conv1d, rows: Tensor, activation: str | None) -> Tensor:
    """Convolve (batch, dim, seqlen) by torch."""
    y = F.conv1d(rows, layer.weight, layer.bias, padding=layer.kernel_size[0] - 1, groups=layer.groups)[..., : rows.shape[-1]]
    return y if activation is None else F.silu(y)


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("width", "activation", "bias"), CASES)
def test_causal_conv1d_is_mambas_conv1d(width: int, activation: str | None, bias: bool) -> None:
    torch.manual_seed(0)
    layer = CausalConv1d(10, width, bias, activation)
    theirs = torch.nn.Conv1d(10, 10, width, groups=10, padding=width - 1, bias=bias)
    layer.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 10, 19, requires_grad=True)
    wanted = expected(theirs, x, activation)
    close(layer(x), wanted)
    gradients = torch.autograd.grad((layer(x) * torch.arange(19.0)).sum(), [x, *layer.parameters()])
    for ours, other in zip(
        gradients, torch.autograd.grad((wanted * torch.arange(19.0)).sum(), [x, *theirs.parameters()]), strict=True
    ):
        torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-3)
    with torch.no_grad():
        y, states = layer(x[..., :11], return_final_states=True)
        close(torch.cat((y, layer(x[..., 11:], initial_states=states)), -1), wanted)
        conv_state = torch.zeros(3, 10, width)
        steps = [layer.step(x[..., t], conv_state) for t in range(19)]
        close(torch.stack(steps, -1), wanted)
        assert width == 1 or torch.equal(conv_state, x[..., -width:])


@pytest.mark.parametrize(("width", "activation", "bias"), CASES)
@pytest.mark.parametrize("with_cache", [False, True])
@pytest.mark.parametrize("lengths", [[19], [5, 1, 0, 9, 2], [1, 1, 1], [2, 0, 1]], ids=str)
def test_short_convolution_of_packed_sequences(
    width: int, activation: str | None, bias: bool, with_cache: bool, lengths: list[int]
) -> None:
    torch.manual_seed(0)
    layer = ShortConvolution(6, width, bias, activation)
    x, residual = torch.randn(2, 1, sum(lengths), 6).unbind()
    x.requires_grad_()
    cache = torch.randn(len(lengths), 6, width, requires_grad=True) if with_cache else None
    before = torch.zeros(len(lengths), 6, width) if cache is None else cache
    parts = [torch.cat((before[i], part.mT), -1) for i, part in enumerate(x[0].split(lengths))]
    wanted = torch.cat([expected(layer, part[None], activation)[0, :, width:].mT for part in parts])[None] + residual
    states = torch.stack([part[:, -width:] for part in parts])

    starts = torch.tensor([0, *itertools.accumulate(lengths)])
    y, state = layer(x, residual, None, cache, True, starts)
    close(y, wanted)
    assert torch.equal(state, states)
    assert layer(x, residual, cache=cache, cu_seqlens=starts)[1] is None
    inputs = [x, *layer.parameters(), *([] if cache is None else [cache])]
    ours = torch.autograd.grad(y.square().sum() + state.square().sum(), inputs)
    for mine, theirs in zip(ours, torch.autograd.grad(wanted.square().sum() + states.square().sum(), inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)

    with torch.no_grad():
        own = None if cache is None else cache.clone()
        y, state = layer(x, residual, None, own, True, starts)
        close(y, wanted)
        assert torch.equal(state, states)
        if own is not None:  # one token a sequence: in place
            assert (
                cache is not None
                and torch.equal(own, states if len(lengths) == sum(lengths) else cache)
                and (state is own) == (len(lengths) == sum(lengths))
            )


def test_short_convolution_of_rows_and_steps() -> None:
    torch.manual_seed(0)
    layer = ShortConvolution(8, 4)
    x, mask = torch.randn(2, 21, 8), torch.ones(2, 21)
    mask[1, :5] = 0
    kept = x.clone()
    wanted = expected(layer, (x * mask[..., None]).mT, "silu").mT
    y, state = layer(x, mask=mask, output_final_state=True)
    close(y, wanted)
    assert state is not None and torch.equal(x, kept) and torch.equal(state, (x * mask[..., None])[:, -4:].mT)

    wanted = expected(layer, x.mT, "silu").mT
    with torch.no_grad():
        first, cache = layer(x[:, :2], output_final_state=True)  # shorter than the window
        assert torch.equal(cache[..., :2], torch.zeros(2, 8, 2)) and torch.equal(cache[..., 2:], x[:, :2].mT)
        ys = [first]
        for t in range(2, 21):
            y, returned = layer.step(x[:, t : t + 1], None, cache, output_final_state=True)
            assert returned is cache
            ys.append(y)
        close(torch.cat(ys, 1), wanted)
        assert cache is not None and torch.equal(cache, x[:, -4:].mT)
        chunk, _ = layer(x[:, 8:], cache=x[:, 4:8].mT.contiguous())
        close(chunk, wanted[:, 8:])


def test_a_window_of_one_token_keeps_its_cache_too() -> None:
    layer, x, cache = ShortConvolution(5, 1, activation=None), torch.randn(3, 1, 5), torch.zeros(3, 5, 1)
    with torch.no_grad():
        close(layer(x, cache=cache)[0], x * layer.weight[:, 0, 0])
    assert torch.equal(cache, x.mT)


def test_bad_arguments_are_named() -> None:
    layer: Any = ShortConvolution(8, 4)
    x = torch.zeros(2, 5, 8)
    starts = torch.tensor([0, 5])
    with pytest.raises(ValueError, match="activation: got 'gelu'"):
        ShortConvolution(8, 4, activation="gelu")
    with pytest.raises(ValueError, match="activation: got 'relu'"):
        CausalConv1d(8, activation="relu")
    with pytest.raises(ValueError, match="mask: got one beside cu_seqlens"):
        layer(x[:1], mask=torch.ones(1, 5), cu_seqlens=starts)
    with pytest.raises(ValueError, match=r"x: got shape \(2, 5, 8\), expected a batch of 1"):
        layer(x, cu_seqlens=starts)
    with pytest.raises(ValueError, match=r"cache: got shape \(2, 8, 3\), expected \(sequences, dim, width\) = \(2, 8, 4\)"):
        layer(x, cache=torch.zeros(2, 8, 3))
    for options, words in {
        "a residual to broadcast": (
            {"residual": torch.zeros(3, 2, 5, 8)},
            r"residual: got shape \(3, 2, 5, 8\), expected the shape of x",
        ),
        "a residual of integers": (
            {"residual": torch.zeros(2, 5, 8).int()},
            "residual: got dtype torch.int32, expected a floating-point",
        ),
        "a mask of no rows": ({"mask": torch.ones(0, 5)}, r"mask: got shape \(0, 5\), expected \(batch, seqlen\) = \(2, 5\)"),
        "a mask to broadcast": ({"mask": torch.ones(1, 5)}, r"mask: got shape \(1, 5\)"),
        "a cache of integers": ({"cache": torch.zeros(2, 8, 4).int()}, "cache: got dtype torch.int32"),
        "a flag": (
            {"output_final_state": x},
            r"output_final_state: got a torch.float32 tensor of shape \(2, 5, 8\), expected a bool",
        ),
        "floats as starts": (
            {"x": x[:1], "cu_seqlens": starts.float()},
            "cu_seqlens: got dtype torch.float32, expected integers",
        ),
        "many sequences": (
            {"x": x[:1], "cu_seqlens": starts[:1].expand(2**33)},
            "cu_seqlens: got 8589934591 sequences in 5 tokens",
        ),
        "starts behind the end": (
            {"x": x[:1], "cu_seqlens": starts + 7, "cache": torch.zeros(1, 8, 4)},
            "cu_seqlens: got other values",
        ),
    }.values():
        with pytest.raises((TypeError, ValueError), match=f"^{words}"):
            layer(**{"x": x} | options)
    with pytest.raises(ValueError, match=r"^x: got shape \(2, 7, 5\), expected \(batch, dim, seqlen\) with dim = 8"):
        CausalConv1d(8)(torch.zeros(2, 7, 5))
    assert "width=4" in repr(CausalConv1d(8)) and "kernel_size=4" in repr(layer) and layer.state_size == 32


BAD_STEPS: dict[str, dict[str, Any]] = {
    "residual's shape": {"residual": torch.zeros(2, 1, 7)},
    "residual to broadcast": {"residual": torch.zeros(3, 2, 1, 8)},
    "residual's kind": {"residual": "x"},
    "residual's device": {"residual": torch.zeros(2, 1, 8, device="meta")},
    "mask": {"mask": torch.ones(2, 2)},
    "x": {"x": torch.zeros(2, 1, 8, 1)},
    "cache": {"cache": torch.zeros(2, 8, 4, dtype=torch.float64)},
    "cache expanded": {"cache": torch.zeros(2, 8, 1).expand(2, 8, 4)},
}


@pytest.mark.parametrize("name", BAD_STEPS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_bad_argument_leaves_the_cache_alone(name: str, packed: bool) -> None:
    layer, cache = ShortConvolution(8, 4), torch.ones(2, 8, 4)
    arguments: dict[str, Any] = {"x": torch.zeros(2, 1, 8), "cache": cache} | BAD_STEPS[name]
    if packed:
        arguments |= {"x": arguments["x"].transpose(0, 1), "cu_seqlens": torch.arange(3)}
        if isinstance(arguments.get("residual"), torch.Tensor):
            arguments["residual"] = arguments["residual"].transpose(0, 1)
        if name == "cache":
            return  # any floats: torch copies into them
    with torch.no_grad(), pytest.raises((TypeError, ValueError), match=f"^{name.split()[0].partition(chr(39))[0]}: got"):
        layer(**arguments)
    assert (cache == 1).all()


def test_sizes_are_refused_before_they_take_memory() -> None:
    layers: dict[Any, tuple[str, str]] = {CausalConv1d: ("dim", "width"), ShortConvolution: ("hidden_size", "kernel_size")}
    for layer, (channels, taps) in layers.items():
        for name, other in ((channels, taps), (taps, channels)):
            for size in (0, -1, 2**31, 2**40):
                with pytest.raises(ValueError, match=f"^{name}: got {size}, expected 1 to 2147483647"):
                    layer(**{name: size, other: 1})
            for wrong in (2.0, "8", None, True, 2**70, torch.ones(2), [8]):
                with pytest.raises(TypeError, match=f"^{name}: got .*, expected an int of 64 bits"):
                    layer(**{name: wrong, other: 1})
        with pytest.raises(
            ValueError, match=f"^{channels}, {taps}: got 1048576 and 1048576, expected a product, .* of at most 2147483647"
        ):
            layer(1 << 20, 1 << 20)
        with pytest.raises(TypeError, match=r"^dtype: got torch\.int32"):
            layer(8, 4, dtype=torch.int32)
        with pytest.raises(ValueError, match="device: got 'gpu'"):
            layer(8, 4, device="gpu")


def test_a_mask_keeps_the_dtype_of_x() -> None:
    layer, x = ShortConvolution(8, 4).bfloat16(), torch.randn(2, 5, 8).bfloat16()
    with torch.no_grad():
        for dtype in (torch.bool, torch.int64, torch.float32, torch.float64):
            y, state = layer(x, mask=torch.ones(2, 5, dtype=dtype), output_final_state=True)
            assert y.dtype == state.dtype == x.dtype and torch.equal(y, layer(x)[0])


def test_what_a_short_convolution_looks_at_first_lets_nothing_bad_through() -> None:
    """The forward has a short form of `_check`'s conditions: every call that `_check` refuses is refused, and no other."""
    layer: Any = ShortConvolution(8, 4)
    variants: dict[str, list[Any]] = {
        "x": [torch.zeros(2, 5, 8), torch.zeros(1, 5, 8), torch.zeros(3, 1, 8), torch.zeros(2, 5, 7), torch.zeros(5, 8)],
        "residual": [
            None,
            torch.zeros(2, 5, 8),
            torch.zeros(1, 5, 8),
            torch.zeros(2, 5, 8).int(),
            torch.zeros(1, 5, 8, device="meta"),
        ],
        "mask": [None, torch.ones(2, 5), torch.ones(1, 5).bool(), torch.ones(1, 5) * 1j, torch.ones(5)],
        "cache": [None, torch.zeros(2, 8, 4), torch.zeros(1, 8, 4).double(), torch.zeros(2, 8, 3), torch.zeros(1, 8, 4).int()],
        "cu_seqlens": [
            None,
            torch.tensor([0, 5]),
            torch.tensor([0, 2, 5]).int(),
            torch.tensor([0, 5]).short(),
            torch.tensor([0.0, 5.0]),
            torch.tensor([[0, 5]]),
            torch.empty(0, dtype=torch.int),
        ],
    }
    calls = refused = 0
    for values in itertools.product(*variants.values()):
        arguments = dict(zip(variants, values, strict=True))
        try:
            layer._check(**arguments)
            wrong = None
        except (TypeError, ValueError) as error:
            wrong = error
        if wrong is None:
            layer(**arguments)
        else:
            with pytest.raises(type(wrong)) as caught:
                layer(**arguments)
            assert str(caught.value) == str(wrong), arguments
            refused += 1
        calls += 1
    assert 20 < calls - refused < refused
