"""causal_conv1d_update and its q/k/v form: a pytest suite, and a command that checks and times any case."""

from serving.test_decode import *  # noqa: F403
from serving.test_decode_command import *  # noqa: F403
from serving.test_decode_command import main
from serving.test_decode_padding import *  # noqa: F403
from serving.test_decode_properties import *  # noqa: F403
from serving.test_decode_refusals import *  # noqa: F403
from serving.test_decode_torch import *  # noqa: F403

if __name__ == "__main__":
    raise SystemExit(main())
