"""Speed of causal_conv1d_update beside a copy kernel of the same bytes and the obvious torch code."""

from benches.update import main

if __name__ == "__main__":
    raise SystemExit(main())
