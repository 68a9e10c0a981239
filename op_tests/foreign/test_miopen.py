"""The convolutions of MIOpen's own tests, and those that AMD's users quoted in issues."""

from __future__ import annotations

import pytest

from conv2d.cases import Case
from foreign.miopen import cases_of
from foreign.problems import Numbered, for_backend, in_parts, wrong_of
from foreign.sources import amd_issues, miopen
from support.backends import on_kernels

pytestmark = pytest.mark.usefixtures("one_thread")
PARTS = [(backend, part) for backend in on_kernels() for part in in_parts(for_backend(miopen(), backend, len(miopen())))]


@pytest.mark.parametrize(("backend", "part"), PARTS, ids=[f"{backend}-{part[0].number}" for backend, part in PARTS])
def test_problems(backend: str, part: list[Numbered]) -> None:
    wrong = wrong_of(part, backend)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("backend", on_kernels())
@pytest.mark.parametrize("name", amd_issues())
def test_issue(name: str, backend: str) -> None:
    wrong = wrong_of([Numbered(list(amd_issues()).index(name), amd_issues()[name])], backend)
    assert not wrong, "\n".join(wrong)


def test_the_forms_of_its_tests() -> None:
    """A line of each form, and what it says."""
    arguments = 'v + "\t--input\t4\t32\t79 341 --weights 8 16 5 10 --pads_strides_dilations 0 1 2 3 1 2 --group-count 2"'
    expected = Case(4, 32, 79, 341, 8, 5, 10, (2, 3), (0, 0, 1, 1), (1, 2), 2)
    assert list(cases_of(arguments)) == [expected]
    assert list(cases_of("TestCase{{1, 16, 14, 14}, {48, 16, 5, 5}, {2, 2}, {1, 1}, {1, 1}, datatype},")) == [
        Case(1, 16, 14, 14, 48, 5, 5, (1, 1), (2, 2, 2, 2), (1, 1))
    ]
    assert list(cases_of("{64, 3, 224, 224, 64, 7, 7, 3, 3, 2, 2, 1, 1, miopenConvolution}")) == [
        Case(64, 3, 224, 224, 64, 7, 7, (2, 2), (3, 3, 3, 3), (1, 1))
    ]
    assert list(cases_of("{4 , 256, 192 , 96 , {28, 27}, {3, 1}, {1, 0}, {1, 2}, {1, 1}},")) == [
        Case(256, 192, 28, 27, 96, 3, 1, (1, 2), (1, 1, 0, 0), (1, 1), 4)
    ]
