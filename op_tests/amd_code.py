"""HIP kernel files as AMD machine code, on a machine with no AMD GPU: compiled by clang, read back instruction by instruction.

`build(source, arch)` compiles a file once per process and gives its kernels with their resources and instructions, `build_kernel` one
of them, in a fifth of the time. They need TOOLS (Debian: PACKAGES), not a ROCm installation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
import functools
import os
from pathlib import Path
import re
import shutil
import subprocess
import tempfile
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
AMD_ARCHS = {"gfx90a": 9010, "gfx942": 9402, "gfx1100": 11000, "gfx1151": 11501, "gfx1201": 12001}
# What a run of all tests compiles; HIPCONV_TEST_ARCHS=all asks for every file on every architecture, for ten minutes more on 2 cores.
ALL_ARCHS = os.environ.get("HIPCONV_TEST_ARCHS") == "all"
ONE_OF_EACH_FAMILY = ("gfx942", "gfx1100")
FOR_FILES_THAT_BEGIN_SO = {  # the first that fits; others are compiled for ONE_OF_EACH_FAMILY
    "conv2d_warpgroup": ONE_OF_EACH_FAMILY,  # without a body there
    "conv2d": tuple(AMD_ARCHS),
}
BITCODE = Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode")  # of Debian's rocm-device-libs
PACKAGES = "clang-19 lld-19 llvm-19 libamdhip64-dev rocm-device-libs hipcc"
TOOLS = ("clang++-19", *(f"llvm-{tool}-19" for tool in ("readelf", "objdump", "cxxfilt", "nm", "extract")), str(BITCODE))


def archs_of(source: Path) -> tuple[str, ...]:
    """The architectures that the tests compile a file for."""
    if ALL_ARCHS:
        return tuple(AMD_ARCHS)
    return next((archs for begin, archs in FOR_FILES_THAT_BEGIN_SO.items() if source.name.startswith(begin)), ONE_OF_EACH_FAMILY)


def missing(*tools: str) -> list[str]:
    """Those of these commands or files that this machine does not have."""
    return [tool for tool in tools if not (Path(tool).exists() or shutil.which(tool))]


def run(*command: str | Path, **options) -> str:
    """The command's output; RuntimeError with its text if it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


# ---- instructions ----------------------------------------------------------------------------------------------------------------

_KINDS = {  # the first that matches
    "matrix": r"v_(s?mfma|smfmac|s?wmma|swmmac)",
    "valu": r"v_",
    "wait": r"s_wait",
    "barrier": r"s_barrier",
    "branch": r"s_(c?branch|endpgm|setpc|swappc|call)",
    "hint": r"s_(nop|delay_alu|clause|sleep|setprio|code_end|set_inst_prefetch|icache|dcache)",
    "smem": r"s_(buffer_|scratch_)?load",
    "salu": r"s_",
    "lds": r"ds_",
    "load": r"(global|buffer|flat|scratch)_load",
    "store": r"(global|buffer|flat|scratch)_store",
    "atomic": r"(global|buffer|flat)_atomic",
}
# dwordx4 and ushort before gfx11, b128 and u16 since; a read2 or 2addr moves two.
_SIZE = re.compile(r"_(?:dwordx(\d)|(dword)|[biuf](8|16|32|64|96|128)|([us]?short|format_d16_x)|[us]?byte)(?:_|$)")


@functools.cache
def kind_of(mnemonic: str) -> str:
    """One of matrix, valu, wait, barrier, branch, hint, smem, salu, lds, load, store, atomic, other."""
    return next((kind for kind, pattern in _KINDS.items() if re.match(pattern, mnemonic)), "other")


@functools.cache
def bytes_of(mnemonic: str) -> int:
    """What a lane loads or stores; 0 of an instruction that does neither to vector memory or LDS."""
    size = _SIZE.search(mnemonic)
    if kind_of(mnemonic) not in ("load", "store", "atomic", "lds") or not size:
        return 0
    dwords, dword, bits, half = size.groups()
    each = 4 * int(dwords) if dwords else 4 if dword else int(bits) // 8 if bits else 2 if half else 1
    return each * (2 if re.search(r"_(read|write)2|_2addr", mnemonic) else 1)


class Instruction(NamedTuple):
    """One line of a disassembly. A dual-issue pair of gfx11 and gfx12 is one instruction, named `one::other`."""

    address: int
    mnemonic: str  # without the encoding: no _e32, _e64
    operands: tuple[str, ...]  # of a pair, those of the first
    target: int | None  # of a branch
    text: str

    @property
    def kind(self) -> str:
        return kind_of(self.mnemonic)

    @property
    def bytes(self) -> int:
        return bytes_of(self.mnemonic)

    @property
    def transcendental(self) -> bool:
        """Whether it is one of those that take four times as long as others."""
        return re.match(r"v_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos)_", self.mnemonic) is not None

    @property
    def lane_operations(self) -> int:
        """What a lane computes: two in a packed f32 instruction and in a dual-issue pair."""
        return 2 if "::" in self.mnemonic or re.match(r"v_pk_\w+_f32", self.mnemonic) else 1


_LINE = re.compile(
    r"\s+(?P<mnemonic>[a-z]\w+)\s*(?P<operands>.*?)\s*// (?P<address>[0-9A-F]+):[0-9A-F ]+(?:<.*?(?:\+0x(?P<offset>[0-9a-f]+))?>)?"
)


def functions_of(disassembly: str) -> dict[str, str]:
    """The lines of each symbol in the output of `llvm-objdump -d`, its own first."""
    parts = re.split(r"^(?=[0-9a-f]+ <.+>:$)", disassembly, flags=re.MULTILINE)[1:]
    return {part[part.index("<") + 1 : part.index(">:\n")]: part for part in parts}


def instructions_of(function: str) -> list[Instruction]:
    """The instructions in the lines of a symbol."""
    first, *lines = function.splitlines()
    start = int(first.partition(" ")[0], 16)
    instructions = []
    for line in lines:
        if line.strip() in ("", "..."):  # the end of the section, zeros
            continue
        found = _LINE.fullmatch(line)
        assert found, f"not understood in a disassembly: {line}"
        pair, _, other = found["operands"].partition(" :: ")
        mnemonic = "::".join(re.sub(r"_e(32|64)$", "", name) for name in (found["mnemonic"], *other.split()[:1]))
        target = start + int(found["offset"] or "0", 16) if mnemonic.startswith(("s_branch", "s_cbranch")) else None
        operands = tuple(operand.strip() for operand in pair.split(","))
        instructions.append(Instruction(int(found["address"], 16), mnemonic, operands, target, line.partition("//")[0].strip()))
    while instructions and instructions[-1].kind == "hint":  # the padding behind a kernel
        instructions.pop()
    return instructions


# ---- kernels ---------------------------------------------------------------------------------------------------------------------


class Kernel(NamedTuple):
    """A kernel of a code object, with what the compiler says of it."""

    name: str  # as written: causal_conv1d_fwd_tile<bf16, 8, 4, true>
    arch: str
    numbers: dict[str, int]  # of its metadata: vgpr_count (agpr_count included), sgpr_count, group_segment_fixed_size, …
    waves: int  # that a SIMD can hold
    function: str  # its disassembly

    @property
    def wave_size(self) -> int:
        return self.numbers["wavefront_size"]


class CodeObject(NamedTuple):
    """What a kernel file compiles to for one architecture."""

    kernels: list[Kernel]
    disassembly: str

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name, or the only one with `name` in its name, spaces aside; LookupError unless there is exactly one."""
        wanted, names = name.replace(" ", ""), [kernel.name.replace(" ", "") for kernel in self.kernels]
        found = [k for k, n in zip(self.kernels, names, strict=True) if (n == wanted if wanted in names else wanted in n)]
        if len(found) != 1:
            listing = "\n  ".join(sorted(kernel.name for kernel in found or self.kernels))
            raise LookupError(f"{len(found)} kernels are named like '{name}', expected one of\n  {listing}")
        return found[0]


@functools.cache
def _directory() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="hipconv-amd-")  # removed when the process ends


@functools.cache
def device_library() -> Path:
    """Debian's device bitcode, which stops at gfx940 and gfx1036, with the version files of newer architectures added."""
    library = Path(_directory().name) / "bitcode"
    library.mkdir()
    for bitcode in BITCODE.glob("*.bc"):
        (library / bitcode.name).symlink_to(bitcode)
    for arch, version in AMD_ARCHS.items():
        place = library / f"oclc_isa_version_{arch.removeprefix('gfx')}.bc"
        if not place.exists():
            text = f'__attribute__((weak, visibility("protected"), address_space(4))) const unsigned __oclc_ISA_version = {version};'
            target = ["-target", "amdgcn-amd-amdhsa", "-nogpulib", "-O1", "-c", "-emit-llvm"]
            run("clang-19", "-x", "c", *target, "-o", place, "-", input=text)
    return library


def compile_for(arch: str, *arguments: str | Path) -> str:
    """clang, with `-Icsrc/include -std=c++17 -O3` and nothing else of ours; a warning is an error."""
    return run(
        "clang++-19", "-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", f"--offload-arch={arch}",
        "--hip-path=/usr", f"--rocm-device-lib-path={device_library()}", "-D__HIP_PLATFORM_AMD__",
        "-std=c++17", "-O3", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc' / 'include'}", *arguments,
    )  # fmt: skip


@functools.cache
def hip_runtime(arch: str) -> Path:
    """<hip/hip_runtime.h>, precompiled: a second for each file that includes it."""
    header, compiled = Path(_directory().name) / f"runtime.{arch}.h", Path(_directory().name) / f"runtime.{arch}.pch"
    header.write_text("#include <hip/hip_runtime.h>\n")
    compile_for(arch, "-fsyntax-only", *(word for part in ("-emit-pch", "-o", compiled) for word in ("-Xclang", part)), header)
    return compiled


REMARKS = "-Rpass-analysis=kernel-resource-usage"


@functools.cache
def build(source: Path, arch: str) -> CodeObject:
    """Compile a file alone."""
    code = Path(_directory().name) / f"{source.stem}.{arch}.hsaco"
    return _read(arch, compile_for(arch, *_with_runtime(arch), REMARKS, "-c", source, "-o", code), code)


@functools.cache
def build_kernel(source: Path, arch: str, name: str) -> CodeObject:
    """Compile one kernel of a file, with an instruction in a hundred more or less than `build`; LookupError as from CodeObject.kernel."""
    whole, part, code = (Path(_directory().name) / f"{source.stem}.{arch}.{ending}" for ending in ("bc", "part.bc", "hsaco"))
    unoptimized = ("-emit-llvm", "-Xclang", "-disable-llvm-passes")
    compile_for(arch, *_with_runtime(arch), *unoptimized, "-c", source, "-o", whole)
    symbols = run("llvm-nm-19", "--defined-only", "--format=just-symbols", whole).split()
    symbols = [symbol for symbol in symbols if not symbol.startswith("_ZZ")]  # what is declared inside of functions
    names = map(_as_written, run("llvm-cxxfilt-19", input="\n".join(symbols)).splitlines())
    listed = CodeObject([Kernel(name, arch, {}, 0, symbol) for name, symbol in zip(names, symbols, strict=True)], "")
    run("llvm-extract-19", "--recursive", "--rglob=.*", f"--func={listed.kernel(name).function}", whole, "-o", part)
    options = ("internalize-symbols", "early-inline-all=true", "function-calls=false")  # as for HIP
    inlined = (word for option in options for word in ("-mllvm", f"-amdgpu-{option}"))
    target = ("-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-nogpulib", "-ffp-contract=fast")  # as for HIP; the library is in it
    remarks = run("clang++-19", *target, "-O3", *inlined, REMARKS, "-x", "ir", part, "-o", code)
    return _read(arch, remarks, code)


def _with_runtime(arch: str) -> tuple[str | Path, ...]:
    return ("-Xclang", "-include-pch", "-Xclang", hip_runtime(arch))


def _read(arch: str, remarks: str, code: Path) -> CodeObject:
    """What the compiler said and wrote."""
    # The compiler's own figure: VGPRs (with AGPRs, rounded up to what is allocated together), SGPRs and LDS. Of LDS it counts 64 KB
    # for the four SIMDs of a work-group processor of gfx11 and gfx12, which has 128: at worst half of what fits.
    waves = dict(re.findall(r"Function Name: (\S+) (?:.*\n)*?.*Occupancy \[waves/SIMD\]: (\d+)", remarks))
    disassembly = run("llvm-objdump-19", "-d", code)
    functions = functions_of(disassembly)
    metadata = dict(_metadata(run("llvm-readelf-19", "--notes", code)))
    code.unlink()
    names = run("llvm-cxxfilt-19", input="\n".join(metadata)).splitlines()
    kernels = [
        Kernel(_as_written(name), arch, numbers, int(waves[symbol]), functions[symbol])
        for name, (symbol, numbers) in zip(names, metadata.items(), strict=True)
    ]
    return CodeObject(kernels, disassembly)


def build_all(source: Path, archs: Iterable[str]) -> list[CodeObject]:
    """`build` for several architectures, side by side."""
    device_library()  # once, before the threads, of which each has an architecture of its own
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(functools.partial(build, source), archs))


def _as_written(demangled: str) -> str:
    """Without return type, namespace and parameters; an enumerator is its number."""
    for part in ("(anonymous namespace)::", "hipconv::"):
        demangled = demangled.replace(part, "")
    demangled = re.sub(r"\(\w+\)(?=\d)", "", demangled)
    return demangled.removeprefix("void ").partition("(")[0]


def _metadata(notes: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Symbol and numbers of each kernel in a code object's notes."""
    listing = notes.partition("amdhsa.kernels:")[2].partition("amdhsa.target:")[0]
    for entry in re.split(r"^  - (?=\.)", listing, flags=re.MULTILINE)[1:]:
        name = re.search(r"^    \.name:\s+(\S+)", entry, flags=re.MULTILINE)
        assert name, entry
        numbers = re.findall(r"^(?:    )?\.(\w+):\s+(\d+)$", entry, flags=re.MULTILINE)
        yield name[1], {key: int(value) for key, value in numbers}
