"""causal_conv1d_fwd: a pytest suite, and a command that checks and times any case."""

from conv1d.test_forward import *  # noqa: F403
from conv1d.test_forward import main

if __name__ == "__main__":
    raise SystemExit(main())
