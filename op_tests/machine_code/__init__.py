"""The machine code that compilers make of the kernels, AMD's above all, and other compilers than the tests run with."""
