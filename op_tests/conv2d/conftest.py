"""The builds of conv2d for simt that the tests of its algorithms are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conv2d.exact import UNITS_OF_A_RUN, running_on


@pytest.fixture(scope="module", params=UNITS_OF_A_RUN)
def module(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The conv2d module for each matrix unit, while CPU tensors are sent to it."""
    with running_on(request.param) as found:
        yield found
