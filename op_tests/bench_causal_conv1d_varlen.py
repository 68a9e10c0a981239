"""Speed of causal_conv1d_fn and causal_conv1d_split_qkv beside a copy kernel that moves the same bytes, states included."""

from benches.varlen import main

if __name__ == "__main__":
    raise SystemExit(main())
