"""Speed of causal_conv1d_fwd beside a copy kernel of the same bytes, torch's own convolution,
and an installed causal_conv1d package.
"""

from benches.forward import main

if __name__ == "__main__":
    raise SystemExit(main())
