"""The simt backend on its own: probe kernels (simt/probes.cu) whose results follow from HIP's semantics must come out right."""

from simt.test_simt import *  # noqa: F403
from simt.test_simt import main

if __name__ == "__main__":
    raise SystemExit(main())
