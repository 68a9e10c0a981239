"""Finds where inference engines define their causal conv1d and which modules import it by name: facts read from a published
wheel.

    python op_tests/write_engine_facts.py vllm==0.33.0 sglang==0.5.23     # pip fetches the wheels; --directory keeps them

Only names, signatures and import statements are read, by Python's parser: nothing of an engine is imported, run or kept.
"""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path
import subprocess
import sys
import tempfile
from typing import Any
import zipfile

FACTS = Path(__file__).with_name("engine_facts.json")
FUNCTIONS = ("causal_conv1d_fn", "causal_conv1d_update", "fused_reshape_causal_conv1d_update_single_token")


def module_name(entry: str) -> str:
    return entry.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def of_module(entry: str, text: str) -> dict[str, Any] | None:
    """Find what a module defines, and what another one imports of it; None for neither.
    What functions and blocks hold counts too.
    """
    name, tree = module_name(entry), ast.parse(text)
    package = name if entry.endswith("/__init__.py") else name.rpartition(".")[0]
    defines = {
        node.name: ast.unparse(_bare(node.args))
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS
    }
    within = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for inner in ast.walk(node)
    }
    imports = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*parts, *([node.module] if node.module else [])])
            imports += [
                {
                    "from": source,
                    "name": alias.name,
                    "as": alias.asname or alias.name,
                    "at": "call" if id(node) in within else "import",
                }
                for alias in node.names
                if alias.name in FUNCTIONS
            ]
    return {"defines": defines, "imports": sorted(imports, key=str)} if defines or imports else None


def _bare(arguments: ast.arguments) -> ast.arguments:
    """Without annotations, whose names a stand-in does not have; defaults that are names become their own text."""
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    arguments.defaults = [default if isinstance(default, ast.Constant) else _number(default) for default in arguments.defaults]
    return arguments


def _number(default: ast.expr) -> ast.expr:
    known = {"PAD_SLOT_ID": -1, "NULL_BLOCK_ID": 0}
    if isinstance(default, ast.Name) and default.id in known:
        return ast.parse(str(known[default.id]), mode="eval").body
    return default


def of_wheel(wheel: Path) -> dict[str, Any]:
    distribution, version = wheel.name.split("-")[:2]
    modules = {}
    with zipfile.ZipFile(wheel) as archive:
        for entry in sorted(archive.namelist()):
            if entry.startswith(f"{distribution}/") and entry.endswith(".py"):
                text = archive.read(entry).decode()
                if "causal_conv1d" in text and (found := of_module(entry, text)):
                    modules[module_name(entry)] = found
    return {"distribution": distribution, "version": version, "modules": modules}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requirements", nargs="+", metavar="NAME==VERSION")
    parser.add_argument("--directory", type=Path, help="keep the wheels here, and look here first (default: a temporary one)")
    options = parser.parse_args()
    facts: dict[str, Any] = json.loads(FACTS.read_text()) if FACTS.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        for requirement in options.requirements:
            name, _, version = requirement.partition("==")
            place = options.directory or Path(temporary)
            if not (wheels := sorted(place.rglob(f"{name}-{version}-*.whl"))):
                command = ["-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(place), requirement]
                subprocess.run([sys.executable, *command], check=True)
                wheels = sorted(place.rglob(f"{name}-{version}-*.whl"))
            facts[name] = of_wheel(wheels[0])
            print(f"{requirement}: {len(facts[name]['modules'])} modules")
    FACTS.write_text(json.dumps(facts, indent=1) + "\n")
    return 0
