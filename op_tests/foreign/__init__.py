"""Cases that others wrote: their shapes, their expected values, our kernels."""
