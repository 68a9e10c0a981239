"""Fixtures and scheduling for all op tests."""

from __future__ import annotations

from collections.abc import Iterator
import gc
import os
from pathlib import Path
import shutil
import tempfile
from typing import Any

import pytest
import torch

from support import precompiled
from support.backends import WAYS, device_of, environment

# Modules that assert for the tests, and say what was compared as the tests do.
pytest.register_assert_rewrite("conv1d.cases", "serving.decode_cases", "serving.prefill_cases")

# The commands at the top run the tests of a folder where a command line names them; a run of everything finds them in the
# folder.
collect_ignore = [file.name for file in Path(__file__).parent.glob("test_*.py")]

# The longest first, so that no process is left with one of them at the end; CPU seconds from 400 down to 8. But tests that wait
# for processes more than they compute run beside the machine code, whose compilers take all processors meanwhile, and what
# gives processes a time limit comes when the modules that they load are built.
LONGEST = [
    "machine_code",
    "simt/test_sanitizers",
    "jit/test_rebuilds",
    "jit/test_failures",
    "jit/test_cache",
    "jit/test_messages",
    "jit/test_attacks",
    "jit/test_processes",
    "jit/test_install",
    "conv1d/test_backward",
    "serving/test_decode",
    "conv1d/test_forward",
    "simt/test_launch_limits",
    "conv2d/test_algorithms",
    "serving/test_decode_properties",
    "conv2d/test_gemm",
    "simt/test_simt",
    "integration/test_walk_through",
    "conv3d/test_algorithms",
    "integration/test_fuzz",
    "integration/test_hub_folder",
    "integration/test_real_layers",
    "integration/test_examples",
    "distributed/test_halo",
    "distributed/test_conv2d",
    "distributed/test_conv1d",
    "conv2d/test_float32",
    "foreign/test_engines",
    "serving/test_guard_pages",
    "serving/test_prefill_padding",
    "conv1d/test_forward_cpu",
    "conv1d/test_rows",
    "foreign/test_torch",
    "foreign/test_onednn",
    "conv2d/test_winograd",
    "conv3d/test_float32",
    "serving/test_prefill",
]


def pytest_configure(config: pytest.Config) -> None:
    """Where processes share the tests, it is all of them, and many bindings are built."""
    # inductor then asks no compiler and no process for each instruction set: what it makes of our operators holds no vectors of
    # its own
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
    os.environ["HIPCONV_CONFIG_DIR"] = os.devnull  # what a user measured of a card changes what tests expect of it
    torch.backends.cudnn.allow_tf32 = False  # on a GPU float32 is float32 in all tests but those of this setting
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        # Threads that wait actively take the core that another process needs.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        directory = Path(tempfile.mkdtemp(prefix="hipconv-headers-"))
        config.add_cleanup(lambda: shutil.rmtree(directory))
        os.environ |= precompiled.precompile(directory)


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
    """Return what one process takes: the tests of a file, or the machine code's,
    where what one compiles the others find in its process.
    """
    file = "/".join(Path(nodeid.partition("::")[0]).with_suffix("").parts[-2:])
    return "machine_code" if file.startswith("machine_code/") else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {share: number for number, share in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(share_of(item.nodeid), len(rank)))


def pytest_collection_finish() -> None:
    """torch's modules and the tests themselves stay: the garbage collector need not go over them again and again."""
    gc.freeze()


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
