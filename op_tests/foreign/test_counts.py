"""The numbers of cases are those that docs/testing.md has."""

from __future__ import annotations

import re

from foreign.sources import counts
from support import ROOT


def test_the_documentation_counts_them() -> None:
    text = (ROOT / "docs" / "testing.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([\d,]+) \| ([\d,]+) \|$", text, re.MULTILINE)
    told = {source: (int(every.replace(",", "")), int(nightly.replace(",", ""))) for source, every, nightly in rows}
    found = counts()
    assert found.items() <= told.items(), found  # ONNX is not counted where it is not installed
    in_all = told.pop("in all")
    assert in_all == tuple(map(sum, zip(*told.values(), strict=True))) and in_all[0] >= 2000
