"""Tests of hipconv.distributed, which run in processes that talk to each other over gloo,
and over NCCL where there are GPUs.
"""
