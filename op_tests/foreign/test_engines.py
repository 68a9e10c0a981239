"""The grids of vLLM's and SGLang's own tests of their causal conv1d, run on `hipconv.serving`."""

from __future__ import annotations

import pytest
import torch

from foreign.engines import LARGEST, cases, variant, wrong
from support.backends import EVERYTHING

pytestmark = pytest.mark.usefixtures("one_thread")


SIMT_TOKENS = 300  # in every run; the CPU backend gets every length


@pytest.mark.parametrize(
    "form", list(dict.fromkeys((case.engine, case.form) for case in cases())), ids=lambda form: " ".join(form)
)
def test_grid(device: torch.device, form: tuple[str, str], request: pytest.FixtureRequest) -> None:
    simt = "simt" in request.node.name
    elements = LARGEST * (64 if EVERYTHING and not simt else 1) // (16 if simt else 1)
    errors, ran = [], 0
    for number, case in enumerate(cases()):
        if (case.engine, case.form) == form and not (simt and not EVERYTHING and case.tokens > SIMT_TOKENS):
            small = case if device.type == "cuda" else case.reduced(elements)
            problem = wrong(small, variant(number), device, number)
            ran += 1
            if problem:
                errors.append(f"{case} as {small}: {problem}")
    assert ran and not errors, "\n".join(errors)
