"""bench_causal_conv1d.py as a command: its table, its results as JSON, its picture."""

from __future__ import annotations

import json
from pathlib import Path
import sys

import pytest
import torch

import benches.backward
import benches.forward
import benches.plot

SMALL = "--backend cpu --shapes 1x8x16,2x16x32 --dtype float32,bfloat16 --kernel auto,openmp"


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["bench_causal_conv1d.py", *map(str, arguments)])
    return benches.forward.main()


def test_a_run_prints_a_table_and_writes_its_results_and_a_picture(monkeypatch, capsys, tmp_path: Path) -> None:
    assert command(monkeypatch, *SMALL.split(), "--json", tmp_path / "results.json", "--plot", tmp_path / "roofline.png") == 0
    lines = capsys.readouterr().out.splitlines()
    cases = 2 * 2 * 2  # shapes, dtypes, layouts
    assert len(lines) == 2 + cases * 2 + 1
    assert lines[-1].startswith("host time of a call, us: causal_conv1d_fwd ")
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["rows"]) == cases and all(row["auto"] > 0 and row["openmp"] > 0 for row in results["rows"])
    assert set(results["host_us"]) == {"causal_conv1d_fwd", "causal_conv1d", "F.silu"} and all(
        us > 0 for us in results["host_us"].values()
    )
    _check_picture(tmp_path / "roofline.png")

    monkeypatch.setattr(benches.forward, "measure", None)  # nothing is measured again
    assert command(monkeypatch, "--read", tmp_path / "results.json", "--plot", tmp_path / "again.png") == 0
    _check_picture(tmp_path / "again.png")


def _check_picture(path: Path) -> None:
    from matplotlib.image import imread

    pixels = imread(path)[..., :3]
    assert pixels.shape[0] >= 600 and pixels.shape[1] >= 1000
    assert len({tuple(pixel) for pixel in pixels.reshape(-1, 3).tolist()}) > 100, "hardly anything is drawn"


def test_a_wrong_result_fails_the_run(monkeypatch, capsys) -> None:
    monkeypatch.setattr(benches.forward, "mismatch", lambda out, expected: "invented")
    assert (
        command(monkeypatch, *["--backend", "cpu", "--shapes", "1x8x16", "--dtype", "float32", "--layout", "channel_last"]) == 1
    )
    assert "WRONG" in capsys.readouterr().out


def test_curves_are_shares_of_copy_in_order_of_bytes() -> None:
    common = {"dtype": "float32", "layout": "channel_last", "wrong": []}
    rows = [
        {"shape": [1, 1, 2], "bytes": 2000, "copy": 5.0, "auto": 10.0, "torch": 50.0, **common},
        {"shape": [1, 1, 1], "bytes": 1000, "copy": 4.0, "auto": 5.0, **common},
    ]
    assert benches.plot.curves(rows) == {
        ("auto", "channel_last", "float32"): [(1000, 80.0), (2000, 50.0)],
        ("torch", "channel_last", "float32"): [(2000, 10.0)],
    }


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(benches.forward, "measure", None)
    with pytest.raises(SystemExit, match="--plot needs matplotlib: pip install matplotlib"):
        command(monkeypatch, *SMALL.split(), "--plot", tmp_path / "roofline.png")


def test_host_time_is_that_of_a_call() -> None:
    times = benches.forward.host_times(torch.device("cpu"))
    assert all(0.1 < us < 10_000 for us in times.values())


def test_the_backwards_bench_writes_its_results(monkeypatch, tmp_path: Path) -> None:
    words = [
        "--backend",
        "cpu",
        "--shapes",
        "1x8x16",
        "--dtype",
        "float32",
        "--packed",
        "7",
        "--json",
        str(tmp_path / "results.json"),
    ]
    monkeypatch.setattr(sys, "argv", ["bench_causal_conv1d_bwd.py", *words])
    assert benches.backward.main() == 0
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["layout"] for row in rows] == ["channel_first", "channel_last"]
    assert all(row["ours"] > 0 and row["copy"] > 0 and row["bytes"] == 3 * 8 * 16 * 4 for row in rows)
