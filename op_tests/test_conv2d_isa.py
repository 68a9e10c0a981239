"""The loops of conv2d's implicit GEMM are matrix instructions, LDS and memory by 16 bytes on AMD cards, and little else."""

from machine_code.test_conv2d_isa import *  # noqa: F403
from machine_code.test_conv2d_isa import main

if __name__ == "__main__":
    main()
