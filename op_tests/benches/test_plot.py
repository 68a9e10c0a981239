"""The documentation's pictures: each can be drawn again from the data beside it, and was drawn from that."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import bench_plot
import pytest


@pytest.mark.parametrize("name", bench_plot.PICTURES)
def test_a_picture_is_that_of_its_data(name: str, tmp_path: Path) -> None:
    bench_plot.draw_picture(name, tmp_path)
    drawn, kept = tmp_path / name, bench_plot.DOCS / "plots" / name
    assert bench_plot.data_of(name) in kept.read_text(), "draw it again: python op_tests/bench_plot.py"
    paths = [sum(element.tag.endswith("path") for element in ElementTree.parse(file).iter()) for file in (drawn, kept)]
    assert min(paths) > 20, "hardly anything is drawn"


def test_every_picture_and_its_data_are_shown_somewhere() -> None:
    text = "".join(page.read_text() for page in (bench_plot.DOCS.parent / "README.md", *bench_plot.DOCS.glob("*.md")))
    assert {picture.name for picture in (bench_plot.DOCS / "plots").iterdir()} == set(bench_plot.PICTURES)
    assert {data.name for data in (bench_plot.DOCS / "data").iterdir()} == {
        file for _, files in bench_plot.PICTURES.values() for file in files
    }
    assert all(f"plots/{name}" in text for name in bench_plot.PICTURES)
