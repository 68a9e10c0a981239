"""The grids of vLLM's and SGLang's own tests of their causal conv1d, and the same calls of `hipconv.serving`.

The grids are those of vLLM's tests/kernels/mamba/test_causal_conv1d.py and SGLang's sgl-kernel/tests/test_causal_conv1d.py,
without dtypes, which are no cases of their own. What a call should give is torch's `F.conv1d` of each sequence, in float64. The
files themselves, as they are, are run by `python op_tests/run_engine_tests.py`.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import torch
from torch import Tensor
import torch.nn.functional as F

from support.tensors import DTYPES, mismatch, same_bits
from hipconv import serving

PAD = -1
LARGEST = 1 << 18  # elements of x that the CPU backend gets in every run; simt gets an eighth


class EngineCase(NamedTuple):
    engine: str
    form: str  # the name of the test: update, gather, varlen, one sequence
    batch: int
    dim: int
    tokens: int  # of a row; of all sequences in varlen
    width: int
    has_bias: bool
    silu: bool
    padded: bool  # rows at the end whose slot is the pad slot
    has_state: bool = True  # of one sequence; drawn for each of varlen

    def reduced(self, elements: int) -> EngineCase:
        """Fewer channels where x is too large: as few as leave the rest of a division by 64, and 64 or more."""
        rows = self.batch if self.form in ("update", "gather") else 1
        dim = max(64, min(self.dim, elements // (rows * self.tokens))) // 64 * 64 + self.dim % 64
        return self._replace(dim=min(self.dim, dim))


@functools.cache
def cases() -> tuple[EngineCase, ...]:
    """Each once, an engine's own first."""
    flags = (False, True)
    wide = (2048, 2048 + 16, 4096)
    vllm = [
        *(
            EngineCase("vllm", "update", 2, dim, 1, 4, bias, silu, False)
            for dim, bias, silu in itertools.product(wide, flags, flags)
        ),
        *(
            EngineCase("vllm", "gather", 3, dim, tokens, width, *f)
            for dim, tokens, width, *f in itertools.product(wide[1:], (1, 3), (3, 4), flags, flags, flags)
        ),
        *(
            # with padding or without, a sequence has one token at least
            EngineCase("vllm", "varlen", min(batch, tokens - 3 * padded), dim, tokens, 4, True, True, padded)
            for batch, dim, tokens, padded in itertools.product((4, 10), (64, 4096), (8, 249, 4096), flags)
        ),
    ]
    lengths = (1, 8, 16, 32, 64, 128, 256, 512, 784, 1024, 1025, 2048, 4096)
    sglang = [
        *(
            EngineCase("sglang", "one sequence", 1, 64, n, 4, True, True, False, state)
            for n, state in itertools.product(lengths, flags)
        ),
        *(
            EngineCase("sglang", "gather", 3, dim, 1, width, *f)
            for dim, width, *f in itertools.product(wide, (2, 3, 4), flags, flags, flags)
        ),
        *(
            EngineCase("sglang", "varlen", 1 if tokens < 10 else 4, dim, tokens, 4, True, True, padded)
            for dim, tokens, padded in itertools.product((64, 4096), (*lengths[1:9], 1024, 2048, 2049, 4096), flags)
        ),
    ]
    seen = {case._replace(engine=""): case for case in reversed([*vllm, *sglang])}
    return tuple(reversed(seen.values()))


def expected_of(x: Tensor, weight: Tensor, bias: Tensor | None, before: Tensor | None, silu: bool) -> tuple[Tensor, Tensor]:
    """Return the result of one sequence, (dim, tokens), by torch in float64, and the state after it."""
    width = weight.shape[1]
    before = torch.zeros(len(x), width - 1, dtype=x.dtype, device=x.device) if before is None else before
    seen = torch.cat([before, x], dim=1)
    out = F.conv1d(seen[None].double(), weight[:, None].double(), None if bias is None else bias.double(), groups=len(x))[0]
    return (F.silu(out) if silu else out), seen[:, seen.shape[1] - (width - 1) :]


def wrong(case: EngineCase, dtype: torch.dtype, device: torch.device, seed: int) -> str | None:
    """None if results and states are right, and nothing else is written; else what is wrong."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    several = case.form in ("varlen", "one sequence")
    pads = (3 if several else 5) if case.padded else 0
    rows, slots = case.batch + pads, 10 * case.batch
    weight, bias = normal(case.dim, case.width), normal(case.dim) if case.has_bias else None
    order = torch.randperm(slots, generator=generator)[: case.batch]
    indices = torch.cat([order, torch.full((pads,), PAD)]).to(device, torch.int32)
    dim_last = case.engine == "vllm"  # as its tests have x and the states
    states = normal(slots, case.width - 1, case.dim).transpose(1, 2) if dim_last else normal(slots, case.dim, case.width - 1)
    old = states.clone()
    activation = "silu" if case.silu else None
    if several:
        whole = normal(case.tokens, case.dim + 128).t() if dim_last else normal(case.dim + 128, case.tokens)
        x = whole[64 : 64 + case.dim]
        cuts = torch.randperm(case.tokens - 1, generator=generator)[: rows - 1].sort().values + 1
        starts = [0, *cuts.tolist(), case.tokens]
        has_state = (
            torch.randint(0, 2, (rows,), generator=generator).bool()
            if case.form == "varlen"
            else torch.tensor([case.has_state])
        )
        given = x.clone()
        begins = torch.tensor(starts, dtype=torch.int32, device=device)
        out = serving.causal_conv1d_fn(x, weight, bias, states, begins, indices, has_state.to(device), activation, PAD)
        parts = [(given[:, a:b], out[:, a:b], bool(had)) for a, b, had in zip(starts[:-1], starts[1:], has_state, strict=True)]
    else:
        x = normal(rows, case.tokens, case.dim).transpose(1, 2) if dim_last else normal(rows, case.dim, case.tokens)
        given = x.clone()
        out = serving.causal_conv1d_update(x, states, weight, bias, activation, conv_state_indices=indices, pad_slot_id=PAD)
        parts = [(given[row], out[row], True) for row in range(rows)]
    results, expected = [], []
    for row, (of_x, of_out, had) in enumerate(parts[: case.batch]):
        slot = int(order[row])
        result, after = expected_of(of_x, weight, bias, old[slot] if had else None, case.silu)
        results.append(of_out)
        expected.append(result)
        if not same_bits(states[slot], after):
            return f"row {row}: the state is not the last {case.width - 1} values"
    if problem := mismatch(torch.cat(results, dim=1), torch.cat(expected, dim=1)):
        return problem
    untouched = torch.ones(slots, dtype=torch.bool)
    untouched[order] = False
    return None if same_bits(states[untouched], old[untouched]) else "a slot of no row was written"


def variant(number: int) -> torch.dtype:
    return list(DTYPES.values())[number % 3]
