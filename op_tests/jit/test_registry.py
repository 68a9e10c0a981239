"""The registry of modules: what it may say, and that the real one builds.

Each test runs real processes on a small checkout of its own (probe.py).
"""

from __future__ import annotations

from collections import Counter
import json
import os
from pathlib import Path
import re
import shutil

import pytest

from jit.probe import ANSWER, ATTEMPT, Probe, copy_package, tree_hash
from support import ROOT
from hipconv import cache, registry, targets
from hipconv.errors import BadRegistry, UnknownModule
from hipconv.jit import toolchain

# ---- the registry ------------------------------------------------------------------------------------------------------------

ENTRY = {"kernels": ["kernels/a.cu"], "cpu": ["cpu/a.cpp"], "pybind": ["pybind/a.cpp"], "flags": ["-O3"]}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ('{"a": []}', "expected exactly the keys"),
        (json.dumps({"a": ENTRY | {"sources": []}}), "expected exactly the keys kernels, cpu, pybind, flags"),
        (json.dumps({"a": {"kernels": []}}), "expected exactly the keys"),
        (json.dumps({"a": ENTRY | {"cpu": "cpu/a.cpp"}}), "cpu: expected a list of strings"),
        (json.dumps({"a": ENTRY | {"flags": [3]}}), "flags: expected a list of strings"),
        (json.dumps({"a": ENTRY | {"kernels": ["/etc/*"]}}), "kernels: expected globs below csrc/"),
        (json.dumps({"a": ENTRY | {"pybind": ["../setup.py"]}}), "pybind: expected globs below csrc/"),
        (json.dumps({"a": ENTRY | {"cpu": [""]}}), "cpu: expected globs below csrc/"),
        (json.dumps({"../a": ENTRY}), "'../a'"),
    ],
)
def test_a_wrong_registry_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(BadRegistry, match=re.escape(complaint)) as caught:
        registry.parse(text, "its-path.json")
    assert "its-path.json" in str(caught.value)


def test_a_registry_is_data_and_never_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trap = f"f'{{__import__(\"os\").mkdir({str(tmp_path / 'trap')!r})}}'".replace("/", "\\x2f")
    entry = registry.parse(json.dumps({"a": ENTRY | {"cpu": [trap], "flags": [trap]}}), "")["a"]
    assert entry.flags == [trap]
    monkeypatch.setattr(registry, "source_root", lambda: tmp_path)
    with pytest.raises(BadRegistry, match="no file matches csrc/f'"):
        registry.sources(entry, "cpu")
    assert not (tmp_path / "trap").exists()


def test_globs_match_files_and_must_match_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "source_root", lambda: tmp_path)
    for name in ("kernels/a_2.cu", "kernels/a_1.cu", "kernels/a_3.cu", "pybind/a.cpp"):
        (tmp_path / "csrc" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "csrc" / name).touch()
    module = registry.Module("a", ["kernels/a_2.cu", "kernels/a_*.cu"], ["kernels"], ["pybind/a.cpp"], [])
    assert registry.sources(module, "simt") == [  # in the order in which compilers start, each once
        Path("csrc/pybind/a.cpp"),
        Path("csrc/kernels/a_2.cu"),
        Path("csrc/kernels/a_1.cu"),
        Path("csrc/kernels/a_3.cu"),
    ]
    with pytest.raises(BadRegistry, match="'a': no file matches csrc/kernels"):  # a directory
        registry.sources(module, "cpu")


def test_an_unknown_module_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UnknownModule, match=r"'causal_conv'; .* causal_conv1d"):
        registry.module("causal_conv")


def test_objects_have_names_of_their_own() -> None:
    """torch's loader names them by their file's name alone, and simt turns .cu into .cpp."""
    for module in registry.modules().values():
        for backend in ("rocm", "cuda", "cpu", "simt"):
            if not registry.serves(module, backend):
                continue
            names = Counter((place.stem, place.suffix == ".cu") for place in registry.staged_names(module, backend).values())
            assert max(names.values()) == 1, (module.name, backend, names)


def test_files_of_one_name_build_into_one_module(probe: Probe) -> None:
    """Beside each other, each with a header of its own; an error in one names that one."""
    config = probe.root / "jit_config.json"
    config.write_text(config.read_text().replace("cpu/probe_*.cpp", "cpu/**/probe*.cpp"))
    for number, directory in enumerate(("one", "two")):
        place = probe.root / "csrc/cpu" / directory
        place.mkdir()
        (place / "own.h").write_text(f"#define PART {number + 1}\n")
        (place / "probe.cpp").write_text(f'#include "own.h"\nint {directory}() {{ return PART; }}\n')
    probe.edit(
        "csrc/cpu/probe_cpu.cpp",
        "int answer() {",
        "int one(); int two(); int answer() { if (one() != 1 || two() != 2) return 0;",
    )
    assert probe.python(ANSWER) == "42\n"
    probe.edit("csrc/cpu/two/own.h", "2", "")
    script = "print(attempt(CPU))"
    assert f"{probe.root}/csrc/cpu/two/probe.cpp:2:" in probe.python(ATTEMPT, script)


@pytest.mark.parametrize(
    ("arch", "has_them"), [("sm_80", False), ("sm_89", False), ("sm_90", True), ("sm_100", True), ("sm_120a", True)]
)
def test_only_cards_that_have_early_launches_are_asked_for_them(arch: str, has_them: bool) -> None:
    """Where a kernel does not wait by itself, its launch has to."""
    assert ("-DHIPCONV_EARLY_LAUNCHES" in toolchain.flags(targets.Target("cuda", arch), []).device) == has_them


# ---- the real thing ----------------------------------------------------------------------------------------------------------


def real(directory: Path, compiler: Path) -> Probe:
    """A checkout of all of hipconv, for this machine's compiler."""
    checkout = Probe(directory, compiler)
    copy_package(checkout.root)
    shutil.copytree(ROOT / "csrc", checkout.root / "csrc")
    shutil.copy(ROOT / "jit_config.json", checkout.root)
    return checkout


def test_a_real_module_builds_and_leaves_its_sources_alone(tmp_path: Path, compiler: Path) -> None:
    """Both paths hold a space and the word that makes hipify write elsewhere: into a sibling tree where it says hip."""
    directory = tmp_path / "my cuda env"
    checkout, cache_of_its_own = real(directory, compiler), directory / "cuda cache"
    before, siblings = tree_hash(checkout.root), sorted(directory.iterdir())
    done = checkout.cli("build", "copy", HIPCONV_CACHE_DIR=str(cache_of_its_own), CXX=None)
    assert done.returncode == 0, done.stderr + done.stdout
    assert tree_hash(checkout.root) == before
    assert sorted(directory.iterdir()) == sorted([*siblings, cache_of_its_own]) and list(tmp_path.iterdir()) == [directory]
    listed = checkout.cli("list", HIPCONV_CACHE_DIR=str(cache_of_its_own), CXX=None).stdout
    assert re.search(r"copy \(\d+ source files\)\n  cpu \w+ .* current", listed)


def test_the_demo_compares_with_the_reference(tmp_path: Path, compiler: Path) -> None:
    """With what other tests build, too."""
    done = real(tmp_path, compiler).cli("demo", HIPCONV_CACHE_DIR=str(next(cache.roots())), CXX=os.environ.get("CXX"))
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.fullmatch(r"causal_conv1d_fwd on cpu \(cpu \w+\): ok, max error \S+, first call \S+ s\n", done.stdout)
