"""Convolutions to test and time, and how far a result may be from the reference:
shared by the tests beside it and benches/conv2d.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import functools
import itertools
import json
import math
from pathlib import Path
import random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from support.tensors import DTYPES
import hipconv
from hipconv import conv2d_router, reference

LAYOUTS = ("nchw", "nhwc")
MODELS = ("resnet50", "sd35_vae", "flux2_vae")
TIMM_MODELS = (
    "resnet50",
    "convnext_tiny",
    "efficientnet_b0",
    "mobilenetv3_large_100",
    "regnety_032",
    "densenet121",
    "resnext50_32x4d",
    "hrnet_w18",
    "inception_v3",
    "xception41",
    "vit_base_patch16_224",
    "cspdarknet53",
    "mixnet_s",
    "repvgg_b0",
    "edgenext_small",
    "resnest26d",
    "efficientnetv2_rw_s",
    "nfnet_l0",
    "swin_tiny_patch4_window7_224",
    "ghostnet_100",
)
LAYER_KINDS = ("depthwise", "grouped", "pointwise", "few_channels", "few_filters", "dense")
ACTIVATIONS = ("none", "relu", "relu6", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "leaky_relu", "hardswish")


class Case(NamedTuple):
    """One convolution, and what else its call says."""

    N: int
    C: int
    H: int
    W: int
    K: int
    R: int
    S: int
    stride: tuple[int, int] = (1, 1)
    padding: Any = 0  # whatever hipconv.conv2d takes
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    dtype: torch.dtype = torch.bfloat16
    layout: str = "nchw"
    has_bias: bool = True
    activation: str = "none"
    has_residual: bool = False
    padding_mode: str = "zeros"

    @property
    def out_size(self) -> tuple[int, int]:
        return tuple(
            (size + sum(sides) - dilation * (taps - 1) - 1) // step + 1
            for size, taps, step, dilation, sides in zip(
                (self.H, self.W), (self.R, self.S), self.stride, self.dilation, self.sides, strict=True
            )
        )  # type: ignore[return-value]

    @property
    def sides(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Padding (top, bottom), (left, right)."""
        if self.padding == "same":
            totals = [dilation * (taps - 1) for taps, dilation in zip((self.R, self.S), self.dilation, strict=True)]
            return tuple((total // 2, total - total // 2) for total in totals)  # type: ignore[return-value]
        if isinstance(self.padding, str):
            return (0, 0), (0, 0)
        if isinstance(self.padding, int):
            return (self.padding, self.padding), (self.padding, self.padding)
        if len(self.padding) == 2:
            return (self.padding[0],) * 2, (self.padding[1],) * 2
        return self.padding[:2], self.padding[2:]

    @property
    def products(self) -> int:
        """Count the products of one output."""
        return self.C // self.groups * self.R * self.S

    @property
    def macs(self) -> int:
        return self.N * self.K * math.prod(self.out_size) * self.products

    def reduced(self, macs: int) -> Case:
        """The same kind of convolution, with about `macs` products at most: fewer images, then a smaller one,
        fewer channels and groups.
        """
        case = self
        while case.macs > macs and case.N > 1:
            case = case._replace(N=max(1, case.N // 2))
        least = [
            max(dilation * (taps - 1) + 1 + 3 * step - sum(sides), max(sides) + 1, 1)
            for taps, step, dilation, sides in zip((self.R, self.S), self.stride, self.dilation, self.sides, strict=True)
        ]
        while case.macs > macs and any(size > smallest for size, smallest in zip((case.H, case.W), least, strict=True)):
            case = case._replace(H=max(least[0], case.H * 3 // 4), W=max(least[1], case.W * 3 // 4))
        while case.macs > macs and max(case.C, case.K) > 16 * case.groups and min(case.C, case.K) % 2 == 0:
            case = case._replace(C=case.C // 2) if case.C > case.K else case._replace(K=case.K // 2)
        # A tile has room for 64 filters, and a group of few takes one all the same.
        while case.groups * 64 * 64 * case.products > 8 * macs and case.groups % 2 == case.C % 2 == case.K % 2 == 0:
            case = case._replace(C=case.C // 2, K=case.K // 2, groups=case.groups // 2)
        return case

    def inputs(self, device: torch.device, seed: int = 0) -> dict[str, Any]:
        """The arguments of a call, x in the case's layout."""
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        x = normal(self.N, self.C, self.H, self.W)
        weight = normal(self.K, self.C // self.groups, self.R, self.S) / max(1, self.products) ** 0.5
        laid_out = torch.channels_last if self.layout == "nhwc" else torch.contiguous_format
        arguments: dict[str, Any] = {
            "x": x.to(device, self.dtype).contiguous(memory_format=laid_out),
            "weight": weight.to(device, self.dtype).contiguous(memory_format=laid_out),
            "bias": normal(self.K).to(device, self.dtype) if self.has_bias else None,
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "activation": self.activation,
            "padding_mode": self.padding_mode,
        }
        if self.has_residual:
            shape = (self.N, self.K, *self.out_size)
            arguments["residual"] = normal(*shape).to(device, self.dtype).contiguous(memory_format=laid_out)
        return arguments

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        text = f"{self.N}x{self.C}x{self.H}x{self.W} {self.K}x{self.R}x{self.S} {dtype} {self.layout}"
        for name, plain in Case._field_defaults.items():
            if name not in ("dtype", "layout") and getattr(self, name) != plain:
                text += f" {name} {getattr(self, name)}".replace(", ", ",")
        return text


# ---- which -------------------------------------------------------------------------------------------------------------------


def model_cases(model: str) -> list[Case]:
    """The distinct convolutions of a model, batch 1, bias."""
    return [case for case, _ in model_layers(model)]


def model_layers(model: str) -> list[tuple[Case, int]]:
    """The same, with how often the model calls each: 1 where that is not known (the VAEs)."""
    if model in RANDOM_MODELS:
        rng = random.Random(model)
        return [(RANDOM_MODELS[model](rng), 1) for _ in range(200)]
    if model in TIMM_MODELS:
        return [(_layer(1, *row[:13]), row[13]) for row in _shapes("timm_conv2d.json")[model]]
    return [(_layer(*row), 1) for row in _shapes("shapes.json")[model]]


def _layer(*s: int) -> Case:
    """Make a case of N, C, H, W, K, R, S, then strides, paddings, dilations by height and width, and groups,
    if there are any.
    """
    more: dict[str, Any] = {"stride": (s[7], s[8]), "padding": (s[9], s[10]), "dilation": (s[11], s[12])}
    return Case(s[0], s[1], s[2], s[3], s[4], s[5], s[6], groups=s[13] if len(s) > 13 else 1, **more)


def _random_depthwise(rng: random.Random) -> Case:
    """Any filters a channel, filter, stride and dilation, of images that 32 of make 16 MB or more as a rule."""
    while True:
        C = rng.choice((32, 36, 48, 64, 72, 96, 100, 120, 128, 130, 144, 160, 192, 240, 256, 288, 384, 512, 728, 960, 1280))
        H, W = (rng.choice((7, 9, 10, 14, 15, 19, 20, 28, 32, 35, 40, 56, 64, 75, 80, 112)) for _ in range(2))
        R, S = rng.choice(((3, 3), (3, 3), (5, 5), (7, 7), (9, 9), (11, 11), (1, 7), (7, 1), (3, 5), (5, 1), (2, 2), (4, 4)))
        stride, dilation = rng.choice((1, 1, 2, 2, 3, 4)), rng.choice((1, 1, 1, 2, 3))
        padding = ((R - 1) * dilation // 2, (S - 1) * dilation // 2)
        more: dict[str, Any] = {"stride": (stride, stride), "dilation": (dilation, dilation)}
        case = depthwise(C, H, W if rng.random() < 0.2 else H, R, S, padding, rng.choice((1, 1, 1, 2, 3, 4)), **more)
        if min(case.out_size) >= 1 and 16e6 < 64 * (C * case.H * case.W + case.K * math.prod(case.out_size)) < 120e6:
            return case


def _random_layer(rng: random.Random) -> Case:
    """Groups, few channels or filters, patches, 1x1, tiny images and dense layers, none of them depthwise."""
    size, stride = rng.choice((7, 8, 14, 16, 20, 28, 35, 40, 56, 64, 96, 112)), rng.choice((1, 1, 2))
    k = rng.choice((1, 3, 3, 5))
    many = (20, 32, 48, 64, 96, 128, 160, 192, 256, 320, 512, 640)
    C, K, groups = rng.choice(many), rng.choice(many), 1
    match rng.choice(("groups", "groups", "few in", "few out", "patches", "1x1", "tiny", "dense")):
        case "groups":
            groups, of_group = rng.choice((2, 4, 8, 16, 32, 64)), rng.choice((2, 3, 4, 6, 8, 10, 16, 24, 32, 48))
            C = K = groups * of_group
        case "few in":
            C, k = rng.choice((1, 2, 3, 4, 6, 8)), rng.choice((3, 4, 5, 7))
        case "few out":
            K, k = rng.choice((1, 2, 3, 4, 8, 12, 16)), rng.choice((1, 3, 5, 7))
        case "patches":
            C, k = 3, rng.choice((4, 8, 14, 16))
            size, stride = k * rng.choice((7, 14, 16)), k
        case "1x1":
            C, K, k = rng.choice((16, 24, 40, 112, 480, 960, 2048)), rng.choice((24, 80, 192, 672, 1024)), 1
        case "tiny":
            size, k = rng.choice((1, 3, 5, 7)), rng.choice((1, 1, 3))
    padding = 0 if k == stride > 1 or k > size else k // 2
    return Case(1, C, max(size, k), max(size, k), K, k, k, stride=(stride, stride), padding=padding, groups=groups)


RANDOM_MODELS = {"random_depthwise": _random_depthwise, "random_layers": _random_layer}
"""200 layers each, the same every time, of what no model in the files need have; batch 32 is meant."""


@functools.cache
def _shapes(file: str) -> dict[str, list[list[int]]]:
    return json.loads((Path(__file__).parent / file).read_text())


def kind_of_layer(case: Case) -> str:
    """One of LAYER_KINDS."""
    if case.groups > 1:
        return "depthwise" if case.groups == case.C else "grouped"
    if case.C <= 8:
        return "few_channels"
    if case.K <= 16:
        return "few_filters"
    return "pointwise" if case.R == case.S == 1 else "dense"


def _square(
    N: int, C: int, H: int, W: int, K: int, R: int, S: int, stride: int, pad: int, dilation: int, has_bias: bool = True
) -> Case:
    return Case(N, C, H, W, K, R, S, (stride, stride), pad, (dilation, dilation), has_bias=has_bias)


EDGE = [
    _square(1, 3, 7, 7, 8, 3, 3, 1, 1, 1),
    _square(1, 3, 8, 8, 16, 1, 1, 1, 0, 1),
    _square(2, 16, 32, 32, 32, 3, 3, 2, 1, 1),
    _square(2, 32, 17, 23, 64, 5, 5, 2, 2, 1),
    _square(4, 64, 28, 28, 128, 3, 3, 1, 0, 2),
    _square(2, 512, 7, 7, 1024, 1, 1, 1, 0, 1),
    _square(1, 3, 112, 112, 64, 7, 7, 2, 3, 1),
    _square(1, 1, 16, 16, 16, 3, 3, 1, 1, 1),
    _square(2, 64, 8, 8, 64, 3, 3, 1, 1, 1),
    _square(1, 128, 4, 4, 256, 1, 1, 1, 0, 1),
    _square(2, 32, 32, 32, 32, 3, 3, 1, 0, 1),
    _square(2, 64, 28, 28, 128, 3, 3, 2, 1, 1),
    _square(4096, 3, 14, 14, 1024, 14, 14, 14, 0, 1, has_bias=False),  # the patches of a vision transformer
    # groups: depthwise, ResNeXt's, one filter more than channels, few of each
    Case(1, 32, 14, 14, 32, 3, 3, padding=1, groups=32),
    Case(2, 96, 12, 12, 96, 7, 7, padding=3, groups=96),
    Case(1, 128, 10, 10, 256, 3, 3, padding=1, groups=32),
    Case(2, 6, 9, 9, 9, 3, 3, padding=1, groups=3),
    Case(1, 8, 5, 5, 24, 3, 3, padding=1, groups=8),
    # filters and images that are not square, one row, one column, one pixel, one channel, one filter
    Case(2, 17, 9, 13, 19, 1, 7, padding=(0, 3)),
    Case(2, 17, 9, 13, 19, 7, 1, padding=(3, 0), stride=(2, 1)),
    Case(3, 40, 1, 37, 24, 1, 3, padding=(0, 1)),
    Case(3, 40, 37, 1, 24, 3, 1, padding=(1, 0)),
    Case(5, 33, 1, 1, 65, 1, 1),
    Case(1, 1, 5, 5, 1, 5, 5),
    Case(1, 1, 1, 1, 1, 1, 1),
    Case(1, 130, 6, 6, 3, 3, 3, padding=1),
    # steps longer than filters; a filter larger than its image; every side padded otherwise; the padding wider than the filter
    Case(1, 16, 20, 20, 16, 2, 2, stride=(3, 5)),
    Case(1, 16, 3, 2, 16, 5, 5, padding=2),
    Case(2, 16, 8, 9, 16, 3, 3, padding=(0, 1, 2, 3)),
    Case(1, 16, 4, 4, 8, 2, 2, padding=6),
    Case(1, 24, 11, 11, 24, 4, 4, padding="same"),
    Case(1, 24, 20, 20, 24, 4, 2, padding="same", dilation=(3, 2)),
    Case(1, 24, 11, 11, 24, 4, 4, padding="valid"),
    Case(1, 64, 9, 9, 32, 3, 3, padding=12, dilation=(12, 12)),
    *(
        Case(2, 9, 7, 8, 12, 3, 4, padding=padding, padding_mode=mode, dilation=(2, 1))
        for mode, padding in (
            ("reflect", (6, 3, 7, 0)),
            ("replicate", (9, 2, 0, 11)),
            ("circular", (7, 1, 2, 8)),
            ("reflect", "same"),
        )
    ),
    Case(2, 64, 10, 10, 48, 3, 3, padding=1, has_residual=True, activation="relu"),
]


def edge_cases() -> list[Case]:
    """EDGE with every dtype and layout in turn."""
    dtypes = list(DTYPES.values())
    return [case._replace(dtype=dtypes[i % 3], layout=LAYOUTS[i // 3 % 2]) for i, case in enumerate(EDGE)]


def random_cases(count: int, seed: int = 42) -> list[Case]:
    """Seeded, over everything a call can say."""
    draw = random.Random(seed)
    cases: list[Case] = []
    while len(cases) < count:
        C, K = draw.choice([1, 3, 8, 16, 24, 32, 64, 128, 256]), draw.choice([1, 8, 16, 20, 32, 64, 128, 256])
        H, W = draw.randint(4, 64), draw.randint(4, 64)
        groups = draw.choice([1, 1, 1, math.gcd(C, K), draw.choice([g for g in range(1, 65) if C % g == K % g == 0])])
        mode = draw.choice(["zeros"] * 5 + ["reflect", "replicate", "circular"])
        padding: Any = draw.choice(
            [0, draw.randint(0, 3), (draw.randint(0, 3), 1), tuple(draw.randint(0, 3) for _ in range(4))]
        )
        case = Case(draw.randint(1, 8), C, H, W, K, draw.randint(1, 7), draw.randint(1, 7), padding=padding, groups=groups)
        case = case._replace(
            stride=(draw.randint(1, 3), draw.randint(1, 3)),
            dilation=(draw.randint(1, 2), draw.randint(1, 2)),
            dtype=draw.choice(list(DTYPES.values())),
            layout=draw.choice(LAYOUTS),
            has_bias=draw.random() < 0.7,
            has_residual=draw.random() < 0.3,
            activation=draw.choice(("none", *ACTIVATIONS)),
            padding_mode=mode,
        )
        if case.stride == (1, 1) and draw.random() < 0.3:
            case = case._replace(padding="same")
        if min(case.out_size) >= 1 and (mode == "zeros" or max(map(max, case.sides)) < min(H, W)):
            cases.append(case)
    return cases


# ---- right or wrong ----------------------------------------------------------------------------------------------------------

# Limits by out's dtype: rmse and largest error over the rms of the reference, and the share of elements that may differ from
# the reference rounded once (f32 sums in another order move a few across a boundary).
_GATES = {torch.float16: (3e-4, 2.5e-3, 0.03), torch.bfloat16: (2.5e-3, 2e-2, 0.01)}
_TF32_GATES = (4e-4, 3e-3)


# The errors of Winograd's planes of float16 may be so many times those of one rounding. 2 is the most that "auto" may take.
ROUNDED_PLANES = {
    ("winograd_f2", torch.bfloat16): 1.15, ("winograd_f4", torch.bfloat16): 1.7,
    ("winograd_f2", torch.float16): 3.5, ("winograd_f4", torch.float16): 9.0,
}  # fmt: skip


def exact(algorithms: Iterable[str]) -> list[str]:
    """Those of them that compute in float32 up to the one rounding of the result."""
    rows = conv2d_router.ALGORITHMS
    return [name for name in algorithms if name not in rows or rows[name].exact]


_NOT_OF_THE_FORMULA = ("out_dtype", "algorithm", "out", "float32_precision")


def depthwise(C: int, H: int, W: int, R: int, S: int, padding: Any = 0, multiplier: int = 1, N: int = 1, **more: Any) -> Case:
    """A layer with a group for each channel."""
    return Case(N, C, H, W, C * multiplier, R, S, padding=padding, groups=C, **more)


def _integers(*shape: int, limit: int, seed: int) -> Tensor:
    return torch.randint(-limit, limit + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


def of_integers(case: Case, device: torch.device) -> dict[str, Any]:
    """Arguments whose sums are exact."""
    arguments = case.inputs(torch.device("cpu"))
    for seed, (name, limit) in enumerate((("x", 3), ("weight", 2), ("bias", 9), ("residual", 9))):
        if isinstance(old := arguments.get(name), Tensor):
            arguments[name] = torch.empty_like(old).copy_(_integers(*old.shape, limit=limit, seed=seed)).to(device)
    return arguments


def within(values: Tensor, fill: float, offset: int, gap: int) -> tuple[Tensor, Tensor]:
    """The values, in their order of memory, `gap` elements behind each row and image of a buffer full of `fill`;
    and the buffer.
    """
    strides, step = [0] * 4, 1
    for axis in sorted(range(4), key=lambda axis: values.stride(axis)):
        strides[axis] = step
        step = step * values.shape[axis] + gap
    buffer = torch.full((offset + step + 9,), fill, dtype=values.dtype, device=values.device)
    view = buffer.as_strided(values.shape, strides, offset)
    return view.copy_(values), buffer


def padded_otherwise(case: Case, turn: int) -> Case:
    """With other padding than zeros: circular and reflect in turns where images are large enough, else replicate."""
    reflects = all(max(of) < size for of, size in zip(case.sides, (case.H, case.W), strict=True))
    return case._replace(padding_mode=("circular", "reflect")[turn % 2] if reflects else "replicate")


def in_both_layouts(cases: Iterable[Case], device: torch.device) -> Iterator[Case]:
    """Give every case in both layouts, each time in other types; for a GPU, of so many images that all of it has work."""
    for number, (case, layout) in enumerate(itertools.product(cases, ("nhwc", "nchw"))):
        dtype = list(DTYPES.values())[(number // 2 + number) % len(DTYPES)]
        yield case._replace(dtype=dtype, layout=layout, N=case.N * (32 if device.type == "cuda" else 1))


def assert_exact_beside(case: Case, arguments: dict[str, Any], expected: Tensor, algorithm: str, gap: int) -> None:
    """The result is the expected one to the bit where NaN lies beside x and the residual, and in gaps between their rows;
    and nothing beside `out`, which lies like `expected`, is written.
    """
    for name in ("x", "residual"):
        if isinstance(arguments.get(name), Tensor):
            arguments = arguments | {name: within(arguments[name], torch.nan, 16, gap)[0]}
    out, buffer = within(torch.full_like(expected, 7.0), 42.0, 16, gap)
    hipconv.conv2d(**arguments, algorithm=algorithm, out=out)
    assert torch.equal(out, expected), case
    out.fill_(42.0)
    assert (buffer == 42.0).all(), case


def assert_sums_are_exact(cases: Iterable[Case], device: torch.device, algorithm: str) -> None:
    """Run cases of small integers, with and without a bias."""
    for number, original in enumerate(cases):
        case = original._replace(activation=("none", "relu")[number % 2], has_bias=number % 5 > 0)
        arguments = of_integers(case, device)
        out = hipconv.conv2d(**arguments, algorithm=algorithm)
        assert torch.equal(out, reference_of(arguments).to(case.dtype)), case


def assert_nothing_beside_is_touched(cases: Iterable[Case], device: torch.device, algorithm: str) -> None:
    """Run cases with residuals and paddings of all kinds, of tensors without gaps and with some, between pages of NaN."""
    for number, original in enumerate(cases):
        case, gap = original._replace(has_residual=number % 3 > 0), (0, 1, 8)[number // 2 % 3]
        if number % 4 > 0:
            case = padded_otherwise(case, number // 4)
        arguments = of_integers(case, device)
        expected = reference_of(arguments).to(case.dtype)
        if case.has_residual and number % 2 == 0:
            arguments["residual"] = arguments["residual"].float()
        assert_exact_beside(case, arguments, expected, algorithm, gap)


def assert_activations(cases: Iterable[Case], device: torch.device, algorithm: str) -> None:
    """Run some of the cases with each activation, and each type of the result."""
    all_cases = list(cases)
    for number, activation in enumerate(ACTIVATIONS):
        arguments = all_cases[number * 5 % len(all_cases)]._replace(activation=activation).inputs(device)
        arguments["out_dtype"] = list(DTYPES.values())[number % 3]
        wrong = mismatch_conv2d(hipconv.conv2d(**arguments, algorithm=algorithm), arguments)
        assert wrong is None, (activation, wrong)


def assert_not_finite_stays(cases: Iterable[Case], device: torch.device, algorithm: str, **choices: Any) -> None:
    """Run cases whose x has an infinity and a NaN: the outputs that see them, and no others, are not finite."""
    for case in cases:
        arguments = of_integers(case, device) | choices
        arguments["x"][0, 1, 4, 5], arguments["x"][min(1, case.N - 1), 2, 8, 0] = float("inf"), float("nan")
        out = hipconv.conv2d(**arguments, algorithm=algorithm)
        torch.testing.assert_close(out, reference_of(arguments).to(out), rtol=0, atol=0, equal_nan=True)


def reference_of(arguments: dict[str, Any]) -> Tensor:
    return reference.conv2d(**{name: value for name, value in arguments.items() if name not in _NOT_OF_THE_FORMULA})


def mismatch_conv2d(out: Tensor, arguments: dict[str, Any], expected: Tensor | None = None, algorithm: str = "") -> str | None:
    """None if `out` is what `hipconv.conv2d(**arguments)` should be, else what is wrong;
    by an `algorithm` that may round planes.
    """
    expected = reference_of(arguments) if expected is None else expected
    if out.shape != expected.shape:
        return f"shape {tuple(out.shape)}, expected {tuple(expected.shape)}"
    if out.numel() == 0:
        return None
    if not out.isfinite().all():
        return f"{int((~out.isfinite()).sum())} of {out.numel()} elements are not finite"
    # Errors arise before the activation, which may send most of what is large to zero.
    before = expected if arguments["activation"] == "none" else reference_of(arguments | {"activation": "none"})
    # In f32 these lose the last bits of their small results.
    cancels = arguments["activation"] not in ("none", "relu", "relu6", "leaky_relu")
    rounds = arguments.get("float32_precision") == "tf32" and arguments["x"].dtype == torch.float32
    times = ROUNDED_PLANES.get((algorithm, arguments["x"].dtype), 0)
    return outside_gates(out, expected, before, arguments["weight"][0].numel(), cancels, rounds, times)


def outside_gates(
    out: Tensor, expected: Tensor, before: Tensor, products: int, cancels: bool, rounds: bool = False, times: float = 0
) -> str | None:
    """None if `out` is `expected` within the limits for sums of so many products, else what is wrong. `before` is expected
    before the activation, which `cancels` if its small results are those of large ones; `rounds`: factors are rounded to TF32;
    `times`, if it is not zero: so many times the errors of one rounding are allowed.
    """
    scale = max(1, products**0.5 / 32)
    rmse_gate, max_gate, may_differ = _GATES.get(out.dtype, (1e-6 * scale, 1e-5 * scale, 1.0))
    if rounds:
        rmse_gate, max_gate, may_differ = max(rmse_gate, _TF32_GATES[0]), max(max_gate, _TF32_GATES[1]), 1.0
    if times:
        # Planes of few channels are sums of few products, which have long tails: their errors, of their size, have them too.
        rmse_gate, max_gate, may_differ = times * rmse_gate, times * max_gate * (1.5 if products < 64 else 1), 1.0
    rms = before.square().mean().sqrt().item()
    error = (out.double() - expected).abs()
    eps = torch.finfo(out.dtype).eps
    max_gate = max(max_gate, 0.51 * eps * expected.abs().max().item() / rms)  # half a unit in the last place of the largest
    if out.numel() < 64:  # which may all be rounded by half a unit
        rmse_gate = max(rmse_gate, 0.51 * eps * expected.abs().max().item() / rms)
    rmse, worst = error.square().mean().sqrt().item() / rms, error.max().item() / rms
    if not (rmse <= rmse_gate and worst <= max_gate):
        return f"rmse {rmse:.2e} of rms, expected {rmse_gate:.1e}; largest error {worst:.2e}, expected {max_gate:.1e}"
    if rounds:
        eps = 2.0**-11  # of a factor
    bound = (
        max(8 * eps, 10 * eps * products**0.5)
        + (6e-3 if products < 1024 else 8e-3 if products < 4096 else 1.2e-2) * expected.abs()
    )
    if (error > bound).any():
        return f"{int((error > bound).sum())} elements are off by more than {bound.min().item():.1e} and their share"
    differing = int((out != expected.to(out.dtype)).sum())
    if differing > max(4, out.numel() * may_differ) and not cancels:
        return f"{differing} of {out.numel()} elements are not the reference rounded once to {out.dtype}"
    return None
