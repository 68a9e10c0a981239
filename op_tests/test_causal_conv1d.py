"""causal_conv1d_fwd: a pytest suite, and a command that checks and times any case."""

from conv1d.test_forward import *  # noqa: F403
from conv1d.test_forward_calls import *  # noqa: F403
from conv1d.test_forward_command import *  # noqa: F403
from conv1d.test_forward_command import main
from conv1d.test_forward_cpu import *  # noqa: F403

if __name__ == "__main__":
    raise SystemExit(main())
