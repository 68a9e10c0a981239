"""Times of the convolutions over the GPUs of a host: torchrun --standalone --nproc-per-node 2 op_tests/bench_distributed.py."""

from benches.distributed import main

if __name__ == "__main__":
    raise SystemExit(main())
