"""Counts what the kernels' hot loops cost on AMD cards, in their machine code; test_amd_isa.py holds them to limits."""

from machine_code.amd_isa import main

if __name__ == "__main__":
    raise SystemExit(main())
