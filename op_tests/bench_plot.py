"""The pictures of the documentation, docs/plots/*.svg, drawn again from docs/data/*.json."""

from benches.plot import main

if __name__ == "__main__":
    raise SystemExit(main())
