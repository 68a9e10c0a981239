"""bench_conv2d.py as a command: its rows, sums, JSON and picture; and what it reads from MIOpen's log."""

from __future__ import annotations

import json
from pathlib import Path
import sys

import pytest
import torch

import benches.conv2d
from conv2d.cases import EDGE, LAYER_KINDS, MODELS, RANDOM_MODELS, TIMM_MODELS, kind_of_layer, model_cases, model_layers

pytestmark = pytest.mark.usefixtures("one_thread")


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["bench_conv2d.py", *map(str, arguments)])
    return benches.conv2d.main()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of small layers, and a copy that nobody waits for."""
    monkeypatch.setattr(
        benches.conv2d, "model_layers", lambda model: [(case.reduced(50_000), calls) for case, calls in model_layers(model)]
    )
    monkeypatch.setattr(benches.conv2d, "copy_rate", lambda device: 1000.0)


def test_a_run_prints_a_row_a_layer_and_sums_and_writes_its_results_and_a_picture(
    monkeypatch, capsys, small, tmp_path: Path
) -> None:
    arguments = (
        "--backend cpu --model resnet50,flux2_vae --num-layers 2 --batch 1,2 --dtype float32 --layout both --activation relu"
    )
    assert command(monkeypatch, *arguments.split(), "--json", tmp_path / "r.json", "--plot", tmp_path / "r.png") == 0
    lines = capsys.readouterr().out.splitlines()
    groups = 2 * 2 * 2  # models, batches, layouts
    assert len(lines) == 2 + 2 * groups + groups
    assert lines[-1].startswith("sum of flux2_vae, batch ") and ", float32, nhwc" in lines[-1]
    results = json.loads((tmp_path / "r.json").read_text())
    assert len(results["rows"]) == 2 * groups
    for row in results["rows"]:
        assert row["us"] > 0 and row["torch"] > 0 and row["floor"] > 0 and row["flops"] > 0 and row["wrong"] is None
        assert row["plan"] == "torch" and "activation relu" in row["case"]
    assert (tmp_path / "r.png").stat().st_size > 10_000

    monkeypatch.setattr(benches.conv2d, "measure", None)  # nothing is measured again
    assert command(monkeypatch, "--read", tmp_path / "r.json", "--plot", tmp_path / "again.png") == 0
    assert (tmp_path / "again.png").stat().st_size > 10_000


def test_parts_add_up_to_what_one_run_measures_and_a_summary_has_a_line_a_model(
    monkeypatch, capsys, small, tmp_path: Path
) -> None:
    common = [
        "--backend",
        "cpu",
        "--model",
        "mobilenetv3_large_100,convnext_tiny",
        "--only",
        "depthwise",
        "--layout",
        "nhwc",
        "--summary",
    ]
    for part in ("1/2", "2/2", "2/2"):
        assert command(monkeypatch, *common, "--part", part, "--json", tmp_path / "parts.json") == 0
    lines = capsys.readouterr().out.splitlines()
    rows = json.loads((tmp_path / "parts.json").read_text())["rows"]
    depthwise = [
        (m, case)
        for m in ("mobilenetv3_large_100", "convnext_tiny")
        for case in model_cases(m)
        if kind_of_layer(case) == "depthwise"
    ]
    expected = {(model, str(case.reduced(50_000)._replace(layout="nhwc"))) for model, case in depthwise}
    assert {(row["model"], row["case"]) for row in rows} == expected  # reduced, two layers may be one
    assert sum(line.startswith("convnext_tiny, batch 1, bfloat16, nhwc") for line in lines) == 3
    with pytest.raises(SystemExit):
        command(monkeypatch, "--part", "3/2")
    assert "got '3/2', expected a part of parts" in capsys.readouterr().err


def test_a_wrong_result_fails_the_run(monkeypatch, capsys, small) -> None:
    monkeypatch.setattr(benches.conv2d, "mismatch_conv2d", lambda out, arguments, expected: "invented")
    assert command(monkeypatch, *["--backend", "cpu", "--num-layers", "1", "--layout", "nchw", "--dtype", "float32"]) == 1
    assert "invented" in capsys.readouterr().out


def test_solvers_are_read_from_miopens_log(monkeypatch, capsys) -> None:
    log = """
MIOpen(HIP): Info [get_device_name] Raw device name: gfx942
hipconv layer 0
MIOpen(HIP): Info2 [SearchForAllSolutions] Solver: ConvDirectNaiveConvFwd not applicable
MIOpen(HIP): Info [FindConvFwdAlgorithm] FW Chosen Algorithm: ConvHipImplicitGemmGroupFwdXdlops , 0, 0.0123
hipconv layer 1
MIOpen(HIP): Info [ConvolutionForwardImmediate] solver_id = 85/GemmFwdRest, workspace = 1024
hipconv layer 2
"""
    assert benches.conv2d.solvers_in(log) == {0: "ConvHipImplicitGemmGroupFwdXdlops", 1: "GemmFwdRest"}
    if not torch.version.hip:
        with pytest.raises(SystemExit):
            command(monkeypatch, "--miopen-solvers")
        assert "--miopen-solvers needs a ROCm build of torch" in capsys.readouterr().err


def test_the_shape_sets_are_whole() -> None:
    assert {model: len(model_cases(model)) for model in MODELS} == {"resnet50": 23, "sd35_vae": 21, "flux2_vae": 23}
    assert all(min(case.out_size) >= 1 for model in (*MODELS, *TIMM_MODELS) for case in model_cases(model))
    layers = [layer for model in TIMM_MODELS for layer in model_layers(model)]
    assert len(TIMM_MODELS) == 20 and len(layers) == 657 and sum(calls for _, calls in layers) == 1674
    assert {kind_of_layer(case) for case, _ in layers} == set(LAYER_KINDS)
    assert len(set(EDGE)) == len(EDGE)
    for model in RANDOM_MODELS:
        cases = model_cases(model)
        assert cases == model_cases(model) and len(cases) == 200 and all(min(case.out_size) >= 1 for case in cases)
        assert {kind_of_layer(case) == "depthwise" for case in cases} == {model == "random_depthwise"}
    flux = [case.macs for case in model_cases("flux2_vae")]
    assert max(flux) == 256 * 256 * 512 * 512 * 9
