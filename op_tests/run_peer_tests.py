"""Run the tests of Dao-AILab's causal-conv1d 1.7.0, as they are, on hipconv."""

from peers.tests import main

if __name__ == "__main__":
    raise SystemExit(main())
