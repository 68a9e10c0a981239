"""Modules and functions as users of torch treat them: copies, pickles, threads, forks after the first use,
spawned workers, exports.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
import copy
import io
import os
import pickle
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from support import ROOT
from support.backends import EVERYTHING, WAYS, environment
import hipconv
from hipconv import nn, serving

LAYERS: dict[str, Callable[[], Any]] = {
    "CausalConv1d": lambda: nn.CausalConv1d(6, 4, activation="silu"),
    "ShortConvolution": lambda: nn.ShortConvolution(6, 4, bias=True),
}


def output_of(layer: Any) -> Tensor:
    torch.manual_seed(1)
    if isinstance(layer, nn.CausalConv1d):
        return layer(torch.randn(2, 6, 9))
    return layer(torch.randn(2, 9, 6))[0]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("way", ["deepcopy", "copy", "pickle", "save", "state_dict"])
def test_layers_are_copied_and_kept(name: str, way: str) -> None:
    layer = LAYERS[name]()
    expected = output_of(layer)  # used once: nothing that a use leaves stands in the way
    if way == "deepcopy":
        found = copy.deepcopy(layer)
    elif way == "copy":
        found = copy.copy(layer)
    elif way == "pickle":
        found = pickle.loads(pickle.dumps(layer))
    elif way == "save":
        torch.save(layer, file := io.BytesIO())
        file.seek(0)
        found = torch.load(file, weights_only=False)
    else:
        found = LAYERS[name]()
        found.load_state_dict(layer.state_dict())
    assert torch.equal(output_of(found), expected) and repr(found) == repr(layer) and found.activation == layer.activation
    if way != "copy":
        with torch.no_grad():
            found.weight.zero_()
        assert torch.equal(output_of(layer), expected)  # it has parameters of its own
    assert torch.equal(found.cpu().float().weight, found.weight)


@pytest.mark.parametrize(
    "function",
    [hipconv.causal_conv1d, hipconv.causal_conv1d_fwd, hipconv.causal_conv1d_fn, hipconv.causal_conv1d_update, hipconv.conv2d,
     hipconv.causal_conv1d_plan, hipconv.conv2d_plan, hipconv.warmup, serving.causal_conv1d_fn, serving.causal_conv1d_update,
     serving.causal_conv1d_split_qkv, serving.causal_conv1d_update_split_qkv],
)  # fmt: skip
def test_functions_are_sent_to_other_processes_by_name(function: Callable) -> None:
    assert pickle.loads(pickle.dumps(function)) is function and copy.deepcopy(function) is function


def test_plans_and_errors_are_sent_to_other_processes() -> None:
    x, weight = torch.randn(2, 6, 9), torch.randn(6, 4)
    for plan in (hipconv.causal_conv1d_plan(x, weight), hipconv.conv2d_plan(x[:, :, None], weight[:, None, None], groups=6)):
        assert str(pickle.loads(pickle.dumps(plan))) == str(plan) and str(copy.deepcopy(plan)) == str(plan)
    for error in (
        hipconv.errors.BuildError("a compiler's text"),
        hipconv.errors.UnknownModule("typo", ["causal_conv1d", "conv2d"]),
    ):
        found = pickle.loads(pickle.dumps(error))
        assert type(found) is type(error) and str(found) == str(error)


# ---- threads and processes ---------------------------------------------------------------------------------------------------


def everything(seed: int, tokens: int = 60) -> list[Tensor]:
    """The results and gradients of a call of each family."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 64, tokens, generator=generator).requires_grad_()
    weight, bias = torch.randn(64, 4, generator=generator).requires_grad_(), torch.randn(64, generator=generator)
    out, final = hipconv.causal_conv1d_fn(x, weight, bias, return_final_states=True, activation="silu")
    gradients = torch.autograd.grad(out.sum() + final.sum(), (x, weight))
    with torch.no_grad():
        state = torch.zeros(2, 64, 3)
        starts = torch.tensor([0, tokens])
        filled = serving.causal_conv1d_fn(x[0], weight, bias, state, starts)
        step = serving.causal_conv1d_update(x[..., 0], state, weight, bias)
        image = hipconv.conv2d(x[:, :, None], weight[:, None, None], padding=(0, 0, 3, 0), groups=64)
    return [out.detach(), final.detach(), *gradients, filled, step, state, image]


def same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("way", ["cpu", *(["simt-wave64"] if EVERYTHING else [])])
def test_threads_do_not_disturb_each_other(way: str) -> None:
    with environment(**WAYS[way]):
        expected = [everything(seed) for seed in range(4)]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(everything, [seed for seed in range(4) for _ in range(4)]))
    for number, results in enumerate(found):
        assert same(results, expected[number // 4]), number


def ends_well(pid: int, seconds: float) -> int | None:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


FORK = """
import os, sys, torch
sys.path[:0] = sys.argv[1:]
from integration.test_torch_usage import ends_well, everything, same
expected = everything(5, 4000)  # by several threads, and the modules are loaded
child = os.fork()
if child == 0:
    torch.set_num_threads(1)  # as in a worker of a DataLoader: OpenMP's threads of the parent are not the child's
    os._exit(0 if same(everything(5, 4000), expected) else 3)
print(ends_well(child, 60), same(everything(5, 4000), expected))
"""


def test_a_child_forked_after_the_first_use_has_the_same_results() -> None:
    """With one thread, as torch's own functions need it too: OpenMP's runtime waits for threads that only the parent has."""
    words = [sys.executable, "-c", FORK, str(ROOT / "op_tests"), str(ROOT / "python")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    assert done.stdout == "0 True\n", done.stderr
