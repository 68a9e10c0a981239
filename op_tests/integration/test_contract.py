"""The contract, whatever is rebuilt inside: the layout's top, public names and commands, kernels by name,
and how modules are built.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
from pathlib import Path
import subprocess
import sys

import pytest
import tomllib
import torch

from conv1d.cases import Case, assert_matches
from jit.probe import ATTEMPT, Probe, write_compiler
from support import ROOT
from support.backends import WAYS, environment
import hipconv

# ---- the repository ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["setup.py", "csrc", "python", "op_tests", "jit_config.json", "README.md"])
def test_the_top_of_the_repository(name: str) -> None:
    assert (ROOT / name).exists()


def test_the_drop_in_distribution_is_where_it_was() -> None:
    """`pip install compat/causal_conv1d`. What it does once it is installed: test_drop_in.py and test_real_layers.py."""
    place = ROOT / "compat" / "causal_conv1d"
    settings = tomllib.loads((place / "pyproject.toml").read_text())
    assert settings["project"]["name"] == "causal-conv1d" and "hipconv" in settings["project"]["dependencies"]
    files = ["causal_conv1d_cuda.py", *(f"causal_conv1d/{name}.py" for name in ("__init__", *DROP_IN_MODULES[1:]))]
    assert all("from hipconv.drop_in" in (place / file).read_text() for file in files)


# ---- names -------------------------------------------------------------------------------------------------------------------

DROP_IN_MODULES = ("causal_conv1d_cuda", "causal_conv1d_interface", "causal_conv1d_varlen", "cpp_functions")
NAMES = {
    "hipconv": (
        "__version__",
        "causal_conv1d",
        "causal_conv1d_fn",
        "causal_conv1d_fwd",
        "causal_conv1d_plan",
        "causal_conv1d_update",
        "conv2d",
        "conv2d_plan",
        "conv3d",
        "conv3d_plan",
        "errors",
        "install_as_causal_conv1d",
        "nn",
        "reference",
        "reference_training",
        "replace_conv2d",
        "replace_conv3d",
        "serving",
        "warmup",
    ),
    "hipconv.serving": (
        "causal_conv1d_fn",
        "causal_conv1d_split_qkv",
        "causal_conv1d_update",
        "causal_conv1d_update_split_qkv",
        "compute_causal_conv1d_metadata",
        "fused_reshape_causal_conv1d_update_single_token",
    ),
    "hipconv.nn": ("CausalConv1d", "CausalConv3d", "Conv2d", "ShortConvolution"),
    "hipconv.errors": (
        "BadRegistry",
        "BuildDisabled",
        "BuildError",
        "CacheUntrusted",
        "CacheUnwritable",
        "CaptureError",
        "JitError",
        "MissingToolchain",
        "UnknownModule",
    ),
    "hipconv.reference": ("causal_conv1d", "causal_conv1d_varlen", "conv2d", "conv3d"),
    "hipconv.reference_training": ("causal_conv1d",),
    "hipconv.reference_update": ("Update", "causal_conv1d_update"),
    "hipconv.drop_in": ("__version__", "causal_conv1d_fn", "causal_conv1d_update", "install_as_causal_conv1d"),
    "hipconv.drop_in.causal_conv1d_cuda": ("causal_conv1d_bwd", "causal_conv1d_fwd", "causal_conv1d_update"),
    "hipconv.drop_in.causal_conv1d_interface": (
        "CausalConv1dFn",
        "causal_conv1d_bwd_function",
        "causal_conv1d_fn",
        "causal_conv1d_fwd_function",
        "causal_conv1d_ref",
        "causal_conv1d_update",
        "causal_conv1d_update_function",
        "causal_conv1d_update_ref",
    ),
    "hipconv.drop_in.causal_conv1d_varlen": ("causal_conv1d_varlen_states", "causal_conv1d_varlen_states_ref"),
    "hipconv.drop_in.cpp_functions": (
        "causal_conv1d_bwd_function",
        "causal_conv1d_fwd_function",
        "causal_conv1d_update_function",
    ),
}
OPERATORS = (
    "causal_conv1d",
    "causal_conv1d_bwd",
    "causal_conv1d_bwd_out",
    "causal_conv1d_fn",
    "causal_conv1d_fwd",
    "causal_conv1d_states_fwd",
    "causal_conv1d_update",
    "causal_conv1d_update_split_qkv",
    "causal_conv1d_varlen",
    "causal_conv1d_varlen_split",
    "conv2d",
    "conv2d_bwd",
    "conv2d_out",
    "conv3d",
    "conv3d_out",
)


@pytest.mark.parametrize("module", NAMES)
def test_public_names_and_where_they_are_imported_from(module: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in NAMES[module] if not hasattr(found, name)] == []
    assert set(NAMES[module]) - {"__version__", *getattr(found, "__all__", NAMES[module])} == set()


def test_the_processes_are_imported_when_they_are_asked_for() -> None:
    script = (
        "import sys, hipconv\n"
        "assert 'hipconv.distributed' not in sys.modules\n"
        "assert hipconv.distributed.halo is sys.modules['hipconv.distributed'].halo\n"
        "assert not hasattr(hipconv, 'distribution')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_torch_knows_the_operators() -> None:
    assert [name for name in OPERATORS if not hasattr(torch.ops.hipconv, name)] == []


def test_the_commands_of_the_package(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from hipconv.__main__ import main

    for command in ("env", "list", "build", "clear", "demo", "hub-folder", "tune"):
        monkeypatch.setattr(sys, "argv", ["hipconv", command, "--help"])
        with pytest.raises(SystemExit, match="0"):
            main()
        assert capsys.readouterr().out.startswith(f"usage: python -m hipconv {command}")


# ---- the forward, and its kernels --------------------------------------------------------------------------------------------


def test_the_forward_is_called_as_aiters_is() -> None:
    """causal_conv1d_fwd(out, x, w, bias, use_silu); bias a tensor, None or an empty tensor; nothing is returned."""
    parameters = list(inspect.signature(hipconv.causal_conv1d_fwd).parameters.values())
    positional = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    assert positional == ["out", "x", "weight", "bias", "use_silu"]
    x, weight, bias, out = Case(2, 6, 20, 4, torch.float32, torch.float32).inputs(torch.device("cpu"))
    with environment(**WAYS["cpu"]):
        for given, silu in itertools.product((bias, None, torch.empty(0)), (True, False)):
            for call in (hipconv.causal_conv1d_fwd, torch.ops.hipconv.causal_conv1d_fwd):
                assert call(out.fill_(torch.nan), x, weight, given, silu) is None
                assert_matches(out, x, weight, bias if given is bias else None, silu)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize(
    ("kernel", "layout"),
    [
        ("naive", "channel_first"),
        ("naive", "channel_last"),
        ("shared", "channel_first"),
        ("vector", "channel_first"),
        ("tile", "channel_last"),
    ],
)
def test_the_gpu_kernels_can_be_chosen_by_name(kernel: str, layout: str, width: int) -> None:
    """The naive one, the one with a halo in shared memory, and those of 16-byte vectors of tokens and of channels."""
    with environment(**WAYS["simt-wave64"]):
        x, weight, bias, out = Case(2, 24, 70, width, torch.bfloat16, torch.bfloat16, layout=layout).inputs(torch.device("cpu"))
        hipconv.causal_conv1d_fwd(out, x, weight, bias, True, kernel=kernel)
        assert_matches(out, x, weight, bias, True)
        plan = hipconv.causal_conv1d_plan(x, weight, bias, "silu", out=out, kernel=kernel)
        assert (plan.kernel, plan.chosen_by) == (kernel, "kernel")
        with environment(HIPCONV_CONV1D_KERNEL=kernel):
            hipconv.causal_conv1d_fwd(out.fill_(torch.nan), x, weight, bias, True)
            assert_matches(out, x, weight, bias, True)
            plan = hipconv.causal_conv1d_plan(x, weight, bias, "silu", out=out)
        assert (plan.kernel, plan.chosen_by) == (kernel, "HIPCONV_CONV1D_KERNEL")


# ---- modules -----------------------------------------------------------------------------------------------------------------


def test_torchs_loader_builds_what_jit_config_json_lists_and_nothing_else_lists_it(tmp_path: Path) -> None:
    """A module is one entry there: added to that file alone it is found, built by torch.utils.cpp_extension.load and served."""
    probe = Probe(tmp_path, write_compiler(tmp_path / "g++")).create()
    config = probe.root / "jit_config.json"
    entries = json.loads(config.read_text())
    config.write_text(json.dumps(entries | {"added": entries["probe"]}))
    script = """
    from torch.utils import cpp_extension
    load, built = cpp_extension.load, []
    def noted(name, sources, *arguments, **more):
        built.append([Path(source).name for source in sources])
        return load(name, sources, *arguments, **more)
    cpp_extension.load = noted
    print(json.dumps([jit.module("added", CPU).answer(), built, attempt()]))
    try:
        jit.module("not there", CPU)
    except errors.UnknownModule as error:
        print(error)
    """
    answer, refused = probe.python(ATTEMPT, script).splitlines()
    built = [sorted(["probe_cpu.cpp", "probe.cpp"])]
    found, seen, other = json.loads(answer)
    assert (found, other) == (42, 42) and [sorted(sources) for sources in seen[:1]] == built
    assert refused == "unknown module 'not there'; jit_config.json defines: added, probe"
