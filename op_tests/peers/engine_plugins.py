"""Run hipconv's entry points in vLLM's and SGLang's own Python, from their wheels: their loaders, their modules, no GPU.

    python op_tests/run_engine_plugins.py                       # fetches 376 MB of wheels
    python op_tests/run_engine_plugins.py sglang --directory engines    # one of them, fetched once, kept there

The engine's loader finds hipconv by its entry point. Then the modules that import the convolution by name
(integration/engine_facts.json) are imported, before or after that, and what they hold is called. Third-party packages that
these modules import and this machine lacks are empty (absent.py), but for a few small ones from PyPI, which the engine computes
with while it is imported.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile
import zipfile

import tomllib

from peers.packages import PIP
from support import ROOT
import hipconv

FACTS = ROOT / "op_tests" / "integration" / "engine_facts.json"
NEEDED = {
    "msgspec": "msgspec",
    "orjson": "orjson",
    "psutil": "psutil",
    "zmq": "pyzmq",
    "cbor2": "cbor2",
    "cloudpickle": "cloudpickle",
    "dill": "dill",
}
LOADERS = {"vllm": ("vllm.plugins", "load_general_plugins"), "sglang": ("sglang.srt.plugins", "load_plugins")}

# Whose presence tells an engine what device there is. SGLang needs a triton to import; to vLLM it is a package that may be
# absent.
DEVICES = ["libtpu", "amdsmi", "torch_xla", "tpu_info", "torch_npu", "intel_extension_for_pytorch", "pynvml"]

CHILD = """
import importlib, json, sys
engine, loader, loads, without, modules, before = json.loads(sys.argv[1])
from peers.absent import Absent
absent = Absent(engine, frozenset(without))
sys.meta_path.append(absent)
failed = {}
def load(names):
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"[:150]
if before:
    load(modules)
getattr(importlib.import_module(loader), loads)()
load(modules)

held = {}
for name in modules:
    if name not in failed:
        for key, value in vars(sys.modules[name]).items():
            if key.lstrip("_").startswith("causal_conv1d") and callable(value) and not key.endswith(("kernel", "_cpu")):
                held[f"{name}.{key}"] = hasattr(value, "__hipconv_in_place_of__")
print(json.dumps({"held": held, "failed": failed, "absent": sorted(absent.made)}))
"""

CALLS = """
import torch
from hipconv import reference, reference_update
torch.manual_seed(0)
weight, bias, x, pool = torch.randn(8, 4), torch.randn(8), torch.randn(9, 8), torch.randn(5, 8, 3)
starts, slots, has = (torch.tensor(values) for values in ([0, 5, 9], [2, 4], [True, False]))
for name in held:
    module, _, key = name.rpartition(".")
    function, mine = vars(sys.modules[module])[key], pool.clone()
    if "_fn" in key:
        expected, state = reference.causal_conv1d_varlen(x.T, weight, bias, pool, starts, slots, has, True)[:2]
        out = function(x.T, weight, bias, conv_states=mine, query_start_loc=starts, cache_indices=slots, has_initial_state=has,
                       activation="silu", **({"seq_lens_cpu": [5, 4]} if engine == "sglang" else {}))
    else:
        expected, state = reference_update.causal_conv1d_update(x[:2], pool, weight, bias, True, conv_state_indices=slots)[:2]
        out = function(x[:2].clone(), mine, weight, bias, "silu", conv_state_indices=slots)
    assert torch.allclose(out.double(), expected.double(), atol=1e-5) and torch.equal(mine, state), name
"""


def provide(engine: str, version: str, directory: Path) -> tuple[Path, Path]:
    """The folder of an engine's unpacked wheel, and that of the small packages."""
    place, small = directory / f"{engine}-{version}", directory / "small"
    if not place.exists():
        subprocess.run(
            [*PIP, "download", "--no-deps", "--only-binary", ":all:", "-d", str(directory), f"{engine}=={version}"], check=True
        )
        with zipfile.ZipFile(next(directory.glob(f"{engine}-{version}-*.whl"))) as archive:
            names = [name for name in archive.namelist() if not name.endswith(".so")]
            archive.extractall(place, names)
    lacking = [package for module, package in NEEDED.items() if not (small / module).exists()]
    if lacking:
        subprocess.run([*PIP, "install", "--no-deps", "--only-binary", ":all:", "--target", str(small), *lacking], check=True)
    return place, small


def write_distribution(place: Path) -> None:
    """Return what an installed hipconv tells importlib.metadata, for the checkout."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = place / f"hipconv-{hipconv.__version__}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: hipconv\nVersion: {hipconv.__version__}\n")
    lines = [
        line
        for group, points in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def check(engine: str, path: list[Path], before: bool, **variables: str) -> dict:
    facts = json.loads(FACTS.read_text())[engine]
    modules = [name for name, module in facts["modules"].items() if any(one["at"] == "import" for one in module["imports"])]
    modules += [
        name for name, module in facts["modules"].items() if "causal_conv1d_fn" in module["defines"] and name not in modules
    ]
    without = DEVICES + (["triton"] if engine == "vllm" else [])
    script = CHILD + ("" if variables else CALLS)
    order = json.dumps([engine, *LOADERS[engine], without, modules, before])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))} | variables
    done = subprocess.run([sys.executable, "-c", script, order], env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"held"')]
    assert done.returncode == 0 and lines, done.stdout[-2000:] + done.stderr[-3000:]
    return json.loads(lines[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", default=[], metavar="ENGINE", help="vllm, sglang; both by default")
    parser.add_argument(
        "--directory", type=Path, help="keep what is fetched here, and look here first (default: a temporary one)"
    )
    options = parser.parse_args()
    if unknown := set(options.engines) - LOADERS.keys():
        parser.error(f"got {', '.join(sorted(unknown))}, expected vllm or sglang")
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        directory = (options.directory or Path(temporary)).resolve()
        site = Path(temporary, "site")
        write_distribution(site)
        for engine in options.engines or list(LOADERS):
            version = json.loads(FACTS.read_text())[engine]["version"]
            path = [site, ROOT / "python", ROOT / "op_tests", *provide(engine, version, directory)]
            for before in (False, True):
                found = check(engine, path, before)
                theirs = sorted(name for name, ours in found["held"].items() if not ours)
                when = "imported before" if before else "imported after"
                print(
                    f"{engine} {version}, {when}: {len(found['held'])} names called, in modules that imported; {len(theirs)} "
                    f"not ours {theirs or ''}; {len(found['failed'])} modules that did not import:"
                )
                for name, error in found["failed"].items():
                    print(f"  {name}: {error}")
                wrong += len(theirs) + (not found["held"])
            off = check(engine, path, False, HIPCONV_PLUGINS="0")
            print(f"{engine} {version}, HIPCONV_PLUGINS=0: {sum(off['held'].values())} of {len(off['held'])} names ours")
            wrong += sum(off["held"].values())
    return 1 if wrong else 0
