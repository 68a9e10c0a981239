"""hipconv.serving.causal_conv1d_fn and causal_conv1d_split_qkv: a pytest suite,
and a command that checks and times any case.
"""

from serving.test_prefill import *  # noqa: F403
from serving.test_prefill_command import *  # noqa: F403
from serving.test_prefill_command import main
from serving.test_prefill_padding import *  # noqa: F403
from serving.test_prefill_properties import *  # noqa: F403
from serving.test_prefill_refusals import *  # noqa: F403
from serving.test_prefill_states import *  # noqa: F403
from serving.test_prefill_torch import *  # noqa: F403

if __name__ == "__main__":
    raise SystemExit(main())
