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
