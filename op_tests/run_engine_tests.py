"""Run vLLM's and SGLang's own tests of their causal conv1d, as they are, on hipconv."""

from peers.engine_tests import main

if __name__ == "__main__":
    raise SystemExit(main())
