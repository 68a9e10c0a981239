"""The worlds whose tensors are on GPUs, for the tests; ranks do not import pytest, which takes long."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.marks import needs_gpu


def _over_gpus(size: int, backend: str, gpus: int) -> Any:
    enough = pytest.mark.skipif(torch.cuda.device_count() < gpus, reason=f"fewer than {gpus} GPUs here")
    return pytest.param(size, backend, marks=[needs_gpu, enough], id=f"{backend}-{size}")


_OVER_NCCL = [_over_gpus(2, "nccl", 2), _over_gpus(2, "cpu:gloo,cuda:nccl", 2)]
OVER_GPUS = pytest.mark.parametrize(("size", "backend"), [_over_gpus(2, "gloo", 1), _over_gpus(3, "gloo", 1), *_OVER_NCCL])
"""Worlds whose tensors are on GPUs: the ranks share one, whose data travel over the hosts, or have one each."""

OVER_NCCL = pytest.mark.parametrize(("size", "backend"), _OVER_NCCL)
"""The second kind alone."""
