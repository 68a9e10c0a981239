"""The tests themselves are laid out by these rules."""

from __future__ import annotations

import ast
from pathlib import Path
import re

from support import ROOT

TESTS = ROOT / "op_tests"
IN_FOLDERS = sorted(TESTS.glob("*/**/*.py"))
COMMANDS = sorted(set(TESTS.glob("*.py")) - {TESTS / "conftest.py"})


def sources(*endings: str) -> list[Path]:
    """The files of the kernels, the package and the tests whose names end so."""
    found = [
        file for place in ("csrc", "python", "op_tests") for ending in endings for file in (ROOT / place).rglob(f"*.{ending}")
    ]
    assert len(found) > 100
    return found


def imported_by(file: Path) -> set[str]:
    """The modules that a file imports, anywhere in it, by their full names."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_no_test_imports_another() -> None:
    """A module of the folder, or support, has what two need."""
    tests = {".".join(file.relative_to(TESTS).with_suffix("").parts) for file in IN_FOLDERS if file.name.startswith("test_")}
    assert len(tests) > 30
    offenders = {str(file.relative_to(ROOT)): sorted(shared) for file in IN_FOLDERS if (shared := imported_by(file) & tests)}
    assert not offenders


def test_what_stands_beside_the_folders_is_a_command_and_no_more() -> None:
    """It imports `main` from the module that does the work, and of a test all that pytest is to find where the command is
    named.
    """
    assert len(COMMANDS) > 15
    for command in COMMANDS:
        text = command.read_text()
        tree = ast.parse(text)
        assert {type(node) for node in tree.body} <= {ast.Expr, ast.ImportFrom, ast.If} and len(tree.body) < 12, command
        assert any(name.endswith(".main") for name in imported_by(command)) and 'if __name__ == "__main__":' in text, command
        assert not command.name.startswith("test_") or "import *" in text, command


def test_no_line_of_the_kernels_is_past_128_columns() -> None:
    """clang-format leaves comments alone."""
    long = [
        f"{file.relative_to(ROOT)}:{n}"
        for file in sources("h", "cu", "cpp")
        for n, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > 128
    ]
    assert not long


def test_comments_and_docstrings_have_a_subject() -> None:
    """One that begins with a relative clause, such as "What a call has", says of nothing that it has it."""
    first = re.compile(r'^\s*(?://|#|""") ?(?:What|Of|Whether|How)\b')
    found = []
    for file in sources("h", "cu", "cpp", "py"):
        before = ""
        for number, line in enumerate(file.read_text().splitlines(), 1):
            follows = before.lstrip().startswith(("//", "#")) and not before.lstrip().startswith("#include")
            if first.match(line) and not follows:
                found.append(f"{file.relative_to(ROOT)}:{number}")
            before = line
    assert not found
