"""The documentation's pictures: each can be drawn again from the data beside it, and was drawn from that."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

import benches.plot


@pytest.mark.parametrize("name", benches.plot.PICTURES)
def test_a_picture_is_that_of_its_data(name: str, tmp_path: Path) -> None:
    benches.plot.draw_picture(name, tmp_path)
    drawn, kept = tmp_path / name, benches.plot.DOCS / "plots" / name
    assert benches.plot.data_of(name) in kept.read_text(), "draw it again: python op_tests/bench_plot.py"
    paths = [sum(element.tag.endswith("path") for element in ElementTree.parse(file).iter()) for file in (drawn, kept)]
    assert min(paths) > 20, "hardly anything is drawn"


def test_every_picture_and_its_data_are_shown_somewhere() -> None:
    text = "".join(page.read_text() for page in (benches.plot.DOCS.parent / "README.md", *benches.plot.DOCS.glob("*.md")))
    assert {picture.name for picture in (benches.plot.DOCS / "plots").iterdir()} == set(benches.plot.PICTURES)
    assert {data.name for data in (benches.plot.DOCS / "data").iterdir()} == {
        file for _, files in benches.plot.PICTURES.values() for file in files
    }
    assert all(f"plots/{name}" in text for name in benches.plot.PICTURES)
