"""Speed and equality of layers of Mamba, Mamba2 and Qwen3-Next on hipconv, on causal-conv1d and on plain torch."""

from peers.models import main

if __name__ == "__main__":
    raise SystemExit(main())
