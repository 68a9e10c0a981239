"""`hipconv.drop_in.causal_conv1d_interface` under the original's name."""

from hipconv.drop_in.causal_conv1d_interface import *  # noqa: F403
