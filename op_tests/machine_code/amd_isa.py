"""This counts what the kernels' hot loops cost on AMD cards, in their machine code; test_amd_isa.py holds them to limits.

    python op_tests/amd_isa.py
    python op_tests/amd_isa.py --kernel tile --arch gfx942,gfx1100 --mnemonics
    python op_tests/amd_isa.py --source csrc/kernels/copy.cu --instance copy_vectors --element_bytes 4 --listing

A row is about one steady iteration (amd_flow.py) of the kernel's best loop, as one lane sees it. "12.7-13.1" gives the cheapest
and the dearest of the iterations that do the same work; the dearest is held to the limit, and the columns with one figure are
about it.

in         a loop, or the kernel as a whole, where that is what does the work
elements   that a lane stores, outputs and states
VALU       an element: vector instructions (v_*) without matrix instructions; a packed or a dual-issue instruction is one
weighted   the same with exp, rcp and their like, which take four times as long, counted four times
ops        the same with a packed f32 or a dual-issue instruction counted as two
SALU       an element: scalar instructions, without branches, waits and scheduling hints
loads      from memory: how many, of how many bytes a lane; stores likewise
in flight  how many of the wide loads are under way at once
VGPR       AGPRs included; SGPR, LDS_B (bytes a block)
waves      that fit on a SIMD, by registers and LDS: the compiler's figure
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
import re
import sys
from typing import NamedTuple

from machine_code.amd_code import (
    AMD_ARCHS,
    CLANG,
    PACKAGES,
    ROOT,
    TOOLS,
    CodeObject,
    Instruction,
    Kernel,
    build_all,
    instructions_of,
    knows,
    missing,
)
from machine_code.amd_flow import Work, blocks_of, live_at_entry, loops_of, steady_ways
from machine_code.amd_masks import Masks
from support.cli import Table, choice_of, flattened, list_of

# ---- counts ------------------------------------------------------------------------------------------------------------------


class Counts:
    """The instructions of one iteration, counted."""

    def __init__(self, instructions: tuple[Instruction, ...], wave_size: int) -> None:
        self.instructions, self.wave_size = instructions, wave_size
        self.by_mnemonic = Counter(i.mnemonic for i in instructions)

    def of(self, kind: str, bytes: int | None = None) -> int:
        """Instructions of a kind (see Instruction.kind), or those of them that move so many bytes a lane."""
        return sum(i.kind == kind and bytes in (None, i.bytes) for i in self.instructions)

    @property
    def valu(self) -> int:
        return self.of("valu")

    @property
    def transcendental(self) -> int:
        return sum(i.transcendental for i in self.instructions)

    @property
    def multiplications(self) -> int:
        """Count multiplications of f32, with or without an addition; a packed instruction makes two."""
        names = [name for i in self.instructions for name in i.mnemonic.split("::")]
        return sum(
            2 if name.startswith("v_pk_") else 1 for name in names if re.search(r"_(mul|fma|fmac|fmaak|fmamk|mac)_f32", name)
        )

    @property
    def lane_operations(self) -> int:
        return sum(i.lane_operations for i in self.instructions if i.kind == "valu")

    def loads_in_flight(self, width: int) -> int:
        """Loads of at least `width` bytes under way at once, at most, iteration after iteration."""
        counted: list[bool] = []  # what the counter of loads holds, oldest first, and whether it is such a load
        most, before = 0, None
        while counted != before and len(counted) < 64:
            before = list(counted)
            for i in self.instructions:
                if i.kind == "load" or (
                    i.kind == "store" and self.wave_size == 64
                ):  # from gfx10 on, stores have a counter of their own
                    counted.append(i.kind == "load" and i.bytes >= width)
                    most = max(most, sum(counted))
                elif wait := re.search(r"vmcnt\((\d+)\)|s_wait_loadcnt(_dscnt)? (0x[0-9a-f]+)", i.text):
                    left = int(wait[1]) if wait[1] else int(wait[3], 16) >> (8 if wait[2] else 0)
                    counted = counted[max(len(counted) - left, 0) :]
        return most

    def products_under_reads(self) -> int:
        """Matrix instructions from a read of LDS to the wait for it, at least; of reads behind the first matrix instruction.

        Raises ValueError if no read is waited for there.
        """
        products, reads, fewest = 0, [], []  # reads: how many products each had before it that is under way, oldest first
        for i in self.instructions:
            products += matrix(i)
            if i.kind == "lds":
                reads.append(products)
            elif wait := re.search(r"lgkmcnt\((\d+)\)|s_wait_(loadcnt_)?dscnt (0x[0-9a-f]+)", i.text):
                left = int(wait[1]) if wait[1] else int(wait[3], 16) & 0xFF
                done, reads = reads[: max(len(reads) - left, 0)], reads[max(len(reads) - left, 0) :]
                fewest += [products - before for before in done if before]
        return min(fewest)


class HotLoop(NamedTuple):
    """A loop of a kernel that does work, or the kernel itself if it does some outside of loops, in its steady state."""

    is_loop: bool
    work: int  # of an iteration: bytes stored a lane, unless told otherwise
    cheapest: Counts
    dearest: Counts
    nested: bool  # it passes through a loop inside, of which one iteration is counted


def stores(width: int) -> Work:
    """Work: the bytes of stores that move at least `width` bytes a lane."""
    return lambda i: i.bytes if i.kind == "store" and i.bytes >= width else 0


def loads(width: int) -> Work:
    """The bytes of loads, from memory or LDS, that move at least half of `width` bytes a lane:
    neighbours are often read in part.
    """
    return lambda i: i.bytes if i.kind in ("load", "lds") and 2 * i.bytes >= width else 0


def matrix(i: Instruction) -> int:
    """Work: matrix instructions."""
    return int(i.kind == "matrix")


def hot_loops(
    kernel: Kernel, width: int = 16, work: Work | None = None, also: Work | None = None, whole: bool | None = None
) -> list[HotLoop]:
    """The loops of a kernel that do some work, the one with the fewest vector instructions for it first.

    kernel: `amd_code.build(source, arch).kernel(name)`. work and also (see amd_flow.py): `stores(width)` and `loads(width)`,
    unless told otherwise. whole: only the kernel itself (True) or only its loops (False). Raises LookupError if nothing in them
    does any work.
    """
    work, also = work or stores(width), also or loads(width)
    blocks = blocks_of(instructions_of(kernel.function))
    loops, masks = loops_of(blocks), Masks(kernel.wave_size)
    live = live_at_entry(blocks, masks)
    found = []
    for loop in loops:
        if whole in (None, not loop.is_loop) and (ways := steady_ways(blocks, loops, loop, masks, live, work, also)):
            fewest, most = (Counts(way.instructions, kernel.wave_size) for way in ways)
            found.append(HotLoop(loop.is_loop, ways[0].work, fewest, most, any(way.nested for way in ways)))
    if not found:
        raise LookupError(f"no iteration of {kernel.name} on {kernel.arch} does the work that was asked for")
    return sorted(found, key=lambda loop: loop.dearest.valu / loop.work)


# ---- the named kernels and their limits --------------------------------------------------------------------------------------


class FastKernel(NamedTuple):
    """A kernel whose hot loop is counted, and its limits."""

    source: Path
    instance: str  # its name, or enough of it to tell it from the others of the file
    element_bytes: int  # of what it stores
    width: int = 16  # bytes of the loads and stores of its hot loop
    transcendental: float | None = (
        None  # instructions an element: they tell loops and ways with an activation from those without
    )
    multiplications: float = 0  # an element, at least; fewer mean that arithmetic was left out of the count
    valu: dict[str, float] | None = None  # instructions an element, at most, by architecture
    waves: int = 0  # a SIMD, at least
    whole: bool | None = None  # True: it has no hot loop, all of it counts; False: a loop does


_KERNELS = ROOT / "csrc" / "kernels" / "causal_conv1d"


def _conv1d(
    file: str,
    instance: str,
    valu: tuple[float, float],
    waves: int,
    width: int = 16,
    multiplications: float = 6,
    outputs: float = 1,
    whole: bool | None = None,
    gfx90a: float | None = None,
) -> FastKernel:
    """A kernel for bf16, width 4, SiLU: its exp2, its reciprocal, 2 of the multiplications.

    valu: the limits of gfx9 and of later cards, whatever the compiler; gfx90a: its own, where it takes more, as an addition to
    an address is two instructions there and one on gfx942. outputs: the share of what it stores that is outputs; the rest are
    states, or outputs in the other of two layouts, a choice at run time that the count takes for both. whole: see FastKernel.
    """
    limits = {arch: valu[0] if arch.startswith("gfx9") else valu[1] for arch in AMD_ARCHS}
    limits["gfx90a"] = gfx90a or valu[0]
    source = _KERNELS / f"{file}.cu"
    name = f"causal_conv1d_{instance}"
    return FastKernel(source, name, 2, width, 2 * outputs, multiplications * outputs, limits, waves, whole)


FAST_KERNELS = {
    "tile": _conv1d("forward/tile", "fwd_tile<bf16, 8, 4>", (11.0, 14.0), 4),
    "vector": _conv1d("forward/vector", "fwd_vector<bf16, 4, 0>", (11.0, 14.0), 4),
    "vector_alike": _conv1d("forward/vector", "fwd_vector<bf16, 4, 1>", (15.0, 17.0), 4, gfx90a=16.0),
    "vector_apart": _conv1d("forward/vector", "fwd_vector<bf16, 4, 2>", (15.0, 17.0), 4, gfx90a=16.0),
    # The way through vector_any that is counted leaves out taps; the plain way beside it takes about as much as vector_apart's.
    "vector_any": _conv1d("forward/vector_any_bf16", "fwd_vector_any<bf16, 4, false>", (28.5, 30.0), 4),
    "vector_rows": _conv1d("forward/vector_any_bf16", "fwd_vector_any<bf16, 4, true>", (14.0, 15.5), 4),
    "bwd_tile": _conv1d("backward/tile_5", "bwd_tile_kernel<bf16, 4, false>", (21.0, 27.0), 2, width=8, multiplications=17),
    "bwd_vector": _conv1d("backward/whole", "bwd_whole<bf16, 4>", (21.5, 25.5), 5, multiplications=16, gfx90a=23.0),
    "varlen": _conv1d("prefill/tile_bf16", "varlen_tile<bf16, 8, 4, false>", (11.5, 13.0), 4),
    # Decode stores an output and three or four columns of the state; three columns of packed slots go through LDS.
    "step": _conv1d(
        "decode/step", "update_step<bf16, bf16, 4, 0, 0, true, false>", (10.0, 8.5), 8, width=8, outputs=1 / 4, whole=True
    ),
    "step_packed": _conv1d(
        "decode/step", "update_step<bf16, bf16, 4, 3, 0, true, false>", (11.5, 10.5), 8, width=8, outputs=1 / 4, whole=True
    ),
    "step_whole": _conv1d(
        "decode/step",
        "update_step<bf16, bf16, 4, 4, 0, true, false>",
        (9.0, 8.5),
        8,
        width=4,
        multiplications=5,
        outputs=1 / 5,
        whole=True,
    ),
    # The loop over tokens; where channels are neighbours it also stores to the state the columns of speculative decoding.
    "update_vector": _conv1d(
        "decode/vector", "update_vectors<bf16, bf16, 4, 0, 4>", (6.0, 6.5), 5, width=8, outputs=1 / 3, whole=False
    ),
    "update_packed": _conv1d(
        "decode/vector", "update_vectors<bf16, bf16, 4, 3, 4>", (8.5, 9.0), 5, width=8, outputs=1 / 2, whole=False
    ),
}


class Figures(NamedTuple):
    """The cost of a steady iteration of a kernel's best hot loop."""

    asked: FastKernel
    kernel: Kernel
    loop: HotLoop

    @property
    def elements(self) -> int:
        """Stored by a lane in an iteration."""
        return self.loop.work // self.asked.element_bytes

    def range(self, count: Callable[[Counts], int]) -> tuple[float, float]:
        """Something an element, in the cheapest and in the dearest iteration."""
        return count(self.loop.cheapest) / self.elements, count(self.loop.dearest) / self.elements

    @property
    def has_activation(self) -> bool:
        return self.asked.transcendental in (None, self.loop.dearest.transcendental / self.elements)

    def misses(self) -> list[str]:
        """The limits that the dearest steady iteration does not keep to."""
        asked, dearest = self.asked, self.loop.dearest
        valu, transcendental, multiplications = (
            count / self.elements for count in (dearest.valu, dearest.transcendental, dearest.multiplications)
        )
        limit = asked.valu[self.kernel.arch] if asked.valu else valu
        scratch = self.kernel.numbers["private_segment_fixed_size"]
        narrow = sorted({i.mnemonic for i in dearest.instructions if i.kind == "store" and i.bytes < asked.width})
        checks = [
            (valu <= limit, f"VALU {valu:.2f} > {limit:g}"),
            (self.kernel.waves >= asked.waves, f"waves {self.kernel.waves} < {asked.waves}"),
            (dearest.of("load", asked.width) > 0, f"no load of {asked.width} bytes"),
            (not narrow, f"{', '.join(narrow)} beside stores of {asked.width} bytes"),
            (scratch == 0, f"{scratch} bytes of scratch memory"),
            (not self.loop.nested, "a loop inside the hot loop"),
            (self.has_activation, f"{transcendental:.2f} transcendental, not {asked.transcendental}"),
            (multiplications >= asked.multiplications, f"{multiplications:.2f} multiplications < {asked.multiplications}"),
        ]
        return [miss for kept, miss in checks if not kept]


def figures(asked: FastKernel, codes: Iterable[CodeObject]) -> Iterator[Figures]:
    """Counts the kernel's best hot loop in each of these: the cheapest of those with the activation, if it has one.

    Others that store as widely (copies, states) take fewer instructions, and are cold.
    """
    wide = loads(asked.width)

    def also(i: Instruction) -> int:
        return wide(i) + (i.transcendental if asked.transcendental else 0)

    for code in codes:
        kernel = code.kernel(asked.instance)
        found = [Figures(asked, kernel, loop) for loop in hot_loops(kernel, asked.width, also=also, whole=asked.whole)]
        yield next((figures for figures in found if figures.has_activation), found[0])


# ---- the table ---------------------------------------------------------------------------------------------------------------


def new_table(names: Iterable[str]) -> Table:
    columns = "arch:7 in:6 elements VALU:11 weighted:11 ops:11 SALU:5 loads:11 stores:8 LDS:3 waits in_flight"
    columns += " VGPR AGPR SGPR LDS_B:5 waves"
    parts = [column.partition(":") for column in columns.split()]
    sized = [(title.replace("_", " "), int(width or 0)) for title, _, width in parts]
    return Table([("kernel", max(map(len, names))), *sized, ("limits", 6)])


def add_row(table: Table, name: str, found: Figures) -> None:
    dearest, numbers = found.loop.dearest, found.kernel.numbers

    def an_element(count: Callable[[Counts], int]) -> str:
        return "-".join(dict.fromkeys(f"{value:.2f}" for value in found.range(count)))

    def by_width(kind: str) -> str:
        widths = Counter(i.bytes for i in dearest.instructions if i.kind == kind)
        return " ".join(f"{count}x{width}" for width, count in sorted(widths.items(), reverse=True))

    table.row(
        name,
        found.kernel.arch,
        "loop" if found.loop.is_loop else "kernel",
        found.elements,
        an_element(lambda counts: counts.valu),
        an_element(lambda counts: counts.valu + 3 * counts.transcendental),
        an_element(lambda counts: counts.lane_operations),
        f"{dearest.of('salu') / found.elements:.2f}",
        by_width("load"),
        by_width("store"),
        dearest.of("lds"),
        dearest.of("wait"),
        dearest.loads_in_flight(found.asked.width),
        numbers["vgpr_count"],
        numbers.get("agpr_count", 0),
        numbers["sgpr_count"],
        numbers["group_segment_fixed_size"],
        found.kernel.waves,
        "; ".join(found.misses()) or "kept",
    )


def print_listing(found: Figures) -> None:
    """The kernel's instructions; a minus marks those of the cheapest steady iteration, a plus those of the dearest."""
    cheapest, dearest = ({i.address for i in counts.instructions} for counts in (found.loop.cheapest, found.loop.dearest))
    for i in instructions_of(found.kernel.function):
        marks = ("-" if i.address in cheapest else " ") + ("+" if i.address in dearest else " ")
        print(f"{marks} {i.address:x}  {i.text}" + (f"  -> {i.target:x}" if i.target is not None else ""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names, known = list_of(choice_of(*FAST_KERNELS)), list_of(choice_of(*AMD_ARCHS))
    parser.add_argument(
        "--kernel", type=names, nargs="+", default=[list(FAST_KERNELS)], help=f"of {', '.join(FAST_KERNELS)}; default all"
    )
    parser.add_argument(
        "--arch", type=known, nargs="+", default=[list(AMD_ARCHS)], help=f"of {', '.join(AMD_ARCHS)}; default all"
    )
    parser.add_argument(
        "--clang", type=int, choices=(19, 22), default=CLANG, help=f"version; default {CLANG}, which does not know gfx950"
    )
    parser.add_argument(
        "--source", type=Path, help="another kernel file; with --instance, --element_bytes and possibly --width"
    )
    parser.add_argument("--instance", help="the kernel of --source: its name, or enough of it")
    parser.add_argument("--element_bytes", type=int, default=2, help="of what --instance stores; default 2")
    parser.add_argument("--width", type=int, default=16, help="bytes of the hot loop's stores; default 16")
    parser.add_argument("--transcendental", type=float, help="instructions an element of --instance; SiLU takes 2")
    parser.add_argument(
        "--mnemonics", action="store_true", help="the dearest iteration, instruction by instruction, with counts"
    )
    parser.add_argument("--listing", action="store_true", help="the whole kernel, with the counted instructions marked")
    options = parser.parse_args()
    if (options.source is None) != (options.instance is None):
        parser.error("--source and --instance go together")
    if lacking := missing(*TOOLS):
        sys.exit(f"{', '.join(lacking)} not found; Debian: apt-get install {PACKAGES}")

    kernels = {name: FAST_KERNELS[name] for name in flattened(options.kernel)}
    if options.source:
        sizes = (options.element_bytes, options.width, options.transcendental)
        kernels = {options.instance: FastKernel(options.source.resolve(), options.instance, *sizes)}
    table = new_table(kernels)
    missed = False
    try:
        for name, asked in kernels.items():
            archs = [arch for arch in flattened(options.arch) if knows(options.clang, arch)]
            for found in figures(asked, build_all(asked.source, archs, options.clang)):
                add_row(table, name, found)
                missed |= bool(found.misses())
                if options.mnemonics:
                    for mnemonic, count in found.loop.dearest.by_mnemonic.most_common():
                        print(f"{count:5d}  {mnemonic}")
                if options.listing:
                    print_listing(found)
    except (LookupError, RuntimeError) as error:  # no such kernel, or it does not compile
        sys.exit(str(error))
    return 1 if missed else 0
