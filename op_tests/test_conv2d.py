"""hipconv.conv2d: a pytest suite, and a command that checks and times any case."""

from conv2d.test_algorithms import *  # noqa: F403
from conv2d.test_algorithms import main

if __name__ == "__main__":
    raise SystemExit(main())
