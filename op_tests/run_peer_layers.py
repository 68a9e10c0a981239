"""Run the layers of mamba_ssm and flash-linear-attention, as they are, on hipconv."""

from peers.layers import main

if __name__ == "__main__":
    raise SystemExit(main())
