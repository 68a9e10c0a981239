"""hipconv.serving.causal_conv1d_fn and causal_conv1d_split_qkv: a pytest suite, and a command that checks and times any case."""

from serving.test_prefill import *  # noqa: F403
from serving.test_prefill import main

if __name__ == "__main__":
    raise SystemExit(main())
