"""``python -m hipconv {env,list,build,clear,demo,hub-folder,tune}``: look at, fill, empty and try out the kernel cache;
write a hub's folder; measure this card.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
import signal
import subprocess
import sys
import tempfile
import time

import torch

from . import __version__, jit, reference
from .errors import JitError
from .hub import folder
from .jit import cache, progress, registry, targets, toolchain
from .ops.conv1d import forward as conv1d
from .ops.conv2d import calls, measured, tuning

_VARIABLES = (
    "HIPCONV_CACHE_DIR",
    "HIPCONV_CONFIG_DIR",
    "HIPCONV_TRUST_CACHE",
    "HIPCONV_JIT",
    "HIPCONV_VERBOSE",
    "HIPCONV_EXTRA_FLAGS",
    "HIPCONV_BACKEND",
    "HIPCONV_SIMT_WAVE",
    "HIPCONV_SIMT_LAUNCHES",
    "HIPCONV_SIMT_ORDER",
    "HIPCONV_SIMT_MMA",
    "HIPCONV_CONV1D_KERNEL",
    "HIPCONV_CONV1D_BWD_KERNEL",
    "HIPCONV_CONV2D_ALGORITHM",
    "HIPCONV_CONV3D_ALGORITHM",
    "HIPCONV_UPDATE_KERNEL",
    "HIPCONV_VARLEN_KERNEL",
    "HIPCONV_VARLEN_TILE",
    "HIPCONV_PACKED_LIMIT",
    "HIPCONV_PLUGINS",
    "CXX",
    "CUDA_HOME",
    "ROCM_HOME",
    "PYTORCH_NVCC",
    "MAX_JOBS",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
)
_STALE = "other sources, flags, torch or Python"


def env() -> None:
    """Print what a bug report needs: versions, devices, compilers, cache, variables."""
    gpu = (
        f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    )
    print(f"hipconv   {__version__} from {registry.source_root()}")
    print(f"torch     {torch.__version__} ({gpu})")
    print(f"python    {sys.version.split()[0]} at {sys.executable}")
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        print(f"device    cuda:{index} {torch.cuda.get_device_name(index)}: {targets.of(torch.device('cuda', index))}")
    print(f"device    cpu: {targets.of(torch.device('cpu'))}")
    backends = {target.backend for target in targets.of_machine()}
    for backend in sorted(backends):
        for name, place in toolchain.compilers(backend).items():
            print(f"compiler  {name} for {backend}: {_version(str(place)) if place else 'not found'}")
    for root in cache.roots():
        print(f"cache     {root}: {cache.why_unusable(root) or 'writable'}")
    place = measured.folder()
    for path in sorted(place.glob("conv2d-*.json")) if place else ():
        print(f"measured  {path}")
    for name in _VARIABLES:
        if name in os.environ:
            print(f"variable  {name}={os.environ[name]}")


def _version(compiler: str) -> str:
    output = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout.strip().splitlines()
    release = next((line for line in output if "release" in line), output[0] if output else "no version")
    return f"{compiler} ({release})"


def _is_current(artefact: cache.Artefact) -> bool:
    """Tell whether calls of this installation load it."""
    if artefact.meta["module"] not in registry.modules():  # of an earlier version
        return False
    name = jit.artefact_name(artefact.meta["module"], targets.Target(*artefact.meta["target"]))
    return artefact.directory.name.startswith(name)


def list_modules(all: bool) -> None:
    """Every module of the registry, and what the caches hold of it."""
    artefacts = cache.listing()
    for name, entry in registry.modules().items():
        files = len(set(registry.sources(entry, "cpu")) | set(registry.sources(entry, "simt")))
        print(f"{name} ({files} source files)")
        held = [artefact for artefact in artefacts if artefact.meta["module"] == name]
        current = [artefact for artefact in held if _is_current(artefact)]
        for artefact in held if all else current:
            target = targets.Target(*artefact.meta["target"])
            size = artefact.meta["library_bytes"] / 1024
            age = (time.time() - artefact.directory.stat().st_mtime) / 3600
            state = "current" if artefact in current else _STALE
            print(f"  {target!s:<20} {size:8.0f} KiB  {age:6.1f} h old  built in {artefact.meta['seconds']} s  {state}")
        stale = [artefact.meta["library_bytes"] / 1024 for artefact in held if artefact not in current]
        if stale and not all:
            print(f"  and {len(stale)} of {_STALE}, {sum(stale):.0f} KiB (`list --all`, `clear --stale`)")
    print(f"caches: {', '.join(map(str, cache.roots()))}")


def build(names: list[str], archs: list[str]) -> None:
    """Build modules ahead of time, for this machine or for named architectures."""
    wanted = [targets.parse(arch) for arch in archs] if archs else targets.of_machine()
    for name in names:
        registry.module(name)  # none is built if one is unknown
    for name in names:
        for target in wanted:
            if not registry.serves(registry.module(name), target.backend):
                print(f"{name} for {target}: nothing to build, torch's own kernels serve it", flush=True)
                continue
            started = time.monotonic()
            artefact = jit.build(name, target)
            print(f"{name} for {target}: {artefact.directory} ({time.monotonic() - started:.1f} s)", flush=True)


def clear(names: list[str], stale: bool) -> None:
    """Delete cached builds."""
    removed, left = cache.clear(names, keep=_is_current) if stale else cache.clear(names)
    for place in removed:
        print(f"removed {place}")
    for place in left:
        print(f"left {place}, which belongs to another user")
    print(f"{len(removed)} {'build' if len(removed) == 1 else 'builds'} removed")


def demo() -> int:
    """Run the first op on every device and compare it with the reference."""
    devices = ["cpu"] + [f"cuda:{index}" for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
    failures = 0
    for device in devices:
        generator = torch.Generator().manual_seed(0)
        x, weight, bias = (torch.randn(shape, generator=generator).to(device) for shape in ((2, 256, 512), (256, 4), (256,)))
        out = torch.empty_like(x)
        started = time.monotonic()
        conv1d.causal_conv1d_fwd(out, x, weight, bias, use_silu=True)
        error = (out - reference.causal_conv1d(x, weight, bias, use_silu=True)).abs().max().item()
        took = time.monotonic() - started
        wrong = not error < 1e-5
        failures += wrong
        target = targets.of(torch.device(device))
        print(
            f"causal_conv1d_fwd on {device} ({target}): {'WRONG' if wrong else 'ok'}, max error {error:.1e}, first call "
            f"{took:.1f} s"
        )
    return failures


def hub_folder(out: str) -> None:
    """Write the package as a repository of Hugging Face's kernel hub, for `kernels.get_local_kernel` or to be published."""
    for variant in folder.write(out):
        print(f"wrote {variant}")


def tune(arch: str, out: str | None) -> None:
    """Measure conv2d's algorithms on this machine's GPU, so that conv2d chooses among them by what they take there."""
    if not torch.cuda.is_available():
        raise ValueError(f"arch: got '{arch}', and this torch ({torch.__version__}) sees no GPU: tune where the card is")
    device = torch.device("cuda", torch.cuda.current_device())
    target, name = targets.of(device), torch.cuda.get_device_name(device)
    if arch not in ("this", target.arch):
        raise ValueError(f"arch: got '{arch}', expected 'this' or '{target.arch}', as it is measured on {name}")
    place = Path(out).expanduser().absolute() if out else measured.folder()
    if place is None:
        raise ValueError("out: expected a folder, as there is no home for one")
    try:  # now, rather than when everything has been measured
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise ValueError(f"out: got {place}, expected a folder that can be written to ({error})") from None
    jit.module("conv2d", target)
    card = calls.card_of(device)._replace(measured=None)
    to_time = tuning.trials(target, card)
    found = tuning.sweep(progress.counting(f"measuring {name}", to_time), tuning.on_the_card)
    print(f"measured {found.timed} calls of {found.problems} problems on {name}", end="")
    print(f"; for {found.left_out} calls there was too little memory" if found.left_out else "")
    print(f"the estimates' choices take {found.before:.3f} times as long as the fastest algorithms, on average")
    if found.after >= found.before:
        print(f"with the factors measured they would take {found.after:.3f} times as long, so nothing is written")
        return
    path = measured.write(place, card.arch, card.compute_units, name, found.problems, found.factors)
    print(f"with the factors measured they take {found.after:.3f} times as long; {found.changed} choices are others")
    hint = "" if place == measured.folder() else f", which calls find with {measured.VARIABLE}={place}"
    print(f"wrote {path}{hint}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hipconv", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("env", help=env.__doc__)
    list_parser = commands.add_parser("list", help=list_modules.__doc__)
    list_parser.add_argument("--all", action="store_true", help=f"builds of {_STALE} one by one, too")
    commands.add_parser("demo", help=demo.__doc__)
    build_parser = commands.add_parser("build", help=build.__doc__)
    build_parser.add_argument("modules", nargs="*", metavar="MODULE", help="names from `list`")
    build_parser.add_argument("--all", action="store_true", help="every module")
    build_parser.add_argument(
        "--arch", nargs="+", action="extend", default=[], help="gfx942, sm_90, avx2 …; default: this machine's"
    )
    clear_parser = commands.add_parser("clear", help=clear.__doc__)
    clear_parser.add_argument("modules", nargs="*", metavar="MODULE", help="names from `list`; all by default")
    clear_parser.add_argument(
        "--stale",
        action="store_true",
        help=f"only what this installation does not load: builds of {_STALE}, and damaged ones",
    )
    folder_parser = commands.add_parser("hub-folder", help=hub_folder.__doc__)
    folder_parser.add_argument("out", metavar="OUT", help="a new or an empty folder")
    tune_parser = commands.add_parser("tune", help=tune.__doc__)
    tune_parser.add_argument("--arch", required=True, metavar="this", help="`this` machine's GPU, or its name")
    tune_parser.add_argument("--out", metavar="FOLDER", help="where to write; default: the folder in which calls look")
    arguments = parser.parse_args()
    try:
        status = 0
        if arguments.command == "env":
            env()
        elif arguments.command == "list":
            list_modules(arguments.all)
        elif arguments.command == "demo":
            status = demo()
        elif arguments.command == "hub-folder":
            hub_folder(arguments.out)
        elif arguments.command == "tune":
            tune(arguments.arch, arguments.out)
        elif arguments.command == "clear":
            clear(arguments.modules, arguments.stale)
        else:
            words = [word for group in arguments.arch for word in group.split(",") if word]
            names = arguments.modules + [word for word in words if word in registry.modules()]  # `--arch sm_90 copy`
            if not names and not arguments.all:
                build_parser.error("name modules, or --all")
            named = dict.fromkeys([*registry.modules(), *names] if arguments.all else names)
            build(list(named), [word for word in words if word not in registry.modules()])
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # `| head` has seen enough, but Python still flushes when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (JitError, OSError, ValueError) as error:
        print(f"hipconv: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
