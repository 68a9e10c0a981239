"""The examples run as a person runs them, only shorter; and those of the pages as they stand; links lead somewhere."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
import re
import struct
import subprocess
import sys
import types
from typing import Any
import zlib

import PIL.Image
import pytest
import torch
from torch import nn

from support import ROOT
from support.tensors import mismatch
from hipconv import __main__ as main
from hipconv import reference
from hipconv.ops.conv2d import router
from hipconv.ops.conv3d import router as conv3d_router

EXAMPLES = ROOT / "examples"


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=EXAMPLES, env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_char_mamba_learns_and_writes() -> None:
    sizes = ["--steps", "12", "--dim", "32", "--batch", "4", "--seqlen", "48", "--lr", "0.02"]
    output = run("train_char_mamba.py", *sizes, "--prompt", "import ", "--length", "30", "--text", "train_char_mamba.py")
    losses = [float(loss) for loss in re.findall(r"step .* loss (\S+)", output)]
    assert len(losses) > 2 and losses[-1] < losses[0] - 0.1, output
    assert "decode and prefill: equal" in output
    assert "\r" not in output
    assert len(output.split("\n\nimport ")[1]) == 30 + len("\n"), output


def test_two_processes_have_the_loss_of_one() -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    output = run(*launcher, "long_context.py", "--steps", "4", "--tokens", "801", "--dim", "16")
    losses = [float(loss) for loss in re.findall(r"processes (\S+),", output)]
    assert len(losses) == 4 and losses[-1] < losses[0], output
    assert "losses: the same" in output


def test_an_image_is_decoded_alike(tmp_path: Path) -> None:
    picture = tmp_path / "decoded.png"
    output = run("vae_decoder.py", "--size", "16", "--width", "32", "--rounds", "1", "--out", str(picture))
    assert "37 of 37 convolutions are replaced" in output
    assert float(re.findall(r"differ by at most (\S+) of", output)[0]) < 1e-4, output
    assert size_of(picture) == (3 * 16 + 2 * 8, 16)


def test_a_video_is_decoded_alike(tmp_path: Path) -> None:
    picture = tmp_path / "frames.png"
    sizes = ["--size", "16", "--width", "16", "--frames", "3"]
    output = run("video_vae.py", *sizes, "--rounds", "1", "--out", str(picture))
    assert float(re.findall(r"differ by at most (\S+) of", output)[0]) < 1e-4, output
    assert size_of(picture) == (3 * 16 + 2 * 8, 2 * 16 + 8)


class Timm:
    """A stand-in with all that examples/classify.py calls of timm, which CI does not have."""

    data: Any

    def __init__(self) -> None:
        described = types.SimpleNamespace(index_to_description="animal {}, of some kind".format)
        self.data = types.SimpleNamespace(ImageNetInfo=lambda: described)

    @staticmethod
    def create_model(name: str, pretrained: bool, checkpoint_path: str) -> nn.Module:
        assert (name, pretrained) == ("tiny", False)
        before = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        model = nn.Sequential(before, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1000))
        if checkpoint_path:
            model.load_state_dict(torch.load(checkpoint_path))
        return model


def test_an_image_is_classified_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random weights and a drawn image, then those of files."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setitem(sys.modules, "timm", Timm())
    classify = importlib.import_module("classify")
    weights, picture = tmp_path / "weights.pt", tmp_path / "picture.png"
    torch.save(Timm.create_model("tiny", False, "").state_dict(), weights)
    PIL.Image.effect_mandelbrot((40, 30), (-2, -1, 1, 1), 20).save(picture)
    listed = []
    for given in ([], ["--checkpoint", str(weights), "--image", str(picture), "--batch", "2"]):
        classify.main(["--model", "tiny", "--size", "24", "--rounds", "1", *given])
        output = capsys.readouterr().out
        assert "tiny: 1 of 1 convolutions are replaced, and take in 2 layers that follow them" in output
        assert float(re.findall(r"differ by at most (\S+) of", output)[0]) < 1e-4, output
        classes = [re.findall(r"\d%  (animal \d+)(?!,)\b", line) for line in output.splitlines() if "%" in line]
        assert len(classes) == 5 and all(len(pair) == 2 for pair in classes), output
        assert {pair[0] for pair in classes} == {pair[1] for pair in classes}
        listed.append(classes)
    assert listed[0] != listed[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "needs timm, .* `pip install timm`"),
        (["--image", "nowhere.png"], "--image: got nowhere.png, expected a file"),
        (["--batch", "0"], "--batch: got 0, expected at least 1"),
    ],
    ids=["without timm", "no image", "no batch"],
)
def test_what_the_classification_needs_is_named(
    given: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(SystemExit) as left:
        importlib.import_module("classify").main(given)
    assert left.value.code not in (0, None)
    assert re.search(message, f"{left.value.code} {capsys.readouterr().err}")


def size_of(picture: Path) -> tuple[int, int]:
    """Columns and rows of a PNG file whose pixels can be read."""
    data = picture.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and data.endswith(b"IEND" + struct.pack(">I", zlib.crc32(b"IEND")))
    at = data.index(b"IDAT")
    lines = zlib.decompress(data[at + 4 : at + 4 + struct.unpack(">I", data[at - 4 : at])[0]])
    assert len(lines) == height * (1 + 3 * width) and len(set(lines)) > 10
    return width, height


PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text()
    for page in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))
}
WALKS = ("docs/adding_a_kernel.md", "docs/adding_an_op.md")  # which test_walk_through.py follows
NOT_HERE = {"pybind.h", "extension.h"}  # torch has these


def examples_of(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if examples_of(text) and page not in WALKS])
def test_the_examples_of_a_page(page: str, capsys) -> None:
    """One after the other, as they build on each other; but for those that need transformers or, where there is none, a GPU."""
    names: dict[str, Any] = {}
    for block in examples_of(PAGES[page]):
        if "transformers" not in block and ("cuda" not in block or torch.cuda.is_available()):
            exec(block, names)
            for expected in re.findall(r"# (.* on \w+ gfx.*?) …$", block, re.MULTILINE):
                assert expected in capsys.readouterr().out
    if page != "docs/serving.md":
        return
    prompts, token, weight, bias = (names[name] for name in ("prompts", "token", "weight", "bias"))
    for request, (begin, end) in enumerate(((0, 5), (5, 305))):
        whole = torch.cat([prompts[:, begin:end], token[request][:, None]], 1)
        computed = torch.cat([names["y"][:, begin:end], names["out"][request][:, None]], 1)
        assert mismatch(computed, reference.causal_conv1d(whole[None], weight, bias, True)[0]) is None
        assert torch.equal(names["pool"][names["slots"][request]], whole[:, -3:])


def test_the_pages_have_examples_and_links_that_lead_somewhere() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 150
    assert {"README.md", "docs/conv1d.md", "docs/conv2d.md", "docs/conv3d.md", "docs/serving.md", "docs/training.md"} <= {
        page for page, text in PAGES.items() if examples_of(text)
    }
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in link:
                continue
            file, _, anchor = link.partition("#")
            target = ((ROOT / page).parent / file).resolve() if file else ROOT / page
            assert target.exists(), f"{page}: {link}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
                assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, (
                    f"{page}: {link}"
                )


def test_the_files_that_pages_name_exist() -> None:
    for page, text in PAGES.items():
        for name in re.findall(r"`((?:csrc|python|op_tests|docs|examples|compat)/[\w/.]+)`", text) if page not in WALKS else ():
            assert (ROOT / name).exists(), f"{page}: {name}"


def test_the_files_and_commands_that_pages_use_exist() -> None:
    """Short names, too, such as `tile_scheduler.h`, and what code blocks run."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
    files = {Path(file).name for file in listed} or {file.name for file in ROOT.rglob("*.*")}
    for page, text in PAGES.items():
        if page not in WALKS:
            named = set(re.findall(r"`(?:[\w.]+/)*(\w+\.(?:h|cu|cpp|py|json|md|svg))`", text))
            assert named - files - NOT_HERE == set(), page
        for script in re.findall(r"\b(?:python3?|torchrun[^`\n]*?) ((?:op_tests|examples)/[\w/]+\.py)", text):
            assert (ROOT / script).exists(), f"{page}: {script}"
        for command in re.findall(r"python -m hipconv ([\w-]+)", text):
            assert command in ("env", "list", "build", "clear", "demo", "hub-folder", "tune"), f"{page}: {command}"


def test_env_prints_the_variables_that_pages_name() -> None:
    rows = re.findall(r"^\| (`[A-Z0-9_, `]+`) \|.*$", PAGES["docs/environment.md"], re.MULTILINE)
    named = {variable for row in rows for variable in re.findall(r"`(\w+)`", row)}
    named |= {variable for text in PAGES.values() for variable in re.findall(r"\bXDG_[A-Z]+_HOME\b", text)}
    assert named == set(main._VARIABLES)


def test_the_variables_that_force_a_kernel_list_the_kernels() -> None:
    rows = {row.split("`")[1]: row for row in PAGES["docs/environment.md"].splitlines() if row.startswith("| `HIPCONV_")}
    contracts = "".join(file.read_text() for file in (ROOT / "csrc" / "include").rglob("*.h"))
    tables = re.findall(r'KernelNames \w+ = \{"(\w+)",\s*\{([^}]*)\},\s*\{([^}]*)\}\}', contracts)
    assert len(tables) == 4
    known = {variable: re.findall(r'"(\w+)"', gpu + cpu) for variable, gpu, cpu in tables}
    known |= {family.VARIABLE: [*family.METHODS, family.CPU_METHOD] for family in (router, conv3d_router)}
    for variable, names in known.items():
        listed = rows[variable].split(": `", 1)[1].rsplit("|", 2)[0]
        assert set(re.findall(r"`(\w+)`", "`" + listed)) == {*names, "auto"}, variable


def test_the_table_of_variables_is_whole() -> None:
    listed = set(re.findall(r"^\| `(HIPCONV_\w+)`", PAGES["docs/environment.md"], re.MULTILINE))
    source = "".join(file.read_text() for file in (ROOT / "python").rglob("*.py"))
    assert listed == set(re.findall(r"(?<!-D)HIPCONV_[A-Z0-9_]*[A-Z0-9]\b", source))
