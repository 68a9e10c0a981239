"""Train a small character-level Mamba-2 language model on this repository's own text, then let it write.

The short convolution of every layer is hipconv: `causal_conv1d_fn` in training, with its gradient, and over a prompt, where it
also returns the state to continue from; `causal_conv1d_update` for each character written. Everything else is plain torch, so
the same file runs on a CPU (two cores: under two minutes) and with `--device cuda` on an AMD or NVIDIA GPU.

    python examples/train_char_mamba.py
    python examples/train_char_mamba.py --seconds 600 --dim 256 --layers 4 --text shakespeare.txt --prompt "ROMEO:"
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
import sys
import time
from typing import Any, cast

import torch
from torch import Tensor, nn
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "python"))  # found last: an installed hipconv goes first

import hipconv  # noqa: E402

# ---- the model ---------------------------------------------------------------------------------------------------------------


def scan(x: Tensor, log_decay: Tensor, B: Tensor, C: Tensor, chunk: int = 32) -> tuple[Tensor, Tensor]:
    """Mamba-2's state-space sum, a chunk of tokens at a time, and the state it ends in.

    ``state[t] = exp(log_decay[t]) state[t-1] + x[t] B[t]^T``, ``y[t] = state[t] C[t]``: inside a chunk as a masked product of
    matrices, between chunks by the state. x (batch, seqlen, heads, size), log_decay (batch, seqlen, heads), B and C (batch,
    seqlen, n).
    """
    seqlen = x.shape[1]
    missing = -seqlen % chunk  # tokens of zeros that decay nothing change nothing
    x, log_decay = F.pad(x, (0, 0, 0, 0, 0, missing)), F.pad(log_decay, (0, 0, 0, missing))
    B, C = F.pad(B, (0, 0, 0, missing)), F.pad(C, (0, 0, 0, missing))
    x, log_decay, B, C = (tensor.unflatten(1, (-1, chunk)) for tensor in (x, log_decay, B, C))

    total = log_decay.cumsum(2).movedim(3, 2)  # (batch, chunks, heads, chunk)
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(future, -torch.inf).exp()
    y = torch.einsum("bkhij,bkjhp->bkihp", decay * (C @ B.mT)[:, :, None], x)

    until_end = (total[..., -1:] - total).exp()
    added = torch.einsum("bkhj,bkjhp,bkjn->bkhpn", until_end, x, B)
    state, entering = torch.zeros_like(added[:, 0]), []
    for k in range(added.shape[1]):
        entering.append(state)
        state = state * total[:, k, :, -1].exp()[..., None, None] + added[:, k]
    y = y + torch.einsum("bkhi,bkin,bkhpn->bkihp", total.exp(), C, torch.stack(entering, 1))
    return y.flatten(1, 2)[:, :seqlen], state


class Mixer(nn.Module):
    """Project, convolve, scan, gate, project back."""

    def __init__(self, dim: int, size: int = 32, n: int = 32, width: int = 4) -> None:
        super().__init__()
        self.inner, self.heads, self.n = 2 * dim, 2 * dim // size, n
        self.convolved = self.inner + 2 * n
        self.in_proj = nn.Linear(dim, self.inner + self.convolved + self.heads, bias=False)
        self.conv_weight = nn.Parameter(torch.empty(self.convolved, width).uniform_(-(width**-0.5), width**-0.5))
        self.conv_bias = nn.Parameter(torch.zeros(self.convolved))
        self.dt_bias = nn.Parameter(torch.empty(self.heads).uniform_(-5, -1))
        self.A_log = nn.Parameter(torch.empty(self.heads).uniform_(1, 8).log())
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = nn.RMSNorm(self.inner)
        self.out_proj = nn.Linear(self.inner, dim, bias=False)

    def forward(self, u: Tensor, states: list[Tensor] | None = None) -> Tensor:
        """u (batch, seqlen, dim). Where `states` is given, the convolution's and the scan's are appended, for `step`."""
        z, xBC, dt = self.in_proj(u).split([self.inner, self.convolved, self.heads], dim=-1)
        # (batch, seqlen, dim) seen as (batch, dim, seqlen): a slice with dim innermost, which hipconv reads where it lies.
        conv: Any = hipconv.causal_conv1d_fn(
            xBC.mT, self.conv_weight, self.conv_bias, return_final_states=states is not None, activation="silu"
        )
        if states is not None:
            conv, conv_state = conv
            states.append(conv_state)
        x, B, C = conv.mT.split([self.inner, self.n, self.n], dim=-1)
        x, dt = x.unflatten(-1, (self.heads, -1)), F.softplus(dt + self.dt_bias)
        y, scan_state = scan(x * dt[..., None], -dt * self.A_log.exp(), B, C)
        if states is not None:
            states.append(scan_state)
        return self.finish(y, x, z)

    def step(self, u: Tensor, conv_state: Tensor, scan_state: Tensor) -> Tensor:
        """One token: u (batch, dim). Both states are advanced in place."""
        z, xBC, dt = self.in_proj(u).split([self.inner, self.convolved, self.heads], dim=-1)
        conv = hipconv.causal_conv1d_update(xBC, conv_state, self.conv_weight, self.conv_bias, activation="silu")
        x, B, C = conv.split([self.inner, self.n, self.n], dim=-1)
        x, dt = x.unflatten(-1, (self.heads, -1)), F.softplus(dt + self.dt_bias)
        scan_state *= torch.exp(-dt * self.A_log.exp())[..., None, None]
        scan_state += (x * dt[..., None])[..., None] * B[:, None, None, :]
        return self.finish(torch.einsum("bhpn,bn->bhp", scan_state, C), x, z)

    def finish(self, y: Tensor, x: Tensor, z: Tensor) -> Tensor:
        y = (y + x * self.D[:, None]).flatten(-2)
        return self.out_proj(self.norm(y * F.silu(z)))


class CharMamba(nn.Module):
    """Characters in, logits of the next one out."""

    def __init__(self, characters: int, dim: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, dim)
        nn.init.normal_(self.embedding.weight, std=0.02)  # it is the output projection too
        self.mixers = nn.ModuleList(Mixer(dim) for _ in range(layers))
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(layers + 1))

    def forward(self, tokens: Tensor, states: list[Tensor] | None = None) -> Tensor:
        h = self.embedding(tokens)
        for norm, mixer in zip(self.norms, self.mixers, strict=False):
            h = h + mixer(norm(h), states)
        return self.norms[-1](h) @ self.embedding.weight.T

    def step(self, token: Tensor, states: list[Tensor]) -> Tensor:
        h = self.embedding(token)
        for i, mixer in enumerate(cast(list[Mixer], self.mixers)):
            h = h + mixer.step(self.norms[i](h), *states[2 * i : 2 * i + 2])
        return self.norms[-1](h) @ self.embedding.weight.T


# ---- text and progress -------------------------------------------------------------------------------------------------------


def repository_text() -> str:
    """The Python sources and the README: half a million characters that are always there."""
    files = [*sorted((ROOT / "python").rglob("*.py")), *sorted((ROOT / "op_tests").rglob("*.py")), ROOT / "README.md"]
    return "\n\n".join(file.read_text() for file in files)


class Progress:
    """A bar on a terminal; ten lines where the output is kept."""

    def __init__(self, steps: int, seconds: float) -> None:
        self.steps, self.seconds, self.started, self.live, self.shown = (
            steps,
            seconds,
            time.monotonic(),
            sys.stdout.isatty(),
            -1,
        )

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def show(self, step: int, loss: float) -> None:
        done = min(1.0, max(step / self.steps, self.elapsed() / self.seconds))
        if not self.live and int(10 * done) == self.shown:
            return
        self.shown = int(10 * done)
        bar = "█" * round(30 * done) + "·" * (30 - round(30 * done))
        text = f"{bar} step {step:>4}  loss {loss:.3f}  {self.elapsed():.0f} s"
        print(f"\r{text}" if self.live else text, end="" if self.live and done < 1 else "\n", flush=True)


# ---- what it does ------------------------------------------------------------------------------------------------------------


def batches(text: Tensor, batch: int, seqlen: int, seed: int) -> Iterator[Tensor]:
    """Random pieces of the text, one character longer than what is read."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - seqlen, (batch, 1), generator=generator)
        yield text[(starts + torch.arange(seqlen + 1)).to(text.device)]


def loss_of(model: CharMamba, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(model: CharMamba, text: Tensor, options: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.01)
    progress, smooth = Progress(options.steps, options.seconds), None
    for step, tokens in enumerate(batches(text, options.batch, options.seqlen, options.seed), start=1):
        left = 1 - max(step / options.steps, progress.elapsed() / options.seconds)
        for group in optimizer.param_groups:  # up over 20 steps, then down to a tenth at the end of the steps or of the time
            group["lr"] = options.lr * min(1, step / 20) * (0.1 + 0.9 * max(0, left))
        loss = loss_of(model, tokens)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        smooth = loss.item() if smooth is None else 0.9 * smooth + 0.1 * loss.item()
        progress.show(step, smooth)
        if step >= options.steps or progress.elapsed() >= options.seconds:
            return


@torch.no_grad()
def decode_error(model: CharMamba, tokens: Tensor) -> float:
    """How far logits from reading `tokens` half at once and half one by one are from reading all at once,
    relative to their size.
    """
    states: list[Tensor] = []
    expected, half = model(tokens), tokens.shape[1] // 2
    parts = [model(tokens[:, :half], states)]
    parts += [model.step(tokens[:, t], states)[:, None] for t in range(half, tokens.shape[1])]
    return ((torch.cat(parts, dim=1) - expected).abs().max() / expected.abs().max()).item()


@torch.no_grad()
def write(model: CharMamba, prompt: Tensor, length: int, temperature: float) -> Iterator[int]:
    """The prompt's states at once, then a character at a time through the decode kernel."""
    states: list[Tensor] = []
    logits = model(prompt[None], states)[:, -1]
    for _ in range(length):
        token = torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1)[:, 0]
        yield int(token)
        logits = model.step(token, states)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500, help="updates, at most (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=80, help="training time, at most (default: %(default)s)")
    parser.add_argument("--dim", type=int, default=128, help="width of the model, a multiple of 16 (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="pieces of text an update (default: %(default)s)")
    parser.add_argument("--seqlen", type=int, default=128, help="characters a piece (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=4e-3, help="highest learning rate (default: %(default)s)")
    parser.add_argument(
        "--text", type=Path, nargs="+", help="files to learn from (default: this repository's Python and README)"
    )
    parser.add_argument("--prompt", default="def causal_conv1d", help="what it continues (default: %(default)r)")
    parser.add_argument("--length", type=int, default=400, help="characters it writes (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.7, help="(default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, default=1, help="of the CPU; more pay off in larger models (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)  # two that wait for each other in operators this small take longer than one
    text = "\n\n".join(file.read_text() for file in options.text) if options.text else repository_text()
    characters = sorted(set(text + options.prompt))
    number = {character: i for i, character in enumerate(characters)}
    tokens = torch.tensor([number[character] for character in text], device=options.device)
    kept = len(tokens) // 20  # never trained on
    model = CharMamba(len(characters), options.dim, options.layers).to(options.device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{len(text):,} characters, {len(characters)} different; {parameters:,} parameters, {options.layers} layers, "
        f"{options.device}"
    )

    unseen = next(batches(tokens[-kept:], 64, options.seqlen, options.seed))
    loss_of(model, unseen[:1]).backward()  # both compile what this machine has not compiled yet, before the clock starts
    decode_error(model, unseen[:1])
    train(model, tokens[:-kept], options)

    with torch.no_grad():
        print(
            f"loss on text it has not seen: {loss_of(model, unseen).item():.3f} (chance: "
            f"{torch.tensor(len(characters)).log():.3f})"
        )
    error = decode_error(model, unseen[:4])
    print(
        f"decode and prefill: {'equal' if error < 1e-4 else 'DIFFERENT'}, to {error:.1e} of the largest "
        f"logit\n\n{options.prompt}",
        end="",
    )
    for token in write(model, tokens.new_tensor([number[c] for c in options.prompt]), options.length, options.temperature):
        print(characters[token], end="", flush=True)
    print()
    return 0 if error < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
