"""What every op test is given."""

from __future__ import annotations

from collections.abc import Iterator
import os
from pathlib import Path
import shutil
import tempfile
from typing import Any

import pytest
import torch

from common import WAYS, device_of, environment
import precompiled

# The longest first, so that no process is left with one of them at the end; CPU seconds from 800 down to 80.
LONGEST = [
    "machine_code",
    "test_sanitizers",
    "test_jit",
    "test_causal_conv1d",
    "test_causal_conv1d_bwd",
    "test_conv2d_gemm",
    "test_causal_conv1d_update",
    "test_simt",
    "test_causal_conv1d_varlen",
    "test_conv2d",
    "test_real_layers",
]
MACHINE_CODE = {
    "test_amd_isa",
    "test_conv2d_isa",
    "test_gpu_compilers",
    "test_rocm_loader",
}  # what one of them compiles, the others find in its process


def pytest_configure(config: pytest.Config) -> None:
    """Where processes share the tests, it is all of them, and many bindings are built."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait actively take the core that another process needs
        directory = Path(tempfile.mkdtemp(prefix="hipconv-headers-"))
        config.add_cleanup(lambda: shutil.rmtree(directory))
        if precompiled.torch_headers(directory):
            os.environ["CPATH"] = os.pathsep.join(filter(None, [str(directory), os.environ.get("CPATH")]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 2` a process takes whole files, whose tests share what their fixtures make."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share_of(nodeid)

    config.option.loadscopereorder = False  # by the number of tests
    return ByFile(config, log)


def share_of(nodeid: str) -> str:
    """What one process takes: the tests of a file, or of those that share more."""
    file = Path(nodeid.partition("::")[0]).stem
    return "machine_code" if file in MACHINE_CODE else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {share: number for number, share in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(share_of(item.nodeid), len(rank)))


@pytest.fixture(autouse=True)
def same_data_every_time() -> None:
    """Tests that count elements which rounded otherwise must not fail by chance."""
    torch.manual_seed(0)


@pytest.fixture(params=[*WAYS, *(["gpu"] if torch.cuda.is_available() else [])])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The device of each backend's tensors, while CPU tensors are sent to that backend."""
    with environment(**WAYS.get(request.param, {})):
        yield device_of(request.param)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For many small convolutions torch's threads wait for each other longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
