"""What every op test is given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from common import WAYS, device_of, environment


@pytest.fixture(params=[*WAYS, *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The device of each backend's tensors, while CPU tensors are sent to that backend."""
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For many small convolutions torch's threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
