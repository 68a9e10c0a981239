"""Train on one long text that is split over processes, and get the loss that one process gets.

Every process holds a part of the tokens. The only layers that look across tokens are causal convolutions,
`hipconv.nn.CausalConv1d` with `group=`, as in the blocks of Mamba models (their scan passes its own state on, which is another
matter and is left out here). Rank 0 trains the same model on the whole text as well, and both losses are printed.

    torchrun --standalone --nproc-per-node 2 examples/long_context.py
    torchrun --standalone --nproc-per-node 2 examples/long_context.py --device cuda --tokens 1048576 --dim 1024
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
import sys
from typing import Any

import torch
from torch import Tensor, nn
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group, which its functions' defaults would keep to the end
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "python"))  # found last: an installed hipconv goes first

import hipconv  # noqa: E402
import hipconv.distributed  # noqa: E402


class Mixer(nn.Module):
    """Project, convolve, gate, project back."""

    def __init__(self, dim: int, group: Any) -> None:
        super().__init__()
        self.in_proj = nn.Linear(dim, 4 * dim, bias=False)
        self.conv = hipconv.nn.CausalConv1d(2 * dim, 4, activation="silu", group=group)
        self.out_proj = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        z, x = self.in_proj(u).chunk(2, dim=-1)
        conv: Any = self.conv(x.mT)
        return self.out_proj(conv.mT * F.silu(z))


class Model(nn.Module):
    """Characters in, logits of the next one out. `group` is None on one process."""

    def __init__(self, dim: int, layers: int, group: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, dim)
        nn.init.normal_(self.embedding.weight, std=0.02)  # it is the output projection too
        self.mixers = nn.ModuleList(Mixer(dim, group) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers + 1))

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens)
        for norm, mixer in zip(self.norms, self.mixers, strict=False):
            h = h + mixer(norm(h))
        return self.norms[-1](h) @ self.embedding.weight.T


def step(model: Model, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor, total: int, group: Any) -> float:
    """One update. The loss is the mean over all tokens of all processes, so each adds its tokens' part,
    and of every gradient.
    """
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum") / total
    optimizer.zero_grad()
    loss.backward()
    loss = loss.detach()
    if group is not None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
        dist.all_reduce(loss, group=group)
    optimizer.step()
    return loss.item()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4001, help="of the text (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--dim", type=int, default=32, help="width of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate (default: %(default)s)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="(default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if "RANK" not in os.environ:
        print("run it as: torchrun --standalone --nproc-per-node 2 examples/long_context.py", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if options.device == "cuda" else "gloo")
    group, rank = dist.group.WORLD, dist.get_rank()

    text = b"".join(file.read_bytes() for file in sorted((ROOT / "python").rglob("*.py")))[: options.tokens + 1]
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().to(options.device)[None]
    total = data.shape[1] - 1
    tokens, targets = (hipconv.distributed.shard(part, 1, group) for part in (data[:, :-1], data[:, 1:]))

    def trained(group: Any) -> tuple[Model, torch.optim.Optimizer]:
        torch.manual_seed(0)  # the same model in every process
        model = Model(options.dim, options.layers, group).to(options.device)
        return model, torch.optim.AdamW(model.parameters(), lr=options.lr)

    model, optimizer = trained(group)
    alone = trained(None) if rank == 0 else None
    largest = 0.0
    for number in range(options.steps):
        loss = step(model, optimizer, tokens, targets, total, group)
        if alone is not None:
            of_one = step(*alone, data[:, :-1], data[:, 1:], total, None)
            largest = max(largest, abs(loss - of_one) / of_one)
            print(f"step {number:>3}  loss of {dist.get_world_size()} processes {loss:.6f}, of one {of_one:.6f}", flush=True)
    if rank == 0:
        print(f"losses: {'the same' if largest < 1e-4 else 'DIFFERENT'}, to {largest:.1e} of one's")
    dist.destroy_process_group()
    return 0 if largest < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
