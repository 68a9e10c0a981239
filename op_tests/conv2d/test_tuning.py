"""`python -m hipconv tune`: the sweep, the file that keeps what it measured, and its effect. Times are made up here."""

from __future__ import annotations

from collections.abc import Iterator
import io
import json
import os
from pathlib import Path
import sys
from types import SimpleNamespace
from typing import Any
import warnings

import pytest
import torch
import torch.nn.functional as F

from support.backends import environment
import hipconv
from hipconv import __main__ as command
from hipconv.jit import progress
from hipconv.jit.targets import Target
from hipconv.ops.conv2d import calls, measured, tuning
from hipconv.ops.conv2d.problem import Card, Factors
from hipconv.ops.conv2d.router import ALGORITHMS, choose
from hipconv.ops.conv2d.tuning import Trial
from hipconv.ops.plans import that_runs_here

H200, MI300X = Card("sm_90", 132), Card("gfx942", 304)
NAME = "NVIDIA H200"
SLOW = 50.0  # times as long as estimated


def trials_of(card: Card) -> list[Trial]:
    return tuning.trials(that_runs_here(Target("rocm" if card.arch.startswith("gfx") else "cuda", card.arch)), card)


@pytest.fixture(scope="module")
def h200() -> list[Trial]:
    return trials_of(H200)


def twisted_us(trial: Trial) -> float:
    """Times of a card on which the warpgroups are slow and everything else is half as fast as on an H200."""
    return trial.estimated_us * (SLOW if "warpgroup" in trial.algorithm else 2.0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with environment(HIPCONV_CONFIG_DIR=str(tmp_path / "config")):
        yield tmp_path / "config"


def plan(**options: Any) -> hipconv.ops.conv2d.plan.Conv2dPlan:
    x = torch.empty(1, 512, 64, 64, dtype=torch.bfloat16, device="meta").to(memory_format=torch.channels_last)
    weight = torch.empty(512, 512, 3, 3, dtype=torch.bfloat16, device="meta").to(memory_format=torch.channels_last)
    return hipconv.conv2d_plan(x, weight, padding=1, target="sm_90", **options)


# ---- measuring ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("card", [H200, MI300X], ids=lambda card: card.arch)
def test_the_sweep_has_several_problems_of_each_kind(card: Card) -> None:
    problems = {trial.problem for trial in trials_of(card)}
    kinds = [problem.kind for problem in problems]
    assert len(set(kinds)) == 3 * 2 * 5 * 2  # products, layouts, shapes, sizes
    assert min(map(kinds.count, kinds)) >= 2


def test_the_sweep_times_whatever_has_an_estimate(h200: list[Trial]) -> None:
    by_name_alone = {"naive", "winograd_f4", "winograd_f2"}
    assert {trial.algorithm for trial in h200} == set(ALGORITHMS) - by_name_alone
    assert len({(trial.algorithm, trial.problem) for trial in h200}) == len(h200)
    for trial in h200:
        x, weight, _ = tuning.tensors_of(trial.layer, trial.dtype, trial.problem.layout, "meta")
        asked = (None, trial.layer.stride, trial.layer.taps // 2, 1, trial.layer.groups)
        precision = trial.float32_precision if trial.dtype == torch.float32 else None
        planned = hipconv.conv2d_plan(x, weight, *asked, target="sm_90", float32_precision=precision)
        assert trial.algorithm in planned.serves and planned.layout == trial.problem.layout
        multiplied = "ieee" if ALGORITHMS[planned.algorithm].plain else trial.problem.float32_precision
        assert planned.float32_precision in (None, multiplied)


def test_factors_are_what_calls_take_by_what_is_estimated(h200: list[Trial]) -> None:
    found = tuning.sweep(h200, twisted_us)
    assert (found.timed, found.left_out, found.problems) == (len(h200), 0, len({trial.problem for trial in h200}))
    for trial in h200:
        assert found.factors.of(trial.algorithm, trial.problem) == (SLOW if "warpgroup" in trial.algorithm else 2.0)
    assert found.after == pytest.approx(1.0) and found.before > 2 and found.changed > 50


def test_a_factor_is_the_median_of_its_kind(h200: list[Trial]) -> None:
    kind = next(trial.problem.kind for trial in h200 if trial.algorithm == "direct")
    alike = [trial for trial in h200 if trial.algorithm == "direct" and trial.problem.kind == kind]
    assert len(alike) >= 3
    times = {
        trial: trial.estimated_us * factor for trial, factor in zip(alike, (3.0, *[5.0] * (len(alike) - 2), 400.0), strict=True)
    }
    assert tuning.sweep(alike, times.__getitem__).factors.of_kinds == {"direct": {kind: 5.0}}


def test_the_factor_of_what_was_not_measured(h200: list[Trial]) -> None:
    """The median of the algorithm's, as an algorithm that looks as fast as on an H200 would be taken everywhere."""
    problem = h200[0].problem
    factors = Factors({"direct": {problem.kind: 3.0, "another": 4.0, "a third": 9.0}, "wave_gemm": {"another": 5.0}})
    assert [factors.of(name, problem) for name in ("direct", "wave_gemm", "depthwise")] == [3.0, 5.0, 4.5]
    assert factors.of("direct", problem._replace(dtype="float32")) == 4.0
    assert Factors({}).of("direct", problem) == 1.0


def test_calls_without_memory_are_left_out_and_times_that_are_none_refused(h200: list[Trial]) -> None:
    def short(trial: Trial) -> float:
        if trial.algorithm == "direct":
            raise torch.cuda.OutOfMemoryError("no memory")
        return 1.0

    found = tuning.sweep(h200, short)
    assert found.left_out == sum(trial.algorithm == "direct" for trial in h200) and "direct" not in found.factors.of_kinds
    for wrong in (0.0, float("nan"), float("inf")):
        times = dict.fromkeys(h200, wrong)
        with pytest.raises(ValueError, match=r"^\w+ for Layer\(.*: measured (0.0|nan|inf) us, expected a positive time"):
            tuning.sweep(h200, times.__getitem__)
    with pytest.raises(ValueError, match="nothing could be timed"):
        tuning.sweep([], short)


def test_the_call_that_is_timed_is_the_trials() -> None:
    layers = [tuning.Layer(2, 8, 3, 8), tuning.Layer(1, 4, 5, 4, 5, 2, groups=4)]
    with environment(HIPCONV_BACKEND="simt", HIPCONV_SIMT_WAVE="32", HIPCONV_SIMT_MMA="mma_sync"):
        target = hipconv.targets.of(torch.device("cpu"))
        to_time = tuning.trials(target, Card(target.arch, 8), layers)
        assert {trial.algorithm for trial in to_time} >= {"depthwise", "direct", "implicit_gemm", "wave_gemm"}
        for trial in to_time:
            x, weight, bias = tuning.tensors_of(trial.layer, trial.dtype, trial.problem.layout, "cpu")
            stride, groups = trial.layer.stride, trial.layer.groups
            expected = F.conv2d(x.double(), weight.double(), bias.double(), stride, trial.layer.taps // 2, groups=groups)
            out = torch.empty_like(expected, dtype=trial.dtype)
            assert tuning._call(trial, (x, weight, bias), out)() is out
            torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-2 * expected.abs().max().item())


# ---- the file, and what it changes -------------------------------------------------------------------------------------------


def test_what_was_measured_changes_the_choice_and_the_plan_says_so(folder: Path, h200: list[Trial]) -> None:
    before = plan()
    assert before.algorithm == "warpgroup_gemm" and "measured" not in before.why
    found = tuning.sweep(h200, twisted_us)
    path = measured.write(folder, "sm_90", 132, NAME, found.problems, found.factors)
    assert path == folder / "conv2d-sm_90-132.json" and os.listdir(folder) == [path.name]
    assert measured.read(path, "sm_90", 132, NAME).of_kinds == found.factors.of_kinds
    after = plan()
    assert "warpgroup" not in after.algorithm and after.why.endswith("by costs measured on such a card")
    assert after.why in str(after) and after.serves == before.serves
    named = plan(algorithm="warpgroup_gemm")
    assert (named.form, named.why) == (before.form, before.why)  # nothing was chosen
    path.unlink()
    measured._found.cache_clear()
    assert plan() == before


def test_without_a_file_nothing_changes(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file.json").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for place in (folder, tmp_path / "file", Path(os.devnull)):
            with environment(HIPCONV_CONFIG_DIR=str(place)):
                assert measured.of_card("sm_90", 132) is None
                assert "measured" not in plan().why


def test_equal_factors_change_no_choice(h200: list[Trial]) -> None:
    """However slow a card is: only how its algorithms compare matters."""
    scaled = H200._replace(measured=Factors({name: dict.fromkeys(["any"], 7.0) for name in ALGORITHMS}))
    serving = (("warpgroup_gemm", ((128, 128), (64, 64))), ("direct", ((128, 64),)), ("implicit_gemm", ((128, 64), (64, 64))))
    for problem in {trial.problem for trial in h200 if trial.problem.dtype == "bfloat16" and trial.problem.groups == 1}:
        assert choose(problem, scaled, serving)[:3] == choose(problem, H200, serving)[:3]


def held(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: "{", "it is no JSON"),
        (lambda _: "[1, 2]", 'expected an object whose "format" is "hipconv conv2d factors 1"'),
        (lambda _: "[" * 100_000, "recursion"),
        (lambda _: "\0\xff", "it is no JSON"),
        (lambda old: old | {"format": "hipconv conv2d factors 2"}, 'expected an object whose "format"'),
        (lambda old: old | {"arch": "sm_100"}, r"arch: got 'sm_100', expected 'sm_90' \(another card\)"),
        (lambda old: old | {"compute_units": 114}, r"compute_units: got 114, expected 132 \(another card\)"),
        (lambda old: old | {"costs": "0" * 16}, r"costs: got '0+', expected '\w+' \(this version of hipconv estimates"),
        (lambda old: old | {"factors": [1.0]}, "factors: expected an object of objects of numbers"),
        (lambda old: old | {"factors": {"direct": 2.0}}, "factors: expected an object of objects of numbers"),
        *[
            (lambda old, bad=bad: old | {"factors": {"direct": {"dense": bad}}}, "direct: dense: got .*, expected a positive")
            for bad in (0, -1.5, "2", None, True, float("nan"), float("inf"))
        ],
    ],
)  # fmt: skip
def test_a_broken_or_foreign_file_is_told_of_once_and_ignored(change: Any, message: str, folder: Path) -> None:
    expected = plan()
    path = measured.write(
        folder, "sm_90", 132, NAME, 1, Factors({"warpgroup_gemm": {"any": SLOW}, "implicit_gemm": {"any": 1e-3}})
    )
    assert plan().algorithm != expected.algorithm
    changed = change(held(path))
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    measured._found.cache_clear()
    with pytest.warns(RuntimeWarning, match=message) as told:
        assert plan() == expected
        assert plan() == expected
    assert len(told) == 1 and str(path) in str(told[0].message) and "tune --arch this" in str(told[0].message)


def test_what_another_card_of_as_many_units_measured_is_ignored(folder: Path) -> None:
    measured.write(folder, "sm_90", 132, NAME, 1, Factors({"direct": {"any": 2.0}}))
    factors = measured.of_card("sm_90", 132, NAME)
    assert factors is not None and factors is measured.of_card("sm_90", 132, NAME)
    with pytest.warns(RuntimeWarning, match=r"card: got 'NVIDIA H200', expected 'NVIDIA H100' \(another card\)"):
        assert measured.of_card("sm_90", 132, "NVIDIA H100") is None
    assert measured.of_card("sm_90", 114) is None


def test_calls_on_a_gpu_have_what_was_measured_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(multi_processor_count=132, name=NAME)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(calls, "targets", SimpleNamespace(of=lambda _: Target("cuda", "sm_90")))
    card_of = calls.card_of.__wrapped__  # what it remembers is of real cards
    assert card_of(torch.device("cuda", 0)) == H200
    measured.write(folder, "sm_90", 132, NAME, 1, Factors({"direct": {"any": 2.0}}))
    card = card_of(torch.device("cuda", 0))
    assert card.measured is not None and card.measured.of_kinds == {"direct": {"any": 2.0}}


def test_a_file_is_there_whole_or_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = measured.write(folder, "sm_90", 132, NAME, 1, Factors({"direct": {"any": 2.0}}))
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(OSError, match="No space left"):
        measured.write(folder, "sm_90", 132, NAME, 1, Factors({"direct": {"any": 3.0}}))
    assert os.listdir(folder) == [path.name] and path.read_bytes() == before


def test_where_files_are_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv(measured.VARIABLE, "~/here")
    assert measured.folder() == tmp_path / "here"
    monkeypatch.setenv(measured.VARIABLE, "~nobody-of-this-name/here")
    with pytest.raises(ValueError, match=r"^HIPCONV_CONFIG_DIR: got '~nobody-of-this-name/here', expected a directory"):
        measured.folder()
    monkeypatch.delenv(measured.VARIABLE)
    assert measured.folder() == tmp_path / ".config" / "hipconv"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert measured.folder() == tmp_path / "xdg" / "hipconv"


# ---- the command -------------------------------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hipconv", "tune", *arguments])
    return command.main()


def test_without_a_gpu_the_command_refuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(monkeypatch, "--arch", "this") == 1
    assert "hipconv: arch: got 'this', and this torch" in capsys.readouterr().err and not folder.exists()


@pytest.fixture
def card_here(monkeypatch: pytest.MonkeyPatch, h200: list[Trial]) -> pytest.MonkeyPatch:
    """An H200 whose kernels are not run, and whose times are made up."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: NAME)
    monkeypatch.setattr(command, "targets", SimpleNamespace(of=lambda _: Target("cuda", "sm_90")))
    monkeypatch.setattr(command, "calls", SimpleNamespace(card_of=lambda _: H200._replace(measured=Factors({}))))
    monkeypatch.setattr(command, "jit", SimpleNamespace(module=lambda *_: None))
    monkeypatch.setattr(tuning, "trials", lambda _, card: h200 if card == H200 else [])
    return monkeypatch


def test_the_command_writes_what_calls_find(
    folder: Path, tmp_path: Path, card_here: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card_here.setattr(tuning, "on_the_card", twisted_us)
    assert run(card_here, "--arch", "this") == 0
    output = capsys.readouterr().out
    assert f"wrote {folder / 'conv2d-sm_90-132.json'}\n" in output and "they take 1.000 times as long" in output
    assert "measured" in plan().why
    assert run(card_here, "--arch", "sm_90", "--out", str(tmp_path / "elsewhere")) == 0
    assert f"calls find with HIPCONV_CONFIG_DIR={tmp_path / 'elsewhere'}" in capsys.readouterr().out
    written = [held(place / "conv2d-sm_90-132.json") for place in (folder, tmp_path / "elsewhere")]
    assert written[0] == written[1] and written[0]["card"] == NAME


def test_the_command_writes_nothing_that_does_not_help_or_is_not_this_cards(
    folder: Path, card_here: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card_here.setattr(tuning, "on_the_card", lambda trial: trial.estimated_us)
    assert run(card_here, "--arch", "this") == 0
    assert "so nothing is written" in capsys.readouterr().out and not list(folder.iterdir())
    assert run(card_here, "--arch", "gfx942") == 1
    assert "arch: got 'gfx942', expected 'this' or 'sm_90'" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(
    tmp_path: Path, card_here: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed: list[Trial] = []
    card_here.setattr(tuning, "on_the_card", timed.append)
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        assert run(card_here, "--arch", "this", "--out", str(place)) == 1
        assert f"hipconv: out: got {place}, expected a folder that can be written to" in capsys.readouterr().err
    assert not timed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_far_it_is_and_a_log_is_told_when_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, log = Terminal(), io.StringIO()
    monkeypatch.setattr(progress, "REFRESH", 0.0)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(progress.counting("measuring", range(8))) == list(range(8))
    assert f"[{'#' * 12}{'.' * 12}] measuring … 4 of 8" in terminal.getvalue() and terminal.getvalue().endswith("\r\x1b[K")
    monkeypatch.setattr(sys, "stderr", log)
    assert list(progress.counting("measuring", range(8))) == list(range(8)) and not log.getvalue()
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    assert list(progress.counting("measuring", range(8))) == list(range(8))
    assert log.getvalue() == "hipconv: measuring … 0 of 8\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_calls_are_timed_on_the_card() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    target = hipconv.targets.of(device)
    card = calls.card_of(device)._replace(measured=None)
    few = tuning.trials(target, card, tuning.LAYERS[5:7])
    found = tuning.sweep(few, tuning.on_the_card)
    assert found.timed == len(few) and found.left_out == 0
    times = {trial: tuning.on_the_card(trial) for trial in few[:3]}
    assert all(0.5 < us < 1e5 for us in times.values())
