"""hipconv as a repository of Hugging Face's kernel hub: loaded by `kernels` alone, offline, and taken by transformers."""

from __future__ import annotations

import json
import os
from pathlib import Path
import re
import subprocess
import sys

import pytest

from peers.packages import provide
from support import ROOT
from support.environments import environment_of
from hipconv import __main__
from hipconv.hub import folder

KERNELS = "kernels==0.17.2"

LOAD = """
import os, sys
from pathlib import Path
import kernels
kernel = kernels.get_local_kernel(Path(os.environ["FOLDER"]))
assert "hipconv" not in sys.modules
"""
CALL = """
import torch
import torch.nn.functional as F
x, weight, bias = torch.randn(2, 8, 16), torch.randn(8, 4), torch.randn(8)
expected = F.silu(F.conv1d(F.pad(x, (3, 0)), weight[:, None], bias, groups=8))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hub") / "folder"
    folder.write(place)
    return place


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where `kernels` is, and nothing that it could pull in."""
    place = tmp_path_factory.mktemp("kernels")
    path = list(sys.path)
    try:
        return provide(place, kernels=KERNELS)
    except subprocess.CalledProcessError:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"pip cannot fetch {KERNELS} here")
    finally:
        sys.path[:] = path  # transformers in this process must not find it


@pytest.fixture(scope="module")
def alone(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """torch and kernels, with what these require of Python's packages; none of setuptools, ninja and hipconv."""
    place = environment_of(tmp_path_factory.mktemp("alone") / "site", "torch", "huggingface_hub", "packaging", "pyyaml")
    for package in tools.iterdir():
        (place / package.name).symlink_to(package)
    for name in ("setuptools", "_distutils_hack", "pkg_resources"):  # only some versions of torch require it
        (place / name).unlink(missing_ok=True)
    for name in ("setuptools", "ninja", "hipconv"):
        assert not (place / name).exists()
    return place


def run(
    script: str, *path: Path, python: tuple[str, ...] = (sys.executable,), **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = kept | {"PYTHONPATH": os.pathsep.join(map(str, path)), "HF_HUB_OFFLINE": "1"} | variables
    return subprocess.run([*python, "-c", script], env=environment, capture_output=True, text=True, check=False)


BARE = (getattr(sys, "_base_executable", sys.executable), "-S", "-s")  # beside which no environment's ninja lies

# ---- the folder --------------------------------------------------------------------------------------------------------------


def test_a_variant_for_each_backend_with_all_that_a_build_needs(hub: Path) -> None:
    assert {place.name for place in (hub / "build").iterdir()} == {"torch-rocm", "torch-cuda", "torch-cpu"}
    sources = {str(file.relative_to(ROOT)) for file in (ROOT / "csrc").rglob("*") if file.is_file()}
    names = set()
    for variant in (hub / "build").iterdir():
        metadata = json.loads((variant / "metadata.json").read_text())
        names.add(metadata["id"])
        assert metadata["backend"] == {"type": variant.name.removeprefix("torch-")} and metadata["python-depends"] == []
        assert (
            sources <= {str(file.relative_to(variant)) for file in variant.rglob("*")}
            and (variant / "jit_config.json").exists()
        )
    assert len(names) == 3, "an id names one version for one backend"


def test_operators_are_in_a_namespace_of_the_variant(hub: Path) -> None:
    for variant in (hub / "build").iterdir():
        text = "".join(file.read_text() for file in variant.rglob("*.py") if file.parent.name != "hub")
        assert not re.search(r"torch\.ops\.hipconv|[\"']hipconv::|Library\(.hipconv|(from|import) hipconv", text)
        assert f"torch.ops.{json.loads((variant / 'metadata.json').read_text())['id']}.causal_conv1d" in text


def test_the_command_writes_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(place: Path) -> int:
        monkeypatch.setattr(sys, "argv", ["hipconv", "hub-folder", str(place)])
        return __main__.main()

    (tmp_path / "empty").mkdir()
    assert command(tmp_path / "empty") == 0 and (tmp_path / "empty" / "README.md").exists()
    assert capsys.readouterr().out.count("wrote ") == 3
    (tmp_path / "file").write_text("kept")
    for place, expected in {
        "empty": "holds files",
        "file": "is no folder",
        "no/where": "expected a path in a folder that exists",
    }.items():
        assert command(tmp_path / place) == 1
        assert (error := capsys.readouterr().err).startswith("hipconv: OUT: got ") and expected in error
    monkeypatch.setattr(folder, "_CARD", "{no such name}")  # fails last
    with pytest.raises(KeyError):
        folder.write(tmp_path / "half")
    assert {place.name for place in tmp_path.iterdir()} == {"empty", "file"} and (tmp_path / "file").read_text() == "kept"


# ---- kernels -----------------------------------------------------------------------------------------------------------------


def test_with_torch_and_kernels_alone_the_first_call_names_what_is_missing(hub: Path, alone: Path, tmp_path: Path) -> None:
    script = f"{LOAD}{CALL}\nkernel.causal_conv1d(x, weight, bias, activation='silu')"
    places = {"HIPCONV_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path), "FOLDER": str(hub)}
    compilers = tmp_path / "bin"
    compilers.mkdir()
    python, *options = BARE
    (compilers / "python").symlink_to(python)  # beside a system's own, its package of ninja may lie
    done = run(script, alone, python=(str(compilers / "python"), *options), PATH=str(compilers), **places)
    assert done.returncode and "MissingToolchain" in done.stderr, done.stderr
    assert (
        "apt-get install g++" in done.stderr and "pip install ninja" in done.stderr and "pip install setuptools" in done.stderr
    )


def test_with_torch_and_kernels_and_what_a_build_needs_the_first_call_works(hub: Path, alone: Path, tmp_path: Path) -> None:
    needed = environment_of(tmp_path / "needed", "ninja", "setuptools")
    script = f"""{LOAD}{CALL}
assert torch.allclose(kernel.causal_conv1d(x, weight, bias, activation="silu"), expected, atol=1e-5)
assert torch.allclose(kernel.layers.causal_conv1d_fn()(x, weight, bias, "silu", seq_idx=None), expected, atol=1e-5)
print(kernel.causal_conv1d_plan(x, weight).kernel, *sorted(sys.modules))
"""
    done = run(script, alone, needed, python=BARE, FOLDER=str(hub))
    assert done.returncode == 0, done.stderr
    assert not {"hipconv", "transformers", "numpy"} & set(done.stdout.split())


def test_beside_an_installed_hipconv(hub: Path, tools: Path) -> None:
    """Two copies in one process share builds, and nothing else."""
    script = f"""{LOAD}{CALL}
import hipconv
one, other = (module.causal_conv1d(x, weight, bias, activation="silu") for module in (kernel, hipconv))
assert torch.equal(one, other) and kernel.errors.JitError is not hipconv.errors.JitError
name = kernel.__name__
assert getattr(torch.ops, name).causal_conv1d.default is not torch.ops.hipconv.causal_conv1d.default
weight.requires_grad_()
for module in (kernel, hipconv):
    module.causal_conv1d_fn(x, weight, bias).sum().backward()
compiled = torch.compile(lambda x: kernel.causal_conv1d(x * 1, weight.detach(), bias), fullgraph=True, backend="aot_eager")
assert torch.equal(compiled(x), hipconv.causal_conv1d(x, weight.detach(), bias))
assert kernel.install_as_causal_conv1d() == []
import causal_conv1d
assert causal_conv1d.causal_conv1d_fn is kernel.causal_conv1d_fn
"""
    done = run(script, tools, ROOT / "python", FOLDER=str(hub))
    assert done.returncode == 0, done.stderr


def test_by_the_kernels_name_as_older_versions_import_a_variant(hub: Path) -> None:
    script = "import hipconv, sys; print(hipconv.causal_conv1d.__module__, hipconv.__file__)"
    done = run(script, hub / "build" / "torch-cpu")
    assert done.returncode == 0, done.stderr
    identity = json.loads((hub / "build" / "torch-cpu" / "metadata.json").read_text())["id"]
    assert done.stdout.startswith(f"{identity}.ops") and str(hub) in done.stdout


# ---- transformers ------------------------------------------------------------------------------------------------------------

# transformers 5.23 asks for kernels 0.18.2, which PyPI does not have; the check of its number is lifted, nothing else.
MODEL = f"""{LOAD}
import functools, inspect, torch
import transformers.utils.import_utils as import_utils
inspect.unwrap(import_utils.is_kernels_available).__defaults__ = ("0.17.2", "0.19.0")
from transformers import Mamba2Config, Mamba2ForCausalLM
config = Mamba2Config(
    hidden_size=32, num_hidden_layers=2, vocab_size=64, num_heads=4, head_dim=16, state_size=8, n_groups=1, chunk_size=8
)
torch.manual_seed(0)
model = Mamba2ForCausalLM(config).eval()
tokens = torch.randint(0, 64, (2, 12))

def results():
    with torch.no_grad():
        return model(tokens).logits, model.generate(tokens, max_new_tokens=4, do_sample=False)

plain = results()  # transformers' own torch
calls = []

def counted(name, forward):
    @functools.wraps(forward)
    def call(*arguments, **named):
        calls.append(name)
        return forward(*arguments, **named)
    return call

for name, layer in vars(kernel.layers).items():
    if name in kernel.layers.__all__:
        layer.forward = counted(name, layer.forward)
RECIPE
assert not calls
logits, written = results()
assert torch.allclose(logits, plain[0], atol=1e-5) and torch.equal(written, plain[1])
print(calls.count("causal_conv1d_fn"), calls.count("causal_conv1d_update"))
"""


def test_transformers_takes_the_layers_by_a_mapping(hub: Path, tools: Path) -> None:
    """The recipe of docs/serving.md, on the CPU: a model's forward and generate, on ours and on transformers' own torch."""
    recipe = (ROOT / "docs" / "serving.md").read_text().partition("<!-- mapping -->\n```python\n")[2].partition("```")[0]
    assert 'Path("hub")' in recipe
    done = run(MODEL.replace("RECIPE", recipe.replace('Path("hub")', 'Path(os.environ["FOLDER"])')), tools, FOLDER=str(hub))
    assert done.returncode == 0, done.stderr
    assert [int(count) for count in done.stdout.split()] == [4, 6]
