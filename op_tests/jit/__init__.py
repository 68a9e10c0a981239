"""The JIT engine and the ways to install."""
