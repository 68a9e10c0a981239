"""conv2d: its algorithms, its router, its operator."""
