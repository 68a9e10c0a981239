"""ONNX's own backend tests of Conv and CausalConvWithState."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from foreign.onnx_cases import OPERATORS, OnnxCase, cases
import hipconv

INSTALLED = importlib.util.find_spec("onnx") is not None
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("case", cases() if INSTALLED else [], ids=lambda case: case.name)
def test_backend_test(case: OnnxCase, device: torch.device, request: pytest.FixtureRequest) -> None:
    if case.operator == "Conv" and "[cpu" in request.node.name:
        x = torch.empty(1, 1, 2, 2)
        assert hipconv.conv2d_plan(x, x).algorithm == "torch"  # no kernel of ours computes it there, and it does not count
    found = OPERATORS[case.operator](case, device)
    relative, absolute = case.tolerances
    for ours, theirs in zip(found, case.outputs, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(
            ours.cpu(), theirs, rtol=relative, atol=max(absolute, 1e-6 if ours.dtype == torch.float32 else 1e-3)
        )


def test_onnx_is_installed_where_everything_has_to_run() -> None:
    if not INSTALLED and os.environ.get("CI") != "true":
        pytest.skip("needs onnx: pip install -r requirements-dev.txt")
    assert INSTALLED and {case.operator for case in cases()} == set(OPERATORS)
