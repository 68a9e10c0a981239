"""Processes that form a world of torch.distributed and run checks together, one after another, for as long as the tests last.

A check is a function of a module of this folder. All ranks run it with the same arguments; what one raises fails the test, with
its rank; ranks that do not answer in time are named, and the world is given up.
"""

from __future__ import annotations

import contextlib
import functools
from multiprocessing.connection import Connection, Listener, wait
import os
import signal
import subprocess
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist

from support import ROOT
from support.zygote import Forked

SECONDS = 60.0  # for a check
SECONDS_OF_GPUS = 300.0  # the first one may have to compile kernels
GRACE = 15.0  # for the others, once a rank has failed

RANK = """
from distributed.pool import serve
serve({address!r}, {rank}, {size}, {port}, {backend!r}, {device!r}, {seconds})
"""


def serve(address: str, rank: int, size: int, port: int, backend: str, device: str, seconds: float) -> None:
    """The life of a rank: join the world, then run what the pool sends."""
    import datetime
    import importlib
    from multiprocessing.connection import Client
    import traceback

    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=seconds)
    store = dist.TCPStore("127.0.0.1", port, None, False, timeout)
    if "nccl" in backend:
        torch.cuda.set_device(rank)
    if device != "cpu":
        torch.set_default_device(device)
        torch.backends.cudnn.allow_tf32 = False  # else gradients of f32 images have 10 bits
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    with Client(address) as orders:
        orders.send(rank)
        while True:
            try:
                module, name, arguments = orders.recv()
            except EOFError:
                os._exit(0)  # the others may be gone, and taking leave of them would take long
            try:
                torch.manual_seed(0)
                orders.send((True, getattr(importlib.import_module(module), name)(*arguments)))
            except BaseException:
                orders.send((False, traceback.format_exc()))


class Pool:
    """A world of `size` ranks, whose tensors are made on `device`: "cuda" is the GPU of a rank's number with NCCL,
    the first one else.
    """

    def __init__(self, size: int, backend: str = "gloo", device: str = "cpu", **variables: str) -> None:
        self.size, self.gone = size, False
        self.seconds = SECONDS if device == "cpu" else SECONDS_OF_GPUS
        self.store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # port 0: one that is free
        self.directory = tempfile.TemporaryDirectory(prefix="hipconv-ranks-")
        address = os.path.join(self.directory.name, "orders")
        places = os.pathsep.join([str(ROOT / "op_tests"), str(ROOT / "python")])
        environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1", "NCCL_NVLS_ENABLE": "0", **variables}
        with Listener(address, backlog=size) as listener:
            self.ranks = [
                Forked(
                    RANK.format(
                        address=address,
                        rank=rank,
                        size=size,
                        port=self.store.port,
                        backend=backend,
                        device=device,
                        seconds=self.seconds / 2,
                    ),
                    environment,
                )
                for rank in range(size)
            ]
            found: dict[int, Connection] = {}
            for _ in range(size):
                connection = listener.accept()
                found[connection.recv()] = connection
        self.orders = [found[rank] for rank in range(size)]

    def run(
        self, module: str, check: str, *arguments: Any, seconds: float | None = None, without: tuple[int, ...] = ()
    ) -> list[Any]:
        """Return what the ranks' `distributed.<module>.<check>(*arguments)` return; AssertionError with what one raised.

        Ranks of `without` are to end, and do not answer.
        """
        for orders in self.orders:
            orders.send((f"distributed.{module}", check, arguments))
        answers: dict[int, tuple[bool, Any]] = {}
        limit = time.monotonic() + (seconds or self.seconds)
        waited_for: dict[Any, int] = {self.orders[rank]: rank for rank in range(self.size) if rank not in without}
        while waited_for and (left := limit - time.monotonic()) > 0:
            for answered in wait(list(waited_for), left):
                rank = waited_for.pop(answered)
                try:
                    answers[rank] = self.orders[rank].recv()
                except (EOFError, ConnectionError):
                    answers[rank] = (False, "the process has ended")
                if not answers[rank][0]:
                    limit = min(limit, time.monotonic() + GRACE)
        failed = [f"rank {rank}:\n{what}" for rank, (passed, what) in sorted(answers.items()) if not passed]
        stuck = sorted(waited_for.values())
        if failed or stuck or without:  # whatever is under way between the ranks then, no other check is to meet it
            self.end()
        if stuck:
            failed.insert(0, f"ranks {stuck} of {self.size} are stuck in {check}{arguments}")
        assert not failed, "\n".join(failed)
        return [answers[rank][1] for rank in sorted(answers)]

    def end(self) -> None:
        """End the processes, each by its own id."""
        self.gone = True
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)
        for rank in self.ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.communicate(10)
        self.directory.cleanup()


_pools: dict[tuple[int, str, str, tuple], Pool] = {}


def pool_of(size: int, backend: str = "gloo", device: str = "cpu", **variables: str) -> Pool:
    """A world of so many ranks, with this environment: the one of earlier tests, if it is still there."""
    key = size, backend, device, tuple(sorted(variables.items()))
    if key not in _pools or _pools[key].gone:
        _pools[key] = Pool(size, backend, device, **variables)
    return _pools[key]


def end_all() -> None:
    for pool in _pools.values():
        if not pool.gone:
            pool.end()
    _pools.clear()


@functools.cache
def group_of_ranks(ranks: tuple[int, ...] | None) -> Any:
    """In a rank: the group of these ranks of the world, made once; None for all. Every rank must ask."""
    return dist.group.WORLD if ranks is None else dist.new_group(list(ranks))
