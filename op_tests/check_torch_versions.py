"""Check hipconv against versions of torch that are not installed: their names, and their headers."""

from integration.torch_versions import main

if __name__ == "__main__":
    raise SystemExit(main())
