"""The convolutions of oneDNN's own test inputs."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from conv2d.cases import Case
from foreign.benchdnn import case_of_descriptor
from foreign.problems import Numbered, Problem, case_of, for_backend, in_parts, line_of, wrong_of
from foreign.sources import ONEDNN_IN_EVERY_RUN, onednn
from support.backends import on_kernels
import hipconv

pytestmark = pytest.mark.usefixtures("one_thread")
PARTS = [(backend, part) for backend in on_kernels() for part in in_parts(for_backend(onednn(), backend, ONEDNN_IN_EVERY_RUN))]


@pytest.mark.parametrize(("backend", "part"), PARTS, ids=[f"{backend}-{part[0].number}" for backend, part in PARTS])
def test_problems(backend: str, part: list[Numbered]) -> None:
    wrong = wrong_of(part, backend)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("backend", on_kernels())
def test_one_wrong_element_is_found_and_its_problem_named(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = hipconv.conv2d

    def with_one_off(*arguments: Any, **options: Any) -> Tensor:
        out = whole(*arguments, **options)
        out.view(-1)[-1] += 1
        return out

    monkeypatch.setattr(hipconv, "conv2d", with_one_off)
    problem = Problem("shapes_mine", Case(1, 8, 5, 6, 4, 3, 2, padding=(1, 0, 1, 1)))
    wrong = wrong_of([Numbered(0, problem)], backend)
    assert len(wrong) == (2 if backend == "simt" else 1)
    assert all(line.startswith("shapes_mine 1x8x5x6 4x3x2 p1,0,1,1") and "1 of 112 off" in line for line in wrong)


def test_a_list_is_read_as_it_was_written() -> None:
    for line in ("2x8x9x7 16x3x5 s2,1 p1,2,3,4 d1,2 g4", "1x1x1x1 1x1x1", "1x6x5x5 3x2x2 s3 p2 g3"):
        assert line_of(case_of(line)) == line
    for line in ("1x6x5x5 4x2x2 g3", "1x6x5x5 3x7x7", "1x6x5x5 3x2x2 q4", "1x6x5x5 3x2x2 s1,2,3", "1x6x5 3x2x2"):
        with pytest.raises(ValueError):
            case_of(line)


def test_the_grammar_of_descriptors() -> None:
    """The cases are what the lines of its documentation and of its lists say, worked out by hand."""
    square = Case(1, 16, 10, 10, 16, 5, 5, padding=(7, 7, 7, 7))
    assert case_of_descriptor("mb1ic16oc16_ih10kh5_ph7sh1") == square
    assert case_of_descriptor('mb1_ic16oc16_ih10oh20kh5sh1dh0ph7_iw10ow20kw5sw1dw0pw7_n"a name"') == square
    # two images where none are named; the padding that gives the result's size; a result that sees less than the padding offers
    assert case_of_descriptor("ic32oc13_ih13oh12kh3ph0") == Case(2, 32, 13, 13, 13, 3, 3, padding=(0, 1, 0, 1))
    assert case_of_descriptor("ic8oc8ih7oh7kh3") == Case(2, 8, 7, 7, 8, 3, 3, padding=(1, 1, 1, 1))
    assert case_of_descriptor("g2ic8oc8iw9ow4kw3pw0") == Case(2, 8, 1, 6, 8, 1, 3, padding=(0, 0, 0, 0), groups=2)
    assert case_of_descriptor("ic8oc8ih9kh3dh1") == Case(2, 8, 9, 9, 8, 3, 3, padding=(0, 0, 0, 0), dilation=(2, 2))
    assert case_of_descriptor("ic8oc8id1ih9kd1kh3") == Case(2, 8, 9, 9, 8, 3, 3, padding=(0, 0, 0, 0))
    for other in ("ic8oc8id3kd3", "--dir=FWD_B", "ic8oc8ih2kh3", "ic8ih9kh3", "relu"):
        assert case_of_descriptor(other) is None
