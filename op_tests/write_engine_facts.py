"""Read from inference engines' wheels where they define and import their causal conv1d, for integration/test_plugins.py."""

from integration.engine_facts import main

if __name__ == "__main__":
    raise SystemExit(main())
