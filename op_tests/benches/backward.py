"""Speed of the backward of causal_conv1d beside a copy kernel of the same bytes: x and dout read, dx written.

    python op_tests/bench_causal_conv1d_bwd.py
    python op_tests/bench_causal_conv1d_bwd.py --shapes 4x4096x4096 --dtype bfloat16 --layout channel_last
    python op_tests/bench_causal_conv1d_bwd.py --packed 512    # rows of sequences of 512 tokens, told apart by seq_idx

Measured as bench_causal_conv1d.py does. The time is that of all the backward launches, with dweight and dbias of the layer. On
the CPU it stands beside the backward of F.silu alone. Host time is what a differentiable call keeps Python busy, forward only.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch

from benches.measure import CPU_SHAPES, GPU_SHAPES, ROTATED_BYTES, WIDTH, copier, heading, origin, parser_for, write_json
from support.backends import device_of
from support.cli import Table, choice_of, flattened, list_of
from support.tensors import DTYPES, LAYOUTS, empty_as
from support.timing import host_us, time_us
import hipconv
from hipconv import reference_training


def bench(shape: tuple[int, int, int], dtype: torch.dtype, layout: str, kernel: str, packed: int, device: torch.device) -> dict:
    """Times in microseconds by name; `wrong` if dx is not the reference's."""
    batch, dim, seqlen = shape
    size = batch * dim * seqlen * dtype.itemsize
    copies = max(3, -(-ROTATED_BYTES // (3 * size))) if device.type == "cuda" else 4
    sets = [[empty_as(layout, shape, dtype, device).normal_() for _ in range(3)] for _ in range(copies)]
    weight, bias = torch.randn(dim, WIDTH, device=device, dtype=dtype) / 2, torch.randn(dim, device=device, dtype=dtype)

    seq_idx = None
    if packed:
        seq_idx = (torch.arange(seqlen, device=device) // packed).to(torch.int32).expand(batch, seqlen).contiguous()

    def backward(x, dout, dx):
        return torch.ops.hipconv.causal_conv1d_bwd_out(dx, x, weight, bias, dout, seq_idx, use_silu=True, kernel_name=kernel)

    x, dout, dx = sets[0]
    backward(x, dout, dx)
    first = x[:1, :, : min(seqlen, 64)].double().requires_grad_()
    ids = None if seq_idx is None else seq_idx[:1, : first.shape[2]]
    reference_training.causal_conv1d(first, weight, bias, ids, use_silu=True)[0].backward(
        dout[:1, :, : first.shape[2]].double()
    )
    # Later tokens' gradients reach the last ones.
    kept = max(0, first.shape[2] - WIDTH + 1) if first.shape[2] < seqlen else seqlen
    assert first.grad is not None
    eps = torch.finfo(dtype).eps
    wrong = not torch.allclose(dx[:1, :, :kept].double(), first.grad[..., :kept], rtol=2.5 * eps, atol=2.5 * eps + 4e-6)

    copy = copier(device)
    pieces = [torch.empty(3 * size // 2 // 16 * 16, dtype=torch.uint8, device=device) for _ in range(2 * copies)]
    result = {
        "bytes": 3 * size,
        "wrong": wrong,
        "ours": time_us([functools.partial(backward, *one) for one in sets], device),
        "copy": time_us([functools.partial(copy, *pieces[2 * i : 2 * i + 2]) for i in range(copies)], device),
    }
    if device.type == "cpu":
        result["silu"] = time_us([functools.partial(torch.ops.aten.silu_backward, one[1], one[0]) for one in sets], device)
    return result


def host_time(device: torch.device) -> float:
    """Time a differentiable call on eight tokens of eight channels."""
    x, weight, bias = (torch.randn(shape, device=device, requires_grad=True) for shape in ((1, 8, 8), (8, 4), (8,)))
    return host_us(lambda: hipconv.causal_conv1d_fn(x, weight, bias, activation="silu"), device)


def main() -> int:
    parser, _ = parser_for(__doc__)
    parser.add_argument("--shapes", type=list_of(str), nargs="+", help="BATCHxDIMxSEQLEN, one or several")
    parser.add_argument("--dtype", type=list_of(choice_of(*DTYPES)), nargs="+", default=[list(DTYPES)])
    parser.add_argument("--layout", type=list_of(choice_of(*LAYOUTS)), nargs="+", default=[list(LAYOUTS)])
    parser.add_argument("--kernel", default="auto")
    parser.add_argument("--packed", type=int, default=0, help="tokens of the sequences that a row holds; default: it is one")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    device = device_of(options.backend)
    sequences = f", sequences of {options.packed} tokens" if options.packed else ""
    where = origin(device)
    print(f"{heading(where)}; backward, width {WIDTH}, bias, SiLU{sequences}; times in us")
    columns = [
        ("BxDxL", 14),
        ("dtype", 8),
        ("layout", 13),
        ("us", 9),
        ("copy us", 9),
        ("of copy", 7),
        ("vs silu's", 9),
        ("result", 6),
    ]
    table = Table(columns)
    rows = []
    for shape in flattened(options.shapes) if options.shapes else GPU_SHAPES if options.backend == "gpu" else CPU_SHAPES:
        batch, dim, seqlen = (int(part) for part in shape.split("x"))
        for dtype in flattened(options.dtype):
            for layout in flattened(options.layout):
                result = bench((batch, dim, seqlen), DTYPES[dtype], layout, options.kernel, options.packed, device)
                rows.append(
                    {"shape": [batch, dim, seqlen], "dtype": dtype, "layout": layout, "packed": options.packed, **result}
                )
                ours, copied = result["ours"], result["copy"]
                beside = f"{ours / result['silu']:.2f}x" if "silu" in result else ""
                verdict = "WRONG" if result["wrong"] else "ok"
                table.row(shape, dtype, layout, f"{ours:.1f}", f"{copied:.1f}", f"{100 * copied / ours:.1f} %", beside, verdict)
    host = host_time(device)
    print(f"host time of a differentiable call, us: {host:.1f}")
    write_json(options.json, {**where, "host_us": {"causal_conv1d_fn": host}, "rows": rows})
    return 1 if any(row["wrong"] for row in rows) else 0
