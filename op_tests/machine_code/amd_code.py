"""HIP kernels as AMD machine code, on a machine with no AMD GPU: compiled by clang, read back instruction by instruction.

`build(source, arch)` compiles a file and gives its kernels with their resources and instructions; `code_objects(library)` gives
those of a built module (rocm_build.py). They need TOOLS (Debian: PACKAGES), not a ROCm installation.
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

from support import ROOT  # before hipconv, which it makes importable
from hipconv.jit.architectures import ARCHITECTURES


class Card(NamedTuple):
    """A compute unit of an architecture, as LLVM's AMDGPUBaseInfo.cpp and AMD's manuals describe it."""

    isa_version: int
    wave: int
    lds: int  # bytes that the waves of a block share
    vgprs: int  # of a SIMD, for each lane
    vgprs_at_a_time: int  # that a wave is given
    waves: int  # of a SIMD, at most
    simds: int  # that a block's waves are spread over


_CDNA = {"vgprs": 512, "vgprs_at_a_time": 8, "waves": 8, "simds": 4}
_RDNA = {"vgprs": 1536, "vgprs_at_a_time": 24, "waves": 16, "simds": 4}  # of a work-group processor


def _isa_version(arch: str) -> int:
    """9010 of gfx90a: major, minor, and a digit of the stepping in hexadecimal."""
    return int(arch[3:-2]) * 1000 + int(arch[-2]) * 100 + int(arch[-1], 16)


AMD_ARCHS = {
    arch: Card(_isa_version(arch), known.wave, known.lds, **(_CDNA if known.matrix_unit == "mfma" else _RDNA))
    for arch, known in ARCHITECTURES.items()
    if arch.startswith("gfx")
}
LDS_OF_A_BLOCK = {arch: card.lds if card.wave == 64 else 64 << 10 for arch, card in AMD_ARCHS.items()}  # at most, in bytes
CLANG = 19  # what compiles where nothing else is asked for
BITCODE = Path("/usr/lib/x86_64-linux-gnu/amdgcn/bitcode")  # of Debian's rocm-device-libs
PACKAGES = "clang-19 lld-19 llvm-19 clang-22 lld-22 llvm-22 libamdhip64-dev rocm-device-libs hipcc"
TOOLS = (
    "clang++-19",
    "clang++-22",
    "llvm-objdump-22",
    *(f"llvm-{tool}-19" for tool in ("readelf", "objdump", "cxxfilt", "nm")),
    str(BITCODE),
)


def knows(clang: int, arch: str) -> bool:
    """Tell whether this version of clang compiles for an architecture."""
    return arch != "gfx950" or clang >= 20


def missing(*tools: str) -> list[str]:
    """Those of these commands or files that this machine does not have."""
    return [tool for tool in tools if not (Path(tool).exists() or shutil.which(tool))]


def run(*command: str | Path, **options) -> str:
    """The command's output; RuntimeError with its text if it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


# ---- instructions ------------------------------------------------------------------------------------------------------------

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
    """Return what a lane loads or stores; 0 of an instruction that does neither to vector memory or LDS."""
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
        """Tell whether it is one of those that take four times as long as others."""
        return re.match(r"v_(s_)?(exp|log|rcp|rsq|sqrt|sin|cos)_", self.mnemonic) is not None

    @property
    def lane_operations(self) -> int:
        """Return what a lane computes: two in a packed f32 instruction and in a dual-issue pair."""
        return 2 if "::" in self.mnemonic or re.match(r"v_pk_\w+_f32", self.mnemonic) else 1


_LINE = re.compile(
    r"\s+(?P<mnemonic>[a-z]\w+)\s*(?P<operands>.*?)\s*// (?P<address>[0-9A-F]+):[0-9A-F "
    r"]+(?:<.*?(?:\+0x(?P<offset>[0-9a-f]+))?>)?"
)


def functions_of(disassembly: str) -> dict[str, str]:
    """The lines of each symbol in the output of `llvm-objdump -d`, its own first."""
    parts = re.split(r"^(?=[0-9a-f]+ <.+>:$)", disassembly, flags=re.MULTILINE)[1:]
    return {part[part.index("<") + 1 : part.index(">:\n")]: part for part in parts}


@functools.cache
def _mnemonic(first: str, second: str) -> str:
    """Without encodings; of a dual-issue pair both."""
    return "::".join(re.sub(r"_e(32|64)$", "", name) for name in (first, second) if name)


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
        name, operands, address, offset = found.groups()
        pair, _, other = operands.partition(" :: ")
        mnemonic = _mnemonic(name, other.partition(" ")[0])
        target = start + int(offset or "0", 16) if mnemonic.startswith(("s_branch", "s_cbranch")) else None
        each = tuple(map(str.strip, pair.split(",")))
        instructions.append(Instruction(int(address, 16), mnemonic, each, target, line.partition("//")[0].strip()))
    while instructions and instructions[-1].kind == "hint":  # the padding behind a kernel
        instructions.pop()
    return instructions


# ---- kernels -----------------------------------------------------------------------------------------------------------------


class Kernel(NamedTuple):
    """A kernel of a code object, with what the compiler says of it."""

    name: str  # as written: causal_conv1d_fwd_tile<bf16, 8, 4, true>
    arch: str
    numbers: dict[str, int]  # of its metadata: vgpr_count (agpr_count included), sgpr_count, group_segment_fixed_size, …
    function: str  # its disassembly

    @property
    def wave_size(self) -> int:
        return self.numbers["wavefront_size"]

    @property
    def waves(self) -> int:
        """That a SIMD holds, by registers and by the LDS of its largest blocks: the compiler's own figure."""
        card, numbers = AMD_ARCHS[self.arch], self.numbers
        unit = card.vgprs_at_a_time
        waves = min(card.waves, card.vgprs // max(unit, -(-numbers["vgpr_count"] // unit) * unit))
        if card.wave == 64 and numbers["sgpr_count"] > 100:  # of gfx9's 800
            waves = min(waves, 7)
        if lds := numbers["group_segment_fixed_size"]:
            of_block = -(-numbers["max_flat_workgroup_size"] // card.wave)
            waves = min(waves, max(1, -(-(card.lds // lds) * of_block // card.simds)))
        return waves


class CodeObject(NamedTuple):
    """The code that a kernel file compiles to for one architecture."""

    kernels: list[Kernel]
    disassembly: str

    def kernel(self, name: str) -> Kernel:
        """The kernel of that name, or the only one with `name` in its name, spaces aside;
        LookupError unless there is exactly one.
        """
        wanted, names = name.replace(" ", ""), [kernel.name.replace(" ", "") for kernel in self.kernels]
        found = [k for k, n in zip(self.kernels, names, strict=True) if (n == wanted if wanted in names else wanted in n)]
        if len(found) != 1:
            listing = "\n  ".join(sorted(kernel.name for kernel in found or self.kernels))
            raise LookupError(f"{len(found)} kernels are named like '{name}', expected one of\n  {listing}")
        return found[0]


# ---- compiling ---------------------------------------------------------------------------------------------------------------


@functools.cache
def _directory() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="hipconv-amd-")  # removed when the process ends


# hip.bc defines these of it, which clang links in up to version 19 only.
_FENCE = """
void __atomic_work_item_fence(unsigned flags, int order, int scope) {
    (void)flags, (void)scope; /* a block is the widest that <hip/hip_runtime.h> of ROCm 5.2 asks for */
    if (order == __ATOMIC_ACQUIRE) __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    if (order == __ATOMIC_RELEASE) __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    if (order == __ATOMIC_ACQ_REL) __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "workgroup");
    if (order == __ATOMIC_SEQ_CST) __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
}
"""


@functools.cache
def device_library() -> Path:
    """Debian's device bitcode, with what newer architectures and compilers look for added."""
    library = Path(_directory().name) / "bitcode"
    library.mkdir()
    for bitcode in BITCODE.glob("*.bc"):
        (library / bitcode.name).symlink_to(bitcode)

    def add(name: str, constant: str, value: int, more: str = "") -> None:
        text = f'__attribute__((weak, visibility("protected"), address_space(4))) const unsigned {constant} = {value};{more}'
        target = (
            "-target",
            "amdgcn-amd-amdhsa",
            "-nogpulib",
            "-Xclang",
            "-mcode-object-version=none",
            "-O1",
            "-c",
            "-emit-llvm",
        )
        run("clang-19", "-x", "c", *target, "-o", library / f"{name}.bc", "-", input=text)

    for arch, card in AMD_ARCHS.items():
        name = f"oclc_isa_version_{arch.removeprefix('gfx')}"
        if not (library / f"{name}.bc").exists():
            add(name, "__oclc_ISA_version", card.isa_version)
    add("oclc_abi_version_600", "__oclc_ABI_version", 600, _FENCE)  # what clang 22 makes
    return library


def clang_flags(clang: int, archs: Iterable[str]) -> list[str]:
    """Return what this version of clang needs beside Debian's headers and device bitcode, which are older than it."""
    flags = [f"--rocm-device-lib-path={device_library()}"]
    if clang >= 20:  # the headers ask for a macro that is gone since
        waves = {"host": 64} | {arch: AMD_ARCHS[arch].wave for arch in archs}
        flags += [word for name, wave in waves.items() for word in (f"-Xarch_{name}", f"-D__AMDGCN_WAVEFRONT_SIZE={wave}")]
    return flags


def compile_for(arch: str, *arguments: str | Path, clang: int = CLANG) -> str:
    """clang, with `-Icsrc/include -std=c++17 -O3` and nothing else of ours; a warning is an error."""
    return run(
        f"clang++-{clang}", "-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", f"--offload-arch={arch}",
        "--hip-path=/usr", *clang_flags(clang, [arch]), "-D__HIP_PLATFORM_AMD__",
        "-std=c++17", "-O3", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc' / 'include'}", *arguments,
        env={name: value for name, value in os.environ.items() if name != "CPATH"},  # of headers for the host
    )  # fmt: skip


@functools.cache
def build(source: Path, arch: str, clang: int = CLANG) -> CodeObject:
    """Compile a file alone, once per process."""
    code = Path(_directory().name) / f"{source.parent.name}-{source.stem}.{arch}.{clang}.hsaco"
    compile_for(arch, "-c", source, "-o", code, clang=clang)
    return _read(arch, code)


def build_all(source: Path, archs: Iterable[str], clang: int = CLANG) -> list[CodeObject]:
    """`build` for several architectures, side by side."""
    device_library()  # once, before the threads, of which each has an architecture of its own
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(lambda arch: build(source, arch, clang), archs))


# ---- reading -----------------------------------------------------------------------------------------------------------------

_BUNDLE = b"__CLANG_OFFLOAD_BUNDLE__"


def bundled(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Architecture and machine code of everything in a host's library or object: clang packs what it makes of a file into a
    bundle.

    A bundle is its name, the number of entries, then of each its offset, its size and the length of its target's name, and that
    name.
    """
    start = content.find(_BUNDLE)
    while start >= 0:
        at = start + len(_BUNDLE)

        def number() -> int:
            nonlocal at
            at += 8
            return int.from_bytes(content[at - 8 : at], "little")

        for _ in range(number()):
            offset, size, length = number(), number(), number()
            target = content[at : at + length].decode()
            at += length
            if size:
                yield target.rpartition("-")[2], content[start + offset : start + offset + size]
        start = content.find(_BUNDLE, at)


def code_objects(library: Path) -> dict[str, CodeObject]:
    """All machine code of a library, by architecture."""
    found: dict[str, list[CodeObject]] = {}
    for number, (arch, content) in enumerate(bundled(library.read_bytes())):
        code = Path(_directory().name) / f"{library.stem}.{number}.hsaco"
        code.write_bytes(content)
        found.setdefault(arch, []).append(_read(arch, code))
    return {
        arch: CodeObject([kernel for part in parts for kernel in part.kernels], "".join(part.disassembly for part in parts))
        for arch, parts in found.items()
    }


def _read(arch: str, code: Path) -> CodeObject:
    """Return what the compiler wrote, which is then deleted."""
    of_22 = b"clang version 22" in code.read_bytes()  # it writes instructions that the older tool does not know
    disassembly = run("llvm-objdump-22" if of_22 else "llvm-objdump-19", "-d", code)
    functions = functions_of(disassembly)
    metadata = dict(_metadata(run("llvm-readelf-19", "--notes", code)))
    code.unlink()
    names = run("llvm-cxxfilt-19", input="\n".join(metadata)).splitlines()
    kernels = [
        Kernel(_as_written(name), arch, numbers, functions[symbol])
        for name, (symbol, numbers) in zip(names, metadata.items(), strict=True)
    ]
    return CodeObject(kernels, disassembly)


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
