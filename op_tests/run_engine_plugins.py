"""Run hipconv's entry points in vLLM's and SGLang's own Python."""

from peers.engine_plugins import main

if __name__ == "__main__":
    raise SystemExit(main())
