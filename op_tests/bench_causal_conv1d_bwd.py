"""Speed of the backward of causal_conv1d beside a copy kernel of the same bytes: x and dout read, dx written."""

from benches.backward import main

if __name__ == "__main__":
    raise SystemExit(main())
