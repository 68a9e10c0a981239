"""The benches of prefill and decode as commands: their tables, their results as JSON, and that a wrong result fails the run."""

from __future__ import annotations

import json
from pathlib import Path
import sys

import pytest

import benches.host
import benches.update
import benches.varlen

pytestmark = pytest.mark.usefixtures("one_thread")  # threads wait for each other longer than such small calls take

BENCHES = {  # a tiny run of each: its words, its rows
    benches.update: ("--backend cpu --batch 3 --dim 8 --layout N,3,D --kernel auto,openmp", 5),
    benches.varlen: ("--backend cpu --lengths 2x3,1 --dim 8 --state_layout dim_last --form new,split,in_place", 3),
}


@pytest.mark.parametrize("bench", BENCHES, ids=lambda bench: bench.__name__.replace("benches.", "bench_causal_conv1d_"))
def test_a_run_prints_a_table_and_writes_its_results(monkeypatch, capsys, tmp_path: Path, bench) -> None:
    words, rows = BENCHES[bench]
    monkeypatch.setattr(sys, "argv", [bench.__name__, *words.split(), "--json", str(tmp_path / "results.json")])
    assert bench.main() == 0
    printed = capsys.readouterr().out.splitlines()[2:]
    assert len(printed) == rows * (2 if "--kernel" in words else 1) and all(line.endswith(" ok") for line in printed), printed
    results = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert len(results) == rows
    for row in results:
        times = [row[name] for name in ("auto", "openmp", "copy", "us", "copy_us", "wall_us", "silu_us") if name in row]
        assert len(times) >= 3 and all(time > 0 for time in times) and not row["wrong"], row

    monkeypatch.setattr(bench, "mismatch", lambda out, expected: "invented")
    assert bench.main() == 1
    assert not any(line.endswith(" ok") for line in capsys.readouterr().out.splitlines()[2:])


def test_times_on_the_host_are_of_each_call(monkeypatch, capsys, tmp_path: Path) -> None:
    words = ("bench_host.py", "--backend", "cpu", "--calls", "3", "--json", str(tmp_path / "host.json"))
    monkeypatch.setattr(sys, "argv", list(words))
    assert benches.host.main() == 0
    times = json.loads((tmp_path / "host.json").read_text())["us"]
    assert len(times) == 7 and all(us > 0 for us in times.values())
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[2:]] == list(times)
