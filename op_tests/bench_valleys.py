"""Speed of every conv1d call that can be written: a seeded lattice of widths, layouts, strides, types, lengths,
dims and forms.
"""

from benches.valleys import main

if __name__ == "__main__":
    raise SystemExit(main())
