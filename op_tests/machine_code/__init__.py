"""This is what compilers make of the kernels: AMD's machine code, and other compilers than the tests run with."""
