"""Time that calls take on the host, beside F.silu."""

from benches.host import main

if __name__ == "__main__":
    raise SystemExit(main())
