"""The two-dimensional convolution."""
