"""Run timm's models on hipconv's convolutions, beside torch's."""

from peers.timm_models import main

if __name__ == "__main__":
    raise SystemExit(main())
