"""`hipconv.drop_in.causal_conv1d_cuda` under the original's name."""

from hipconv.drop_in.causal_conv1d_cuda import *  # noqa: F403
