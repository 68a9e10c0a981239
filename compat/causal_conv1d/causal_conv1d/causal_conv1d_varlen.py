"""`hipconv.drop_in.causal_conv1d_varlen` under the original's name."""

from hipconv.drop_in.causal_conv1d_varlen import *  # noqa: F403
