"""Tell whether two trees compile to the same machine code, which a change of text alone must not change."""

from machine_code.same_code import main

if __name__ == "__main__":
    raise SystemExit(main())
