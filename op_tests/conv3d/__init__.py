"""Tests of the three-dimensional convolution."""
