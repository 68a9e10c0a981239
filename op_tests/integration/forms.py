"""Good calls of every public function, by form: what makes each argument, for tests that then spoil one."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import functools
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from support.backends import use_backend
import hipconv
from hipconv import nn, serving
from hipconv.drop_in import causal_conv1d_cuda, causal_conv1d_interface, causal_conv1d_varlen, cpp_functions

randn, zeros = torch.randn, torch.zeros


def ints(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


Arguments = dict[str, Any]
hip: Any = hipconv  # whatever the annotations say
extension: Any = causal_conv1d_cuda


class Form:
    """A function, and what makes arguments that it takes."""

    def __init__(
        self,
        function: Callable,
        make: Arguments,
        *,
        behind: Callable | None = None,  # the function behind one that takes its arguments by position
        takes: str = "",  # the argument for which any tensor will do, such as one that is not needed
        grad: bool = True,
        backend: str = "cpu",
    ) -> None:
        self.function, self.make, self.by_position, self.takes, self.grad, self.backend = (
            function,
            make,
            bool(behind),
            takes,
            grad,
            backend,
        )
        annotated: Any = behind or (function.__init__ if inspect.isclass(function) else function)  # type: ignore[misc]
        self.kinds: dict[str, str] = annotated.__annotations__

    def arguments(self) -> Arguments:
        return {name: make() for name, make in self.make.items()}

    def call(self, arguments: Arguments) -> Any:
        with use_backend(self.backend), contextlib.nullcontext() if self.grad else torch.no_grad():
            if self.by_position:
                return self.function(*(arguments[name] for name in self.kinds if name != "return"))
            return self.function(**arguments)


def no() -> None:
    return None


def only(names: Callable, arguments: Arguments) -> Arguments:
    """Those that a function has."""
    return {name: make for name, make in arguments.items() if name in names.__annotations__}


class Size(NamedTuple):
    """The sizes of the arguments of one-dimensional calls; of conv2d's, `dim` is twice the channels of a group."""

    batch: int = 2
    dim: int = 8
    seqlen: int = 16
    width: int = 4


SIZE = Size()

# A call may write these; a form without any of them writes nothing.
WRITTEN = {
    "out",
    "final_states_out",
    "dx",
    "dweight",
    "dbias",
    "dinitial_states",
    "conv_state",
    "conv_states",
    "intermediate_conv_window",
    "retrieve_parent_token",
    "cache",
    "z_out",
    "core_attn_out",
}


@functools.cache
def _layers(dim: int, width: int) -> tuple[nn.CausalConv1d, nn.ShortConvolution]:
    with torch.random.fork_rng(devices=[]):  # whoever asks first
        torch.default_generator.manual_seed(0)
        return nn.CausalConv1d(dim, width, activation="silu"), nn.ShortConvolution(dim, width)


def forms(size: Size = SIZE) -> dict[str, Form]:
    """Every public function in every form of its arguments, by name."""
    batch, dim, seqlen, width = size
    past, tokens = width - 1, 2
    k_dim = 3 * dim // 8
    v_dim = dim - 2 * k_dim
    slots = 2 * batch + 1

    def state() -> Tensor:
        return randn(batch, dim, past)

    def per_row(value: int) -> Callable[[], Tensor]:
        return lambda: torch.full((batch,), value, dtype=torch.int32)

    def table() -> Tensor:
        return torch.arange(2 * batch, dtype=torch.int32).reshape(batch, 2)

    def starts() -> Tensor:
        return ints([seqlen * row // max(batch, 1) for row in range(batch + 1)])

    def links(value: int) -> Callable[[], Tensor]:
        return lambda: torch.full((batch, tokens), value, dtype=torch.int32)

    rows: Arguments = {"x": lambda: randn(batch, dim, seqlen), "weight": lambda: randn(dim, width), "bias": lambda: randn(dim)}
    states: Arguments = {"seq_idx": lambda: zeros(batch, seqlen, dtype=torch.int32), "initial_states": state}
    final: Arguments = {"final_states_out": state}
    names: Arguments = {"activation": lambda: "silu", "kernel": lambda: "auto"}
    silu: Arguments = {"silu_activation": lambda: True}
    out: Arguments = {"out": rows["x"]}
    fn: Arguments = rows | states | final | {"return_final_states": lambda: True, "activation": lambda: "silu"}
    without: Arguments = {"seq_idx": no, "initial_states": no, "return_final_states": lambda: False}
    backward: Arguments = rows | states | silu | {"dout": rows["x"], "dfinal_states": state, "dx": rows["x"]}
    gradients: Arguments = {"dweight": rows["weight"], "dbias": rows["bias"], "dinitial_states": state}
    step: Arguments = rows | {
        "x": lambda: randn(batch, dim), "conv_state": lambda: randn(batch, dim, width), "activation": lambda: "silu",
        "cache_seqlens": lambda: torch.arange(batch, dtype=torch.int32),
        "conv_state_indices": lambda: torch.arange(batch, dtype=torch.int32).flip(0),
    }  # fmt: skip
    lengths: Arguments = {"x": lambda: randn(seqlen, dim), "cu_seqlens": starts, "state_len": lambda: past}

    blocks: Arguments = {"block_idx_last_scheduled_token": per_row(0), "initial_state_idx": per_row(0)}
    choices: Arguments = names | {"pad_slot_id": lambda: -1, "null_block_id": no, "validate_data": lambda: False}
    validated: Arguments = {"validate_data": lambda: True, "out": no}
    varlen: Arguments = rows | blocks | choices | {
        "x": lambda: randn(dim, seqlen), "conv_states": lambda: randn(slots, dim, width), "query_start_loc": starts,
        "cache_indices": table, "has_initial_state": lambda: torch.arange(batch) % 2 == 0,
        "block_idx_first_scheduled_token": per_row(0), "num_computed_tokens": per_row(0), "block_size_to_align": lambda: 64,
        "cache_indices_in": table, "out": lambda: randn(dim, seqlen), "block_m": no, "block_n": no, "num_warps": no,
    }  # fmt: skip
    split = (k_dim, k_dim, v_dim)
    parts: Arguments = {"k_dim": lambda: k_dim, "v_dim": lambda: v_dim, "out": lambda: tuple(randn(seqlen, n) for n in split)}
    decode: Arguments = (
        rows
        | blocks
        | choices
        | {
            "x": lambda: randn(batch, dim, tokens),
            "conv_state": lambda: randn(slots, dim, past + tokens),
            "conv_state_indices": table,
            "conv_state_indices_in": table,
            "max_query_len": lambda: -1,
            "out": lambda: randn(batch, dim, tokens),
            "intermediate_conv_window": lambda: randn(batch, tokens, dim, past),
            "intermediate_state_indices": lambda: torch.arange(batch, dtype=torch.int32),
            "retrieve_next_token": links(-1),
            "retrieve_next_sibling": links(-1),
            "retrieve_parent_token": links(0),
        }
    )
    packed: Arguments = {name: make for name, make in decode.items() if not name.startswith("retrieve")} | parts
    packed |= {
        "x": lambda: randn(seqlen, dim), "num_accepted_tokens": per_row(1),
        "query_start_loc": lambda: torch.arange(batch + 1, dtype=torch.int32).clamp(max=seqlen),
    }  # fmt: skip

    gated: Arguments = (
        rows
        | blocks
        | {
            "x": lambda: randn(batch, dim + v_dim),
            "ba": lambda: randn(batch, 2),
            "z_out": lambda: randn(batch + 1, 1, v_dim),
            "core_attn_out": lambda: randn(batch + 1, 1, v_dim),
            "conv_state": lambda: randn(slots, dim, past),
            "num_actual_tokens": lambda: batch,
            "num_k_heads": lambda: 1,
            "num_v_heads": lambda: 1,
            "head_k_dim": lambda: k_dim,
            "head_v_dim": lambda: v_dim,
            "qkvz_layout": lambda: "interleaved",
            "activation": lambda: "silu",
            "conv_state_indices": table,
            "num_accepted_tokens": no,
            "query_start_loc": no,
            "max_query_len": lambda: -1,
            "pad_slot_id": lambda: -1,
            "validate_data": lambda: False,
        }
    )

    channels = max(1, dim // 2)
    images: Arguments = {
        "x": lambda: randn(batch, 2 * channels, 8, 9), "weight": lambda: randn(4, channels, 3, 3), "bias": lambda: randn(4),
        "stride": lambda: 1, "padding": lambda: 1, "dilation": lambda: 1, "groups": lambda: 2, "activation": lambda: "relu",
        "residual": lambda: randn(batch, 4, 8, 9), "out_dtype": lambda: torch.float32, "padding_mode": lambda: "zeros",
        "algorithm": lambda: "auto", "out": lambda: randn(batch, 4, 8, 9), "workspace_limit": lambda: 1 << 20,
        "float32_precision": lambda: "ieee",
    }  # fmt: skip
    image: Arguments = images | {"x": lambda: randn(2 * channels, 8, 9), "residual": lambda: randn(4, 8, 9), "out": no}

    parameters: Arguments = {
        "bias": lambda: True,
        "activation": lambda: "silu",
        "device": lambda: "meta",
        "dtype": lambda: torch.float32,
    }
    sized: Arguments = {
        "x": lambda: randn(batch, seqlen, dim),
        "residual": lambda: randn(batch, seqlen, dim),
        "mask": lambda: torch.ones(batch, seqlen),
        "cache": lambda: randn(batch, dim, width),
        "output_final_state": lambda: True,
        "cu_seqlens": no,
    }
    one: Arguments = sized | {
        "x": lambda: randn(batch, 1, dim), "residual": lambda: randn(batch, 1, dim), "mask": lambda: torch.ones(batch, 1)
    }  # fmt: skip
    sequences: Arguments = sized | {
        "x": lambda: randn(1, batch, dim), "residual": lambda: randn(1, batch, dim), "mask": no,
        "cu_seqlens": lambda: torch.arange(batch + 1, dtype=torch.int32),
    }  # fmt: skip
    causal, short = _layers(max(dim, 1), width)
    interface, varlen_states = causal_conv1d_interface, causal_conv1d_varlen
    return {
        "causal_conv1d_fwd": Form(hip.causal_conv1d_fwd, rows | out | {"use_silu": lambda: True, "kernel": lambda: "auto"}),
        "causal_conv1d": Form(hip.causal_conv1d, rows | names),
        "causal_conv1d_plan": Form(hip.causal_conv1d_plan, rows | names | out | {"target": lambda: "cpu"}),
        "causal_conv1d_fn": Form(hip.causal_conv1d_fn, fn),
        "causal_conv1d_fn of rows": Form(hip.causal_conv1d_fn, fn | without, takes="final_states_out"),
        "causal_conv1d_fn with gradients": Form(
            hip.causal_conv1d_fn, fn | {"weight": lambda: randn(dim, width, requires_grad=True), "final_states_out": no}
        ),
        "causal_conv1d_ref": Form(interface.causal_conv1d_ref, fn),
        "causal_conv1d_update": Form(hip.causal_conv1d_update, step),
        "causal_conv1d_update_ref": Form(interface.causal_conv1d_update_ref, only(interface.causal_conv1d_update_ref, step)),
        "causal_conv1d_update_ref, shifted": Form(
            interface.causal_conv1d_update_ref, only(interface.causal_conv1d_update_ref, step) | {"cache_seqlens": no}
        ),
        "causal_conv1d_fwd_function": Form(cpp_functions.causal_conv1d_fwd_function, rows | states | final | silu),
        "causal_conv1d_bwd_function": Form(
            cpp_functions.causal_conv1d_bwd_function, backward | {"return_dinitial_states": lambda: True}
        ),
        "causal_conv1d_update_function": Form(
            cpp_functions.causal_conv1d_update_function, only(cpp_functions.causal_conv1d_update_function, step | silu)
        ),
        "causal_conv1d_cuda.causal_conv1d_fwd": Form(
            extension.causal_conv1d_fwd, rows | states | final | silu | out, behind=extension._fwd_into
        ),
        "causal_conv1d_cuda.causal_conv1d_bwd": Form(
            extension.causal_conv1d_bwd, backward | gradients, behind=extension._bwd_into
        ),
        "causal_conv1d_cuda.causal_conv1d_update": Form(
            extension.causal_conv1d_update,
            only(extension._update_into, step | silu | {"out": lambda: randn(batch, dim)}),
            behind=extension._update_into,
        ),
        "causal_conv1d_varlen_states": Form(varlen_states.causal_conv1d_varlen_states, lengths, takes="x"),
        "causal_conv1d_varlen_states_ref": Form(varlen_states.causal_conv1d_varlen_states_ref, lengths, takes="x"),
        "serving.causal_conv1d_fn": Form(serving.causal_conv1d_fn, varlen),
        "serving.causal_conv1d_fn, validated": Form(serving.causal_conv1d_fn, varlen | validated),
        "serving.causal_conv1d_split_qkv": Form(serving.causal_conv1d_split_qkv, varlen | parts),
        "serving.causal_conv1d_update": Form(serving.causal_conv1d_update, decode),
        "serving.causal_conv1d_update, validated": Form(serving.causal_conv1d_update, decode | validated),
        "serving.causal_conv1d_update_split_qkv": Form(serving.causal_conv1d_update_split_qkv, packed),
        "serving.fused_reshape_causal_conv1d_update_single_token": Form(
            serving.fused_reshape_causal_conv1d_update_single_token, gated
        ),
        "conv2d": Form(hip.conv2d, images),
        "conv2d of an image, by kernels": Form(hip.conv2d, image, backend="simt"),
        "conv2d_plan": Form(hip.conv2d_plan, images | {"target": lambda: "cpu"}),
        "conv2d_plan for simt": Form(hip.conv2d_plan, images | {"target": lambda: "wave64"}),
        "prepack_conv2d": Form(
            hip.prepack_conv2d,
            {"weight": lambda: randn(4, channels, 3, 3).bfloat16(), "algorithm": lambda: ["winograd_f2"]},
            backend="simt",
        ),
        "warmup": Form(hip.warmup, {"modules": lambda: ["causal_conv1d"]}),
        "CausalConv1d()": Form(nn.CausalConv1d, parameters | {"dim": lambda: dim, "width": lambda: width}),
        "CausalConv1d": Form(causal.forward, only(causal.forward, fn), grad=False),
        "CausalConv1d.step": Form(causal.step, only(causal.step, step), grad=False),
        "ShortConvolution()": Form(
            nn.ShortConvolution, parameters | {"hidden_size": lambda: dim, "kernel_size": lambda: width}
        ),
        "ShortConvolution": Form(short.forward, sized),
        "ShortConvolution, a token a row": Form(short.forward, one, grad=False),
        "ShortConvolution, a token a sequence": Form(short.forward, sequences, grad=False),
    }
