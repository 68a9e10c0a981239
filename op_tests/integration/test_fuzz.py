"""The fuzzer of arguments (fuzz.py) over ten thousand calls, nightly over a hundred thousand others;
and that it finds what is wrong.
"""

from __future__ import annotations

from pathlib import Path
import random
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from integration import fuzz
from integration.forms import Form
from support.backends import EVERYTHING

SHARE = 5_000  # calls of a process


@pytest.mark.parametrize("part", range(20 if EVERYTHING else 2))
def test_nothing_crashes_hangs_or_is_refused_without_a_name(part: int) -> None:
    report = fuzz.run(int(EVERYTHING), part * SHARE, (part + 1) * SHARE)
    assert not report.complaints, "\n".join(report.complaints)
    assert report.taken + report.refused == SHARE
    assert report.taken > SHARE // 5 and report.refused > SHARE // 3  # it is neither all nonsense nor all good


def test_a_case_is_what_its_number_says() -> None:
    for number in range(20):
        first, second = (fuzz.make(3, number) for _ in range(2))
        random.random()
        assert str(first) == str(second)
        for (name, a), (_, b) in zip(fuzz.tensors_of(first.arguments), fuzz.tensors_of(second.arguments), strict=True):
            assert a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype, name


# ---- what it would find ------------------------------------------------------------------------------------------------------


def writes_then_refuses(x: Tensor, out: Tensor | None = None) -> None:
    assert out is not None
    out[0] = 2
    raise ValueError("x: got something else")


def writes_its_input(x: Tensor, out: Tensor | None = None) -> None:
    x[0] = 2


def writes_beside_its_output(x: Tensor, out: Tensor | None = None) -> None:
    assert out is not None
    out.as_strided((1,), (1,), out.storage_offset() + 16).fill_(3)


def names_nothing(x: Tensor, out: Tensor | None = None) -> None:
    raise ValueError("something is wrong")


def fails(x: Tensor, out: Tensor | None = None) -> None:
    raise RuntimeError("x: got something else")


def depends_on_strides(x: Tensor, out: Tensor | None = None) -> Tensor:
    return x.T if x.stride(0) == 1 else x.clone()


def talks(x: Tensor, out: Tensor | None = None) -> None:
    raise ValueError(f"x: got {'x' * 900}")


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (writes_then_refuses, "8 bytes of out are written"),
        (writes_its_input, "bytes of x are written"),
        (writes_beside_its_output, "2 bytes of out are written"),
        (names_nothing, "no argument is named"),
        (fails, "RuntimeError"),
        (depends_on_strides, "the result is not what it is in dense memory"),
        (talks, "a message of 907 characters"),
    ],
)
def test_it_complains_about(function: Any, complaint: str) -> None:
    x = torch.arange(16.0).reshape(4, 4).T
    case = fuzz.Case("one", Form(function, {}), fuzz.Size(), {"x": x, "out": torch.ones(20)[:16].view(4, 4)}, [], "grad")
    assert complaint in (fuzz.judge(case)[1] or "")


CRASHES = """
import os, signal, sys, time
from integration import fuzz
judge = fuzz.judge
def first_crashes(case):
    number = int(open(sys.argv[sys.argv.index("--progress") + 1], "rb").read(8)[::-1].hex(), 16)
    if number == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if number == 5:
        time.sleep(1000)
    return "taken", None
fuzz.judge = first_crashes
"""


def test_a_case_that_crashes_or_hangs_is_named_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_fuzz.py").write_text(f"{CRASHES}\nraise SystemExit(fuzz.main())\n")
    start = subprocess.Popen

    def broken(words: list[str], **options: Any) -> Any:
        return start([sys.executable, str(tmp_path / "broken_fuzz.py"), *words[3:]], **options)

    monkeypatch.setattr(fuzz.subprocess, "Popen", broken)
    monkeypatch.setattr(fuzz, "PATIENCE", 5.0)
    monkeypatch.setattr(fuzz, "MOST_TO_START", 20.0)
    report = fuzz.run(0, 0, 8)
    assert report.taken == 6 and [text.partition(":")[0] for text in report.complaints] == ["case 3", "case 5"]
    assert "ends the process with -11" in report.complaints[0] and "hangs" in report.complaints[1]
    assert "first_crashes" in report.complaints[1]  # where it was
