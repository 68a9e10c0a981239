"""Tell how many CPU seconds each file of a cold build for NVIDIA's cards takes, step by step."""

from machine_code.build_seconds import main

if __name__ == "__main__":
    raise SystemExit(main())
