"""bench_valleys.py as a command, its lattice, and the bytes that it counts."""

from __future__ import annotations

import json
from pathlib import Path
import sys

import pytest
import torch

import benches.plot
from benches.valley_cases import AXES, FORMS, sample, sectors
import benches.valleys


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["bench_valleys.py", *map(str, arguments)])
    return benches.valleys.main()


def test_a_run_measures_every_op_and_writes_its_results_and_a_picture(monkeypatch, capsys, tmp_path: Path) -> None:
    small = ["--backend", "cpu", "--cases", "6", "--scale", "0.001", "--worst", "2"]
    assert command(monkeypatch, *small, "--json", tmp_path / "valleys.json") == 0
    printed = capsys.readouterr().out
    assert "0 of 24 results are wrong" in printed and "the worst, less:" in printed
    rows = json.loads((tmp_path / "valleys.json").read_text())["rows"]
    assert {row["op"] for row in rows} == set(AXES) and all(
        row["us"] > 0 and row["copy_us"] > 0 and row["wrong"] is None for row in rows
    )
    for row in rows:
        row["bytes"] = 20_000_000  # the picture has large calls only
    (tmp_path / "large.json").write_text(json.dumps({"card": "none", "torch": "2", "date": "today", "rows": rows}))
    monkeypatch.setattr(benches.valleys, "measure", None)  # nothing is measured again
    assert command(monkeypatch, "--read", tmp_path / "large.json", "--plot", tmp_path / "map.png") == 0
    assert (tmp_path / "map.png").stat().st_size > 10_000


def test_a_wrong_result_fails_the_run(monkeypatch, capsys) -> None:
    monkeypatch.setattr("benches.valley_cases.mismatch", lambda out, expected, may_differ: "invented")
    assert command(monkeypatch, "--backend", "cpu", "--op", "forward", "--cases", "1", "--scale", "0.001") == 1
    assert "WRONG invented" in capsys.readouterr().out


def test_only_keeps_the_cases_that_it_names(monkeypatch, tmp_path: Path) -> None:
    words = ["--backend", "cpu", "--op", "decode", "--cases", "60", "--scale", "0.001", "--only", "width=4,5", "form=one token"]
    command(monkeypatch, *words, "--json", tmp_path / "valleys.json")
    rows = json.loads((tmp_path / "valleys.json").read_text())["rows"]
    assert rows and {row["width"] for row in rows} <= {4, 5} and {row["form"] for row in rows} == {"one token"}
    with pytest.raises(SystemExit):
        command(monkeypatch, "--only", "colour=red")


@pytest.mark.parametrize("op", AXES)
def test_every_form_meets_the_values_of_an_axis_equally_often(op: str) -> None:
    cases = sample(op, 600, seed=5)
    assert cases == sample(op, 600, seed=5) != sample(op, 600, seed=6) and len(cases) == 600
    for form in set(FORMS[op]):
        of_form = [case for case in cases if case["form"] == form]
        for axis, values in AXES[op].items():
            counts = [sum(case[axis] == value for case in of_form) / values.count(value) for value in set(values)]
            assert max(counts) - min(counts) <= 2, (form, axis, counts)


def test_sectors_are_those_of_the_elements() -> None:
    memory = torch.zeros(1 << 16, dtype=torch.float16)
    memory = memory[(-memory.data_ptr() // 2) % 16 :]  # from a sector's first byte
    for shape, strides, offset in (
        ((4, 64), (64, 1), 0),
        ((4, 64), (64, 1), 1),
        ((5, 7, 3), (700, 100, 1), 3),
        ((5, 7, 3), (700, 100, 17), 3),
        ((3, 50, 6), (1000, 1, 50), 0),
        ((8, 9), (10, 1), 15),
        ((6,), (0,), 2),
    ):
        tensor = memory.as_strided(shape, strides, offset)
        elements = torch.arange(1 << 15).as_strided(shape, strides, offset)
        assert sectors(tensor) == 32 * len((elements.flatten() // 16).unique()), (shape, strides, offset)
    assert sectors(None) == 0


def test_the_map_has_a_cell_for_each_form_and_value(tmp_path: Path) -> None:
    row = {"op": "forward", "form": "plain", "width": 4, "layout": "crossed", "bytes": 1 << 25, "floor_us": 1.0, "us": 2.0}
    results = {"card": "none", "torch": "2", "date": "today", "rows": [row, row | {"form": "states", "width": 8}]}
    benches.plot.draw_valleys(results, tmp_path / "map.svg")
    text = (tmp_path / "map.svg").read_text()
    assert all(
        f"<!-- {words} -->" in text for words in ("forward, plain", "forward, states", "width 4", "width 8", "layout crossed")
    )
