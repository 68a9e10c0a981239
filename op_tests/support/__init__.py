"""The tests of several folders share this. Importing it makes hipconv importable from a checkout that is not installed."""

import importlib.util
from pathlib import Path
import sys

ROOT = Path(__file__).resolve().parents[2]

if importlib.util.find_spec("hipconv") is None:
    sys.path.insert(0, str(ROOT / "python"))
