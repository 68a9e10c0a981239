"""Forward, backward, prefill and decode with every tensor between two pages that may not be touched: a byte too far ends the
process.

The calls run in a process of their own, which is main below as a command: a line before each call, so that the last one tells
which it was.

python op_tests/test_guard_pages.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
import ctypes
import faulthandler
import functools
import mmap
from pathlib import Path
import random
import subprocess
import sys
from typing import Any

import torch
from torch import Tensor
import torch.nn.functional as F

from conv1d import backward_cases as backward
from conv1d.cases import random_rows
from serving.decode_cases import kernels as update_kernels
from serving.decode_cases import make_state, make_weights, random_call
from serving.prefill_cases import CPU, STATE_LAYOUTS, Case, cached_call, in_place_kernels, kernel_names
from support.backends import WAYS, environment
from support.tensors import DTYPES, LAYOUTS
import hipconv
from hipconv import jit, serving, targets

PAGE = mmap.PAGESIZE
CALLS = 60  # random ones of each op, on each way to run them, at each end of the memory
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def guarded(t: Any, at_end: bool) -> Any:
    """A tensor's values, shape and strides in memory that ends, or else begins, at a page that may not be touched."""
    if not isinstance(t, Tensor) or t.numel() == 0:
        return t
    span = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    pages = -(-span * t.element_size() // PAGE)
    memory = mmap.mmap(-1, (pages + 2) * PAGE)  # freed with the tensor
    begin = (pages + 1) * PAGE - span * t.element_size() if at_end else PAGE
    copy = torch.frombuffer(memory, dtype=t.dtype, count=span, offset=begin).as_strided(t.shape, t.stride()).copy_(t)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, pages + 1):
        assert _mprotect(address + page * PAGE, PAGE, 0) == 0, ctypes.get_errno()
    return copy


def tight(t: Any, at_end: bool) -> Any:
    """The same in memory of its own, of which AddressSanitizer knows the last byte; the first one is not where a vector begins
    unless `at_end`, and what is before it may not be touched either, but for what is in the same eight bytes.
    """
    if not isinstance(t, Tensor) or t.numel() == 0:
        return t
    span = 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    before = 0 if at_end else (8 + t.element_size() * (span % 4)) // t.element_size()
    memory = torch.empty(before + span, dtype=t.dtype)  # malloc's: 64 bytes divide its address
    copy = memory.as_strided(t.shape, t.stride(), before).copy_(t)
    poison = ctypes.CDLL(None).__asan_poison_memory_region
    poison.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    poison(memory.data_ptr(), before * t.element_size() // 8 * 8)  # until it is freed
    return copy


# ---- calls -------------------------------------------------------------------------------------------------------------------


def forward_kernels() -> list[str]:
    return jit.module("causal_conv1d", targets.of(CPU)).causal_conv1d_fwd_kernels()


def forward_forms(draw: random.Random, guard: Callable[[Any], Any]) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Rows one after another or apart, of x and of out, in both layouts; plain ones, and with states and sequence ids."""
    dtype, width = draw.choice(list(DTYPES.values())), draw.choice([1, 2, 3, 4, 4, 5, 6, 7, 8, 9])
    batch, dim, seqlen = (
        draw.randint(1, 3),
        draw.choice([1, 2, 3, 8, 16, 33]),
        draw.choice([*range(1, 20), 24, 40, 64, 129, 264]),
    )

    def rows() -> Tensor:
        inner, outer = (seqlen, dim) if channel_first else (dim, seqlen)
        wide = torch.randn(batch, outer, inner + pitch).to(dtype)[..., pitch:]
        wide = wide if pitch else wide.contiguous()
        return guard(wide if channel_first else wide.transpose(1, 2))

    channel_first, pitch = draw.random() < 0.6, draw.choice([0, 0, 0, 1, 3, 8])
    x = rows()
    pitch = draw.choice([pitch, pitch, 2])
    out = rows()
    weight, bias = guard(torch.randn(dim, width)), guard(torch.randn(dim))
    ids = guard((torch.arange(seqlen) // draw.choice([1, 3, 50])).int().expand(batch, -1).contiguous())
    state, final = (guard(torch.randn(batch, dim, width - 1).to(dtype)) for _ in range(2))
    what = f"x {tuple(x.shape)}, {x.stride()}, out {out.stride()}, {dtype}, width {width}"

    def with_states(kernel: str, ids: Any, state: Any) -> None:
        with environment(HIPCONV_CONV1D_KERNEL=kernel):
            torch.ops.hipconv.causal_conv1d_states_fwd(out, final, x, weight, bias, ids, state, True)

    for kernel in forward_kernels():
        yield kernel, f"plain, {what}", functools.partial(hipconv.causal_conv1d_fwd, out, x, weight, bias, True, kernel=kernel)
        for rest in ((ids, state), (ids, None), (None, state)):
            yield kernel, f"states and ids, {what}", functools.partial(with_states, kernel, *rest)


def rows_forms(draw: random.Random, guard: Callable[[Any], Any]) -> Iterator[tuple[str, str, Callable[[], object]]]:
    arguments = {name: guard(value) for name, value in random_rows(draw, CPU)[0].items()}
    what = ", ".join(f"{name} {tuple(t.shape)} {t.stride()}" for name, t in arguments.items() if isinstance(t, Tensor))
    yield "by itself", what, functools.partial(torch.ops.hipconv.causal_conv1d_states_fwd.default, **arguments)


def prefill_call(draw: random.Random) -> dict[str, Any]:
    """Arguments of `causal_conv1d_fn`: what models have, every other time, or else shapes, types,
    layouts and strides at random.
    """
    lengths = [draw.choice([0, 1, 1, 2, 3, 5, 8, 17, 40, 150]) for _ in range(draw.randint(1, 6))]
    dtype = draw.choice(list(DTYPES.values()))
    if common := draw.random() < 0.5:
        sizes: dict[str, Any] = {"dim": draw.choice([8, 16, 72, 136, 264]), "state_dtype": dtype, "weight_dtype": dtype}
    else:
        sizes = {"dim": draw.choice([1, 3, 8, 16, 33, 72, 136]), "width": draw.choice([1, 2, 3, 4, 4, 5, 6, 9])}
        sizes |= {name: draw.choice([dtype, torch.float32]) for name in ("state_dtype", "weight_dtype")}
        sizes["layout"] = draw.choice(LAYOUTS)
    if draw.random() < 0.3:
        computed = [draw.choice([0, 3, 16, 31]) for _ in lengths]
        arguments = cached_call(CPU, computed, lengths, draw.choice([1, 7, 16]), dtype=dtype, **sizes)
    else:
        sizes |= {
            "state_layout": draw.choice(STATE_LAYOUTS),
            "spare_columns": draw.choice([0, 0, 1]),
            "dead_tokens": draw.choice([0, 3]),
        }
        arguments = Case(lengths, dtype=dtype, **sizes).inputs(CPU, draw.randrange(100))
    for name in () if common else ("x", "weight", "bias", "conv_states", "query_start_loc", "cache_indices"):
        if draw.random() < 0.2:
            arguments[name] = arguments[name].repeat_interleave(3, -1)[..., ::3]
        elif draw.random() < 0.1:
            turned = arguments[name].transpose(0, -1)
            arguments[name] = F.pad(turned, (0, 5))[..., : turned.shape[-1]].transpose(0, -1)
    return arguments | {"block_m": draw.choice([0, 4, 16, 64]), "block_n": draw.choice([0, 16])}


def prefill_forms(draw: random.Random, guard: Callable[[Any], Any]) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """One call's forms: kernel, what it is, and the call itself."""
    arguments = {name: guard(value) for name, value in prefill_call(draw).items()}
    x, weight = arguments["x"], arguments["weight"]
    what = f"x {tuple(x.shape)}, {x.stride()}, width {weight.shape[1]}, starts {arguments['query_start_loc'].tolist()}"
    out = guard(torch.zeros_like(x))
    k_dim = draw.randint(0, x.shape[0] // 2)
    v_dim = x.shape[0] - 2 * k_dim
    q, k, v = (guard(torch.zeros(x.shape[1], size, dtype=x.dtype)) for size in (k_dim, k_dim, v_dim))
    split = functools.partial(serving.causal_conv1d_split_qkv, **arguments, k_dim=k_dim, v_dim=v_dim, out=(q, k, v))
    for kernel in kernel_names(CPU):
        yield kernel, f"new, {what}", functools.partial(serving.causal_conv1d_fn, **arguments, out=out, kernel=kernel)
        yield kernel, f"split {k_dim}, {what}", functools.partial(split, kernel=kernel)
    for kernel in [*kernel_names(CPU), *in_place_kernels(CPU)]:
        yield kernel, f"in place, {what}", functools.partial(serving.causal_conv1d_fn, **arguments, out=x, kernel=kernel)


def decode_call(draw: random.Random) -> tuple[tuple, dict]:
    """Models have these: rows of one token or a few, speculative ones too, in both state layouts."""
    dim, dtype, rows, tokens = (
        draw.choice([8, 72, 136, 264]),
        draw.choice(list(DTYPES.values())),
        draw.randint(1, 5),
        draw.randint(1, 4),
    )
    options: dict[str, Any] = {"conv_state_indices": torch.randperm(rows + 2)[:rows].int()}
    columns = draw.choice([3, 3, 4])
    if draw.random() < 0.5:
        x = torch.randn(rows, dim)
    elif draw.random() < 0.5:
        x = torch.randn(rows, dim, tokens)
    else:
        x = torch.randn(rows * tokens, dim)
        options["query_start_loc"] = torch.arange(0, rows * tokens + 1, tokens).int()
        if draw.random() < 0.5:
            columns = 2 + tokens + draw.randint(0, 1)
            options["num_accepted_tokens"] = torch.randint(1, columns - 1, (rows,)).int()
    state = make_state(draw.choice(["N,D,S", "N,S,D"]), rows + 2, dim, columns, dtype, CPU)
    return (x.to(dtype), state, *make_weights(dim, 4, dtype, CPU), True), options


def decode_forms(draw: random.Random, guard: Callable[[Any], Any]) -> Iterator[tuple[str, str, Callable[[], object]]]:
    arguments, options = draw.choice([decode_call(draw), random_call(draw, CPU)])
    x, state, weight, bias, silu = (guard(value) for value in arguments)
    options = {name: guard(value) for name, value in options.items()}
    what = f"x {tuple(x.shape)}, {x.stride()}, state {tuple(state.shape)}, {state.stride()}, width {weight.shape[1]}"
    what += f", {', '.join(options)}"
    out = guard(torch.zeros_like(x))
    k_dim, tokens = draw.randint(0, x.shape[1] // 2), x.numel() // x.shape[1]
    v_dim = x.shape[1] - 2 * k_dim
    q, k, v = (guard(torch.zeros(tokens, size, dtype=x.dtype)) for size in (k_dim, k_dim, v_dim))
    for kernel in update_kernels(CPU):
        call = functools.partial(serving.causal_conv1d_update, x, state, weight, bias, silu, kernel=kernel, **options)
        yield kernel, f"new, {what}", functools.partial(call, out=out)
        yield (
            kernel,
            f"split {k_dim}, {what}",
            functools.partial(
                serving.causal_conv1d_update_split_qkv,
                x,
                state,
                weight,
                k_dim,
                v_dim,
                bias,
                silu,
                out=(q, k, v),
                kernel=kernel,
                **options,
            ),
        )
        yield kernel, f"in place, {what}", functools.partial(call, out=x)


def backward_forms(draw: random.Random, guard: Callable[[Any], Any]) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Tensors whose rows lie apart by as much each, or not."""
    sizes = draw.randint(1, 3), draw.choice([1, 3, 8, 8, 16, 24]), draw.choice([1, 2, 3, 5, 7, 8, 15, 17, 33, 64, 100, 259])
    width = draw.choice([2, 3, 4] if draw.random() < 0.75 else [1, 5, 6, 7, 8, 9])
    dtype, layout = draw.choice(list(DTYPES.values())), draw.choice(LAYOUTS)
    contents = [draw.random() < 0.2 for _ in range(3)]
    case = backward.Case(
        *sizes, width, dtype, draw.choice([dtype, torch.float32]), True, draw.random() < 0.7, layout, *contents
    )

    def spread(t: Any) -> Any:
        more = draw.choice([0, 0, 1, 2, 8])
        if not isinstance(t, Tensor) or t.dim() < 3 or more == 0:
            return t
        rows = t if layout == "channel_first" else t.mT
        rows = F.pad(rows, (0, more))[..., : rows.shape[-1]]
        return rows if layout == "channel_first" else rows.mT

    inputs = backward.Inputs(*(guard(spread(value)) for value in case.inputs(CPU, draw.randrange(100))))
    dx = guard(spread(torch.zeros_like(inputs.x)))
    what = f"{case}, x {inputs.x.stride()}, dout {inputs.dout.stride()}, dx {dx.stride()}"
    for kernel in backward.kernels_of(CPU):
        yield kernel, what, functools.partial(inputs.gradients, kernel, dx)


def mixed_forms(draw: random.Random, guard: Callable[[Any], Any]) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Forward and backward, packed and plain, on the CPU: x, out, dout and dx each in another order of memory."""
    batch, dim, tokens = draw.randint(1, 3), draw.choice([1, 3, 16, 17, 40, 130]), draw.choice([1, 2, 5, 16, 33, 70, 530])
    width, dtype, has_state = draw.choice([1, 2, 3, 4, 5, 8, 9, 20]), draw.choice(list(DTYPES.values())), draw.random() < 0.5
    orders = [
        (dim * tokens, tokens, 1),
        (dim * tokens, 1, dim),
        (2 * dim * tokens, 2 * tokens, 2),
        (3 * dim * tokens, 3, 3 * dim),
    ]

    def rows() -> Tensor:
        strides = draw.choice([*orders, (1, batch, batch * dim)])
        span = 1 + sum((size - 1) * stride for size, stride in zip((batch, dim, tokens), strides, strict=True))
        return guard(torch.randn(span).to(dtype).as_strided((batch, dim, tokens), strides))

    x, out, dout, dx, weight, bias = rows(), rows(), rows(), rows(), guard(torch.randn(dim, width)), guard(torch.randn(dim))
    ids = guard(torch.randint(-1, 4, (batch, tokens), dtype=torch.int32).sort(1)[0]) if draw.random() < 0.5 else None
    state = guard(torch.randn(batch, dim, width - 1).to(dtype)) if has_state and width > 1 else None
    what = f"{tuple(x.shape)}, {[t.stride() for t in (x, out, dout, dx)]}, width {width}, {dtype}"
    what += f", ids {ids is not None}, state {has_state}"
    rows_fn: Any = hipconv.causal_conv1d_fn
    yield "auto", f"plain, {what}", functools.partial(torch.ops.hipconv.causal_conv1d_fwd, out, x, weight, bias, True)
    yield "auto", f"packed, {what}", functools.partial(rows_fn, x, weight, bias, seq_idx=ids, initial_states=state)
    backward_out = torch.ops.hipconv.causal_conv1d_bwd_out
    yield (
        "auto",
        f"backward, {what}",
        functools.partial(backward_out, dx, x, weight, bias, dout, ids, state, state, state is not None, True),
    )


NAMES: dict[str, Callable[[], list[str]]] = {
    "forward": forward_kernels,
    "rows": lambda: ["by itself"],
    "prefill": lambda: kernel_names(CPU) + in_place_kernels(CPU),
    "decode": lambda: update_kernels(CPU),
    "backward": lambda: backward.kernels_of(CPU),
    "mixed": lambda: ["auto"],
}
FORMS: dict[str, Callable[..., Iterator[tuple[str, str, Callable[[], object]]]]] = {
    "forward": forward_forms,
    "rows": rows_forms,
    "prefill": prefill_forms,
    "decode": decode_forms,
    "backward": backward_forms,
    "mixed": mixed_forms,
}


def main(
    ways: Sequence[str] = ("cpu", "simt-wave64", "simt-wave32-shuffled"),
    ops: Sequence[str] = tuple(FORMS),
    place: Callable[..., Any] = guarded,
) -> None:
    faulthandler.enable()
    served: Counter[str] = Counter()
    for way in ways:
        with environment(**WAYS[way]):
            of_way = [op for op in ops if op != "mixed" or way == "cpu"]
            names = [f"{op} {name}" for op in of_way for name in NAMES[op]()]
            for seed in range(2 * CALLS):
                torch.manual_seed(seed)
                guard = functools.partial(place, at_end=seed % 2 == 0)
                for op in of_way:
                    for kernel, what, call in FORMS[op](random.Random(seed), guard):
                        print(f"{way}, seed {seed}, {op} {kernel}, {what}", flush=True)
                        try:
                            call()
                            served[f"{way} {op} {kernel}"] += 1
                        except ValueError as refusal:
                            assert "which serves" in str(refusal), refusal
        for name in names:
            assert served[f"{way} {name}"] >= CALLS // 3, f"hardly a call for {name}: {served}"
    print(f"{served.total()} calls")


# ---- tests -------------------------------------------------------------------------------------------------------------------


def test_what_is_next_to_a_guarded_tensor_may_not_be_touched(tmp_path: Path) -> None:
    """Asked of the system, which refuses where a kernel would end the process."""
    write = ctypes.CDLL(None).write
    write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    with (tmp_path / "bytes").open("wb") as file:
        for at_end, outside in ((True, 12), (False, -1)):
            t = guarded(torch.ones(5)[::2], at_end)
            assert t.tolist() == [1, 1, 1] and t.stride() == (2,)
            t = guarded(torch.ones(3), at_end)
            assert write(file.fileno(), t.data_ptr(), 12) == 12
            assert write(file.fileno(), t.data_ptr() + outside, 1) == -1


def test_no_kernel_reads_or_writes_outside_of_its_tensors() -> None:
    command, place = [sys.executable, "-c", "from serving.test_guard_pages import main; main()"], Path(__file__).parent.parent
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit status {done.returncode} at {done.stdout.splitlines()[-1:]}\n{done.stderr[-2000:]}"
