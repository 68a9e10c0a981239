"""Forward, backward, prefill and decode with every tensor between two pages that may not be touched:
a byte too far ends the process.
"""

from serving.test_guard_pages import *  # noqa: F403
from serving.test_guard_pages import main

if __name__ == "__main__":
    main()
