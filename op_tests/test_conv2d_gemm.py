"""conv2d's implicit GEMM on simt: every tile, form of x and matrix unit, with small integers,
whose sums are exact in any order.
"""

from conv2d.test_gemm import *  # noqa: F403
from conv2d.test_gemm import main

if __name__ == "__main__":
    main()
