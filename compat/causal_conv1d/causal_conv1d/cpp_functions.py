"""`hipconv.drop_in.cpp_functions` under the original's name."""

from hipconv.drop_in.cpp_functions import *  # noqa: F403
