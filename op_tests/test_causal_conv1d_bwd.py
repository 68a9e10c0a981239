"""The backward of the causal conv1d, and its forward with states and sequence ids: a pytest suite,
and a command that checks any case.
"""

from conv1d.test_backward import *  # noqa: F403
from conv1d.test_backward import main
from conv1d.test_backward_calls import *  # noqa: F403

if __name__ == "__main__":
    main()
