"""Three-dimensional convolutions to test and time, shared by the tests beside it and benches/conv3d.py."""

from __future__ import annotations

import json
import math
from pathlib import Path
import random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from conv2d.cases import outside_gates
import hipconv
from hipconv import reference

LAYOUTS = ("ncdhw", "ndhwc")
MODELS = ("wan21_vae_720p",)
_FORMATS = {"ncdhw": torch.contiguous_format, "ndhwc": torch.channels_last_3d}
Three = tuple[int, int, int]


class Case(NamedTuple):
    """One convolution, and what else its call says. T counts the frames of x; `cached` those before them, None for no cache."""

    N: int
    C: int
    T: int
    H: int
    W: int
    K: int
    kernel: Three
    stride: Three = (1, 1, 1)
    padding: Any = 0  # whatever hipconv.conv3d takes
    dilation: Three = (1, 1, 1)
    groups: int = 1
    cached: int | None = None
    time_padding: str | None = None
    padding_mode: str = "zeros"
    dtype: torch.dtype = torch.bfloat16
    layout: str = "ndhwc"
    has_bias: bool = True
    activation: str = "none"
    has_residual: bool = False
    saves: bool = False

    @property
    def history(self) -> int:
        return (self.kernel[0] - 1) * self.dilation[0]

    @property
    def out_size(self) -> tuple[int, ...]:
        sides = (self.padding,) * 3 if isinstance(self.padding, int) else self.padding
        pairs = [(side, side) for side in sides] if len(sides) == 3 else [sides[:2], sides[2:4], sides[4:]]
        frames = self.T + (self.history if self.time_padding in ("zeros", "first") else self.cached or 0)
        return tuple(
            (size + sum(pair) - dilation * (taps - 1) - 1) // step + 1
            for size, pair, taps, step, dilation in zip(
                (frames, self.H, self.W), pairs, self.kernel, self.stride, self.dilation, strict=True
            )
        )

    @property
    def macs(self) -> int:
        return self.N * self.K * math.prod(self.out_size) * self.C // self.groups * math.prod(self.kernel)

    def reduced(self, macs: int) -> Case:
        """The same kind of convolution, with about `macs` products at most: a smaller volume, then fewer channels."""
        case = self
        least = [
            min(size, max(5, (taps - 1) * apart + 1))
            for size, taps, apart in zip(self[3:5], self.kernel[1:], self.dilation[1:], strict=True)
        ]
        while case.macs > macs and (least[0] < case.H or least[1] < case.W):
            case = case._replace(H=max(least[0], case.H * 2 // 3), W=max(least[1], case.W * 2 // 3))
        while case.macs > macs and case.groups == 1 and case.C > 32 and case.C % 2 == case.K % 2 == 0:
            case = case._replace(C=case.C // 2, K=case.K // 2)
        return case

    def inputs(self, device: torch.device, seed: int = 0, draws_on: str = "cpu") -> dict[str, Any]:
        """The arguments of a call, the tensors in the case's layout. draws_on: the device that draws the values, each its own;
        the CPU takes seconds for the layers of a video.
        """
        generator = torch.Generator(draws_on).manual_seed(seed)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            values = torch.randn(shape, generator=generator, device=draws_on) * scale
            return values.to(device, self.dtype).contiguous(memory_format=_FORMATS[self.layout])

        products = self.C // self.groups * math.prod(self.kernel)
        arguments: dict[str, Any] = {
            "x": normal(self.N, self.C, self.T, self.H, self.W),
            "weight": normal(self.K, self.C // self.groups, *self.kernel, scale=products**-0.5),
            "bias": torch.randn(self.K, generator=generator, device=draws_on).to(device, self.dtype) if self.has_bias else None,
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "time_padding": self.time_padding,
            "padding_mode": self.padding_mode,
            "activation": self.activation,
        }
        if self.cached is not None:
            arguments["cache"] = normal(self.N, self.C, self.cached, self.H, self.W)
        if self.has_residual:
            arguments["residual"] = normal(self.N, self.K, *self.out_size)
        if self.saves:
            saved = torch.full((self.N, self.C, self.history, self.H, self.W), torch.nan, dtype=self.dtype, device=device)
            arguments["cache_out"] = saved.contiguous(memory_format=_FORMATS[self.layout])
        return arguments

    def __str__(self) -> str:
        kernel = "x".join(map(str, self.kernel))
        dtype = str(self.dtype).removeprefix("torch.")
        text = f"{self.N}x{self.C}x{self.T}x{self.H}x{self.W} {self.K}x{kernel} {dtype} {self.layout}"
        for name, plain in Case._field_defaults.items():
            if name not in ("dtype", "layout") and getattr(self, name) != plain:
                text += f" {name} {getattr(self, name)}".replace(", ", ",")
        return text


def check_chunks(arguments: dict[str, Any], frames: list[int]) -> None:
    """A causal call with three frames of taps has the same bits in chunks of so many frames, which two caches join in turns."""
    whole, x = hipconv.conv3d(**arguments), arguments["x"]
    caches = [torch.full_like(x[:, :, :2], torch.nan) for _ in range(2)]
    chunks: list[Tensor] = []
    for number, chunk in enumerate(x.split(frames, 2)):
        cache = caches[number % 2] if number else None
        chunks.append(hipconv.conv3d(**arguments | {"x": chunk}, cache=cache, cache_out=caches[1 - number % 2]))
    assert torch.equal(torch.cat(chunks, 2), whole)
    assert torch.equal(caches[len(frames) % 2], x[:, :, -2:])


# ---- which -------------------------------------------------------------------------------------------------------------------


def model_layers(model: str) -> list[tuple[Case, int]]:
    """The convolutions of a model with how often it calls each: frames of a cache first, as the file counts them,
    then the others.
    """
    rows = json.loads((Path(__file__).parent / "shapes.json").read_text())[model]
    layers = []
    for C, K, kt, kh, kw, frames, H, W, calls in rows:
        case = Case(1, C, frames - (kt - 1), H, W, K, (kt, kh, kw), padding=(0, kh // 2, kw // 2), time_padding="zeros")
        layers.append((case._replace(cached=kt - 1, saves=True), calls))
    return layers


CUBE, TIME, PLANE = (3, 3, 3), (3, 1, 1), (1, 3, 3)
CAUSAL: dict[str, Any] = {"padding": (0, 1, 1), "time_padding": "zeros"}
EDGE = [
    # video decoders: the first chunk, chunks of one frame, a cache that is full, half full, empty
    Case(1, 96, 2, 17, 9, 96, CUBE, **CAUSAL, cached=2, saves=True),
    Case(1, 96, 1, 9, 10, 40, CUBE, **CAUSAL, saves=True),
    Case(1, 64, 1, 6, 8, 72, CUBE, **CAUSAL, cached=1, saves=True),
    Case(2, 16, 3, 8, 8, 32, CUBE, **CAUSAL, cached=0, saves=True, activation="silu"),
    Case(1, 24, 2, 9, 8, 3, CUBE, **CAUSAL, cached=2, saves=True),
    Case(1, 128, 1, 5, 6, 3, CUBE, padding=(0, 1, 1), time_padding="first", padding_mode="replicate", saves=True),
    Case(2, 32, 2, 6, 7, 64, CUBE, padding=(0, 1, 1), time_padding="first", cached=1, saves=True, has_residual=True),
    Case(1, 48, 3, 6, 5, 96, TIME, time_padding="zeros", cached=2, saves=True),
    # an encoder's downsampling in time: a window begins in the cache
    Case(1, 32, 4, 5, 6, 32, TIME, (2, 1, 1), cached=1, saves=True),
    # as F.conv3d has them
    Case(2, 8, 5, 6, 7, 24, CUBE, padding=1),
    Case(1, 40, 3, 9, 17, 130, PLANE, padding=(0, 1, 1), has_residual=True, activation="relu"),
    Case(1, 64, 2, 9, 9, 8, (1, 1, 1)),
    Case(1, 16, 3, 6, 6, 24, (2, 3, 1), padding=(2, 0, 1, 2, 0, 0)),
    Case(1, 16, 2, 4, 4, 8, (1, 1, 1), padding=(3, 0, 0)),  # frames that see nothing but padding
    Case(2, 24, 5, 7, 8, 18, (2, 3, 2), (2, 1, 2), (1, 1, 0), (2, 1, 1), groups=3, cached=2, saves=True),
    Case(2, 128, 2, 6, 9, 192, (2, 2, 3), padding=(1, 0, 1), groups=2),
    Case(1, 12, 4, 6, 6, 12, CUBE, padding=1, groups=12),
    Case(1, 3, 3, 9, 9, 16, CUBE, padding=1),
    Case(1, 1, 1, 1, 1, 1, (1, 1, 1)),
    Case(3, 5, 3, 4, 5, 7, CUBE, (2, 2, 2), 1, (1, 2, 1)),
    Case(1, 8, 4, 5, 6, 16, CUBE, padding=(2, 2, 1), padding_mode="reflect"),
    Case(1, 16, 2, 5, 6, 8, CUBE, padding=(2, 3, 0, 1, 2, 2), padding_mode="replicate", cached=2, saves=True),
    Case(1, 9, 3, 4, 4, 8, CUBE, padding=(1, 2, 3), padding_mode="circular"),
    Case(1, 16, 5, 6, 6, 16, CUBE, **CAUSAL, dilation=(2, 1, 1), cached=3, saves=True),
    # a decoder that is not causal: repeated frames, and zeros around rows and columns
    Case(1, 32, 3, 6, 9, 48, CUBE, padding=1, time_padding="edges", has_residual=True),
    Case(2, 8, 1, 5, 6, 16, CUBE, (2, 1, 1), padding=(3, 2, 0, 1, 1, 1), time_padding="edges", padding_mode="reflect"),
]
# Few filters whose taps are side by side: squares with and without a halo, one and several, at edges that cut them; all taps of
# time that there may be, frames of nothing but padding; next caches that are written with the result, and that are not.
FEW = [
    Case(1, 96, 4, 17, 19, 3, CUBE, **CAUSAL, cached=2, saves=True, activation="silu"),
    Case(2, 128, 1, 5, 6, 3, CUBE, padding=(0, 1, 1), time_padding="first", padding_mode="replicate", saves=True),
    Case(2, 40, 5, 20, 31, 3, CUBE, padding=1, has_residual=True),
    Case(1, 64, 3, 16, 16, 8, TIME, time_padding="zeros", cached=1, saves=True),
    Case(1, 8, 2, 9, 9, 1, (2, 5, 5), padding=(0, 1, 2, 0, 3, 1)),
    Case(1, 16, 2, 4, 4, 8, (1, 1, 1), padding=(3, 0, 0)),
    Case(1, 32, 2, 9, 12, 4, (3, 2, 4), padding=(1, 1, 2), padding_mode="reflect", cached=1),
    Case(1, 24, 1, 9, 8, 3, CUBE, **CAUSAL, cached=0, saves=True),
    Case(1, 16, 3, 17, 9, 3, CUBE, padding=1, time_padding="edges"),
]


def edge_cases(every: bool = True) -> list[Case]:
    """EDGE in 16 bits and both layouts, or each in one, and every third in float32; FEW channels last."""
    sixteen = (torch.bfloat16, torch.float16)
    both = [
        case._replace(dtype=sixteen[i % 2], layout=layout)
        for i, case in enumerate(EDGE)
        for layout in (LAYOUTS if every else LAYOUTS[i // 2 % 2 :][:1])
    ]
    few = [case._replace(dtype=sixteen[i // 2 % 2], layout="ndhwc") for i, case in enumerate(FEW)]
    return (
        both
        + few
        + [case._replace(dtype=torch.float32, layout=LAYOUTS[i // 3 % 2]) for i, case in enumerate(EDGE) if i % 3 == 0]
    )


def random_cases(count: int, seed: int = 42) -> list[Case]:
    """Seeded, over everything a call can say."""
    draw = random.Random(seed)
    cases: list[Case] = []

    def steps() -> Three:
        return draw.choice([1, 1, 2]), draw.choice([1, 1, 2]), draw.choice([1, 1, 2])

    while len(cases) < count:
        C, K = draw.choice([1, 3, 8, 16, 24, 32, 64, 96, 128]), draw.choice([1, 3, 8, 20, 32, 64, 96, 128])
        kernel = (draw.randint(1, 3), draw.randint(1, 4), draw.randint(1, 4))
        groups = draw.choice([1, 1, 1, draw.choice([g for g in range(1, 65) if C % g == K % g == 0])])
        causal = draw.choice([None, "zeros", "first"])
        padding: Any = draw.choice(
            [0, tuple(draw.randint(0, 2) for _ in range(3)), tuple(draw.randint(0, 2) for _ in range(6))]
        )
        if causal and padding != 0:
            padding = (0, *padding[1:]) if len(padding) == 3 else (0, 0, *padding[2:])
        case = Case(draw.randint(1, 2), C, draw.randint(1, 5), draw.randint(3, 20), draw.randint(3, 20), K, kernel)._replace(
            stride=steps(),
            padding=padding,
            dilation=steps(),
            groups=groups,
            time_padding=causal,
            padding_mode=draw.choice(["zeros"] * 5 + ["replicate", "reflect", "circular"]),
            dtype=draw.choice([torch.bfloat16, torch.float16, torch.bfloat16, torch.float32]),
            layout=draw.choice(LAYOUTS),
            has_bias=draw.random() < 0.7,
            has_residual=draw.random() < 0.3,
            activation=draw.choice(["none", "silu", "relu", "gelu"]),
            saves=draw.random() < 0.5,
        )
        if draw.random() < 0.6:
            case = case._replace(cached=draw.randint(0, case.history))
        frames = case.T + (case.cached or 0)
        if min(case.out_size) >= 1 and (case.padding_mode == "zeros" or min(frames, case.H, case.W) > 2):
            cases.append(case)
    return cases


def small_enough(cases: list[Case], device: torch.device, macs: int) -> list[Case]:
    """As they are on a GPU; else reduced, without repeats."""
    return cases if device.type == "cuda" else list(dict.fromkeys(case.reduced(macs) for case in cases))


# ---- right or wrong ----------------------------------------------------------------------------------------------------------

_NOT_OF_THE_FORMULA = ("out_dtype", "algorithm", "out", "cache_out", "float32_precision")


def reference_of(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The result, and the frames for the next call's cache."""
    return reference.conv3d(**{name: value for name, value in arguments.items() if name not in _NOT_OF_THE_FORMULA})


def mismatch_conv3d(out: Tensor, arguments: dict[str, Any], expected: tuple[Tensor, Tensor] | None = None) -> str | None:
    """None if `out`, and cache_out among the arguments, are what `hipconv.conv3d(**arguments)` should make,
    else what is wrong.
    """
    result, saved = reference_of(arguments) if expected is None else expected
    cache_out = arguments.get("cache_out")
    if cache_out is not None and not torch.equal(cache_out, saved):
        return f"cache_out: {int((cache_out != saved).sum())} of {saved.numel()} elements are not the last frames'"
    if out.shape != result.shape:
        return f"shape {tuple(out.shape)}, expected {tuple(result.shape)}"
    if out.numel() == 0:
        return None
    if not out.isfinite().all():
        return f"{int((~out.isfinite()).sum())} of {out.numel()} elements are not finite"
    activation = arguments.get("activation", "none")
    before = result if activation == "none" else reference_of(arguments | {"activation": "none"})[0]
    cancels = activation not in ("none", "relu", "relu6", "leaky_relu")
    rounds = arguments.get("float32_precision") == "tf32" and arguments["x"].dtype == torch.float32
    return outside_gates(out, result, before, arguments["weight"][0].numel(), cancels, rounds)


def laid_out(tensor: Tensor, layout: str) -> bool:
    return tensor.is_contiguous(memory_format=_FORMATS[layout])
