"""A fuzzer of the public functions' arguments: good calls of any size, of which none, one or several arguments are changed.

A call is taken or refused. It is refused by a TypeError or a ValueError (or one of the library's own) that names an argument,
and nothing has been written then, in any byte of any argument's memory. If it is taken, only the elements of what it may write
have changed, and the same values in fresh dense memory give the same results. Each case is made from its number and the seed
alone:

    python op_tests/fuzz_arguments.py --cases 100000 --seed 1
    python op_tests/fuzz_arguments.py --case 4711 --seed 1

Cases run in a process of their own, which says which one it is at: one that crashes or hangs is named too.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import mmap
import os
from pathlib import Path
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple
import warnings

import torch
from torch import Tensor

from integration.forms import WRITTEN, Arguments, Form, Size, forms
from integration.fuzz_changes import ANYTHING, NEARLY, SAME
from support import ROOT
import hipconv

PATIENCE = 60.0  # seconds that a case may take, however busy the machine is
MOST_TO_START = 240.0  # and the first one, for which modules may have to be built
MOST_MEMORY = 4 << 30  # which a call may not ask for more than

# A message begins with this: the argument, or arguments, that are wrong.
NAMED = re.compile(r"^(?P<names>\w+(\[[\d, ]+\])?((, | and )\w+)*): (got|shares memory)")
# torch says this itself: that there is no memory for a result, and what it knows of its own tensors of zeros without memory.
TORCHS = re.compile(
    "can't allocate memory|not enough memory|Storage size calculation overflowed|ZeroTensors are immutable|"
    r"tolist\(\) shouldn't be called on a tensor with unallocated storage|Inference tensors cannot be saved for backward"
)


PROGRESS = struct.Struct("qqq1000s")  # the number of a case, how many were taken and refused before it, and what it is


class Case(NamedTuple):
    """A call, and in words how it was made."""

    form: str
    function: Form
    size: Size
    arguments: Arguments
    changes: list[str]
    mode: str

    def __str__(self) -> str:
        return f"{self.form}, {tuple(self.size)}, {self.mode}: {'; '.join(self.changes) or 'as it is'}"


FORMS = sorted(forms())
MODES = ("grad", "grad", "no_grad", "inference_mode")


def size_of(rng: random.Random) -> Size:
    if rng.random() < 0.4:
        return Size()
    return Size(
        rng.choice((0, 1, 2, 3)), rng.choice((0, 1, 3, 8, 9, 16, 40)), rng.choice((0, 1, 2, 5, 16, 33)), rng.randint(1, 9)
    )


def changed(rng: random.Random, arguments: Arguments, value: Any) -> tuple[str, Any]:
    """The change of one argument, in words and as a value."""
    if isinstance(value, tuple) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        what, part = changed(rng, arguments, value[at])
        return f"[{at}] {what}", (*value[:at], part, *value[at + 1 :])
    kind = rng.random()
    if isinstance(value, Tensor) and not value.is_meta and value.layout is torch.strided:
        if kind < 0.35:
            name = rng.choice(sorted(SAME))
            return name, SAME[name](rng, value)
        if kind < 0.9:
            name = rng.choice(sorted(NEARLY))
            return name, NEARLY[name](rng, arguments, value)
    name = rng.choice(sorted(ANYTHING))
    return name, ANYTHING[name]()


def make(seed: int, number: int, only: str | None = None) -> Case:
    """Case `number` of a run, whatever the others are."""
    rng = random.Random(f"{seed}:{number}")
    torch.default_generator.manual_seed(number)
    form, size = only or rng.choice(FORMS), size_of(rng)
    function = forms(size)[form]
    arguments, changes = function.arguments(), []
    if rng.random() < 0.2:  # all of one dtype
        dtype = rng.choice((torch.float16, torch.bfloat16, torch.float64))
        changes.append(str(dtype))
        for name, value in arguments.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                arguments[name] = value.detach().to(dtype).requires_grad_(value.requires_grad)
    if rng.random() < 0.2:  # all anywhere
        changes.append("other memory")
        for name, value in arguments.items():
            if isinstance(value, Tensor):
                arguments[name] = SAME["other memory"](rng, value)
    if rng.random() < 0.3:  # some left out
        for name in arguments:
            if rng.random() < 0.3 and "None" in function.kinds.get(name, ""):
                arguments[name] = None
                changes.append(f"{name} None")
    for name in rng.sample(sorted(arguments), min(len(arguments), rng.choice((0, 1, 1, 1, 2, 3)))):
        what, arguments[name] = changed(rng, arguments, arguments[name])
        if name == "weight" and isinstance(arguments[name], Tensor) and 2**31 - 1 in arguments[name].shape:
            arguments[name] = arguments[name][..., :9]  # whose sums would take minutes
        changes.append(f"{name} {what}")
    return Case(form, function, size, arguments, changes, rng.choice(MODES))


# ---- what may be written -----------------------------------------------------------------------------------------------------


def tensors_of(value: Any, name: str = "") -> list[tuple[str, Tensor]]:
    """Tensors with memory of their own."""
    if isinstance(value, dict):
        return [found for key, part in value.items() for found in tensors_of(part, key)]
    if isinstance(value, (tuple, list)) and len(value) < 10:
        return [found for part in value for found in tensors_of(part, name)]
    is_dense = isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta and not value._is_zerotensor()
    return [(name, value)] if is_dense else []


def bytes_of(tensor: Tensor) -> Tensor:
    """All memory that a tensor is in."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


class Memory:
    """The bytes of all tensors before a call, to be compared with those after it."""

    def __init__(self, arguments: Arguments) -> None:
        self.tensors = tensors_of(arguments)
        self.before = {t.untyped_storage().data_ptr(): (name, bytes_of(t).clone(), t) for name, t in self.tensors}
        self.metadata = [(t.shape, t.stride(), t.storage_offset(), t.dtype, t.requires_grad) for _, t in self.tensors]

    def complaint(self, written: set[str]) -> str | None:
        """Which bytes have changed that are not those of a tensor in `written`, if any have."""
        for (name, t), then in zip(self.tensors, self.metadata, strict=True):
            if name not in written and (t.shape, t.stride(), t.storage_offset(), t.dtype, t.requires_grad) != then:
                return f"{name} is another tensor than before"
        for place, (name, before, t) in self.before.items():
            differs = bytes_of(t) != before
            if differs.any():
                allowed = torch.zeros_like(before)
                for other, tensor in self.tensors:
                    if other in written and tensor.untyped_storage().data_ptr() == place and tensor.numel():
                        size = tensor.element_size()
                        usable = allowed[: len(allowed) // size * size].view(
                            {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
                        )
                        usable.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(-1)
                if (differs & (allowed == 0)).any():
                    return f"{int((differs & (allowed == 0)).sum())} bytes of {name} are written"
        return None


# ---- a case ------------------------------------------------------------------------------------------------------------------


def in_mode(mode: str) -> contextlib.AbstractContextManager:
    return {"grad": contextlib.nullcontext, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}[mode]()


def complaint_about_error(case: Case, error: Exception) -> str | None:
    """Say what is wrong with how a call is refused, if something is."""
    text = str(error)
    if len(text) > 700 or "tensor(" in text or "array(" in text:
        return f"a message of {len(text)} characters: {text[:200]}"
    if isinstance(error, hipconv.errors.JitError) and not isinstance(error, hipconv.errors.BuildError):
        return None
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and TORCHS.search(text)):
        return None
    if not isinstance(error, (TypeError, ValueError, NotImplementedError)):
        return f"{type(error).__name__}: {text}"
    found = NAMED.match(text)
    known = {*case.arguments, "q", "k", "v", "k_dim", "v_dim"}
    if not found or not {*re.split(", | and ", re.sub(r"\[.*?\]", "", found["names"]))} <= known:
        return f"no argument is named: {type(error).__name__}: {text}"
    return None


def plain(value: Any) -> Any:
    """The same values in dense memory of their own."""
    if isinstance(value, (tuple, list)) and any(isinstance(part, Tensor) for part in value):
        return type(value)(plain(part) for part in value)
    if type(value).__module__ == "torch.nn.parameter" or isinstance(value, Tensor):
        if value.is_meta or value.layout is not torch.strided:
            return value
        found = value.detach().as_subclass(Tensor).resolve_neg().resolve_conj()
        leaf = found.clone(memory_format=torch.contiguous_format).requires_grad_(value.requires_grad)
        return leaf if value.is_leaf else leaf * 1
    return value


def differs(found: Any, expected: Any) -> str | None:
    ours, theirs = tensors_of(found), tensors_of(expected)
    if len(ours) != len(theirs):
        return f"{len(ours)} results, and {len(theirs)} in dense memory"
    for (name, a), (_, b) in zip(ours, theirs, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name or 'the result'} is {a.dtype} {tuple(a.shape)}, and {b.dtype} {tuple(b.shape)} in dense memory"
        if not a.is_floating_point():
            same = torch.equal(a, b)
        else:
            a, b = (t.detach().double().as_subclass(Tensor) for t in (a, b))
            tolerance = 2e-2 if ours[0][1].element_size() == 2 else 1e-4
            same = torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        if not same:
            return f"{name or 'the result'} is not what it is in dense memory"
    return None


def is_huge(value: Any) -> bool:
    """Tell whether no copy of it should be made."""
    if isinstance(value, (tuple, list)):
        return any(map(is_huge, value))
    return isinstance(value, Tensor) and value.numel() > 1 << 22


def is_zero(value: Any) -> bool:
    return isinstance(value, Tensor) and value._is_zerotensor()


def judge(case: Case) -> tuple[str, str | None]:
    """Tell whether a call was "taken" or "refused", and what is wrong with that."""
    written = WRITTEN & case.arguments.keys()
    freed = [name for name, t in tensors_of(case.arguments) if t.untyped_storage().nbytes() == 0 and t.numel()]
    if {*freed} & {"x", "residual", "mask", "cache", "cu_seqlens"} and "ShortConvolution" in case.form:
        return "refused", None  # torch reads these itself, and crashes
    with in_mode(case.mode):
        huge = is_huge([*case.arguments.values()])
        if not freed and not huge:
            again = {name: plain(value) for name, value in case.arguments.items()}
        memory = Memory(case.arguments)
        try:
            result = case.function.call(case.arguments)
        except Exception as error:
            return "refused", complaint_about_error(case, error) or memory.complaint(set())
        if wrong := memory.complaint(written):
            return "taken", wrong
        if (
            freed
            or huge
            or any(map(is_zero, case.arguments.values()))
            or not (isinstance(result, (Tensor, tuple)) or result is None)
        ):
            return "taken", None
        try:
            expected = case.function.call(again)
        except Exception as error:
            return "taken", f"refused in dense memory: {type(error).__name__}: {error}"
        outputs = {name: value for name, value in case.arguments.items() if name in written and not is_zero(value)}
        return "taken", differs([result, outputs], [expected, {name: again[name] for name in outputs}])


# ---- many cases, in a process that says which one it is at -------------------------------------------------------------------


def run_here(seed: int, first: int, last: int, progress: Path, only: str | None) -> None:
    """Print what is wrong with the cases of a range, and how many were taken and refused."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    faulthandler.enable()
    limit = MOST_MEMORY + (int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize())
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # pybind11 prints all arguments before hipconv sees its error.
    Tensor.__repr__ = lambda tensor, **_: "tensor(...)"  # type: ignore
    counts = {"taken": 0, "refused": 0}
    with contextlib.ExitStack() as stack:
        at = mmap.mmap(stack.enter_context(progress.open("r+b")).fileno(), PROGRESS.size)

        def is_at(number: int, text: str) -> None:
            at[:] = PROGRESS.pack(number, counts["taken"], counts["refused"], text.encode()[:1000])

        for number in range(first, last):
            is_at(number, "being made")
            case = make(seed, number, only)
            is_at(number, str(case))
            outcome, wrong = judge(case)
            counts[outcome] += 1
            if wrong:
                print(f"case {number}: {case}: {wrong}", flush=True)
        is_at(last, "")


class Report(NamedTuple):
    """The findings of a run."""

    taken: int
    refused: int
    complaints: list[str]


def run(seed: int, first: int, last: int, only: str | None = None) -> Report:
    """Run cases in processes of their own, a new one after each that crashes or hangs."""
    taken = refused = 0
    complaints: list[str] = []
    while first < last:
        with tempfile.NamedTemporaryFile(prefix="fuzz-") as progress, tempfile.TemporaryFile("w+") as output:
            progress.write(PROGRESS.pack(first, 0, 0, b"begin"))
            progress.flush()
            words = [
                sys.executable,
                "-m",
                "integration.fuzz",
                "--seed",
                seed,
                "--cases",
                last,
                "--first",
                first,
                "--progress",
                progress.name,
            ]
            words += ["--form", only] if only else []
            paths = os.pathsep.join([str(ROOT / "op_tests"), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
            child = subprocess.Popen(
                [*map(str, words)], env=os.environ | {"PYTHONPATH": paths}, stdout=output, stderr=subprocess.STDOUT
            )
            at, since, hangs = -1, time.monotonic(), False
            while child.poll() is None:
                time.sleep(0.05)
                number = PROGRESS.unpack(Path(progress.name).read_bytes())[0]
                if number != at:
                    at, since = number, time.monotonic()
                elif time.monotonic() - since > (MOST_TO_START if number == first else PATIENCE):
                    hangs = True
                    child.send_signal(signal.SIGABRT)  # with a traceback
                    child.wait()
            number, more_taken, more_refused, text = PROGRESS.unpack(Path(progress.name).read_bytes())
            output.seek(0)
            lines = output.read().splitlines()
        taken, refused = taken + more_taken, refused + more_refused
        complaints += [line for line in lines if line.startswith("case ")]
        if child.returncode:
            how = "hangs" if hangs else f"ends the process with {child.returncode}"
            rest = "\n    ".join(line for line in lines if not line.startswith("case "))
            complaints.append(f"case {number}: {text.rstrip(bytes(1)).decode(errors='replace')}: {how}\n    {rest[-3000:]}")
            number += 1
        first = number
    return Report(taken, refused, complaints)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="up to which number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="from which number")
    parser.add_argument("--case", type=int, help="only this one, in this process, with what it was made of")
    parser.add_argument("--form", choices=FORMS, help="only calls of this form")
    parser.add_argument("--progress", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.progress:
        run_here(arguments.seed, arguments.first, arguments.cases, arguments.progress, arguments.form)
        return 0
    if arguments.case is not None:
        case = make(arguments.seed, arguments.case, arguments.form)
        print(case)
        for name, value in case.arguments.items():
            shown = (
                f"{type(value).__name__} {value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:100]
            )
            strides = f" strides {value.stride()}" if isinstance(value, Tensor) and value.layout is torch.strided else ""
            print(f"    {name}: {shown}{strides}")
        print(*judge(case))
        return 0
    report = run(arguments.seed, arguments.first, arguments.cases, arguments.form)
    print(*report.complaints, sep="\n")
    print(f"{report.taken} calls taken, {report.refused} refused, {len(report.complaints)} complaints")
    return bool(report.complaints)


if __name__ == "__main__":
    raise SystemExit(main())
