"""hipconv.conv3d: a pytest suite, and a command that checks and times any case."""

from conv3d.test_algorithms import *  # noqa: F403
from conv3d.test_algorithms import main

if __name__ == "__main__":
    raise SystemExit(main())
