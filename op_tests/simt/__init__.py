"""The simt backend on its own, and what only it can show of the kernels."""
