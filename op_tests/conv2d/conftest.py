"""The builds of conv2d for simt, and the devices, that the tests of its algorithms are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from conv2d.exact import UNITS_OF_A_RUN, running_on
from support.backends import WAYS, device_of, environment


@pytest.fixture(scope="module", params=UNITS_OF_A_RUN)
def module(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The conv2d module for each matrix unit, while CPU tensors are sent to it."""
    with running_on(request.param) as found:
        yield found


_OF_32_LANES = ["simt-wave32-shuffled", *(["gpu"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=["simt-wave64", *_OF_32_LANES])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """One that kernels run on: simt by waves of 64 and of 32 lanes, and a GPU, if there is one."""
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


@pytest.fixture(params=_OF_32_LANES)
def nvidia(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The same with the matrix instructions of NVIDIA's cards alone."""
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)
