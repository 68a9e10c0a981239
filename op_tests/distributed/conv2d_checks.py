"""The ranks check conv2d and SpatialParallel here: against hipconv.conv2d on the whole image, which each of them computes."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import copy
import functools
import os
import pickle
import re
from typing import Any, NamedTuple, cast
from unittest import mock

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from distributed.halo_checks import SHARDS, everyone, gathered, member, refusal
from distributed.two_streams import order_on_two_streams, two_streams
from support.tensors import same_bits
import hipconv
from hipconv import distributed
from hipconv.distributed import overlapped, seen
from hipconv.ops.conv2d import calls


class Case(NamedTuple):
    """One call."""

    shards: str = "uneven"
    kernel: tuple[int, int] = (3, 3)
    stride: Any = 1
    padding: Any = 1
    dilation: Any = 1
    groups: int = 1
    channels: int = 8
    filters: int = 16
    scale: int = 1  # times 7 columns and the shards' rows
    shard_dim: int = -2
    mode: str = "zeros"
    activation: str = "none"
    residual: bool = False
    bias: bool = True
    channels_last: bool = False
    dtype: torch.dtype = torch.float32
    algorithm: str = "auto"
    exact: bool = False
    reduces: bool = False
    validate: bool = True
    overlapped: bool = False
    batch: int = 2


CASES = {
    "plain": Case(),
    "stride": Case(stride=2, activation="silu", residual=True),
    "stride_3_of_short": Case("short", stride=(3, 1), padding=(4, 0, 1, 1)),
    "dilation": Case(dilation=(3, 2), padding=(3, 2), groups=2, channels_last=True),
    "columns": Case(shard_dim=-1, kernel=(1, 5), padding=(0, 2), stride=(1, 2), residual=True, activation="relu"),
    "empty": Case("some_empty", reduces=True, activation="gelu"),
    "one_has_all": Case("one_has_all", padding="same", kernel=(4, 2), validate=False),
    "more_ranks_than_rows": Case("one_has_all", stride=6, residual=True, reduces=True),
    "beyond_the_image": Case("short", padding=(9, 9, 1, 1), stride=2),
    "reflect": Case(mode="reflect", padding=2, kernel=(5, 5)),
    "replicate": Case("short", mode="replicate", padding=(3, 1, 0, 2)),
    "circular": Case("some_empty", mode="circular", padding=2, shard_dim=3),
    "overlapped": Case(overlapped=True),
    "overlapped_stride": Case(overlapped=True, stride=3, padding=(4, 0, 1, 1), activation="gelu", residual=True, reduces=True),
    "overlapped_columns": Case(overlapped=True, shard_dim=-1, dilation=(1, 2), padding=(0, 2), channels_last=True, groups=2),
    "overlapped_reflect": Case(overlapped=True, mode="reflect", padding=2, kernel=(5, 5), residual=True),
    "overlapped_empty": Case("some_empty", overlapped=True, mode="circular", padding=1, reduces=True),
    "overlapped_image": Case("even", overlapped=True, channels_last=True, batch=1),
    "pixels": Case(kernel=(1, 1), padding=0, bias=False),
}


@contextlib.contextmanager
def overlapping(wanted: bool) -> Iterator[list[int]]:
    """Parts of any size are convolved while rows travel, as large ones are; or those of none.
    The list has a 1 where this rank's was.
    """
    of, ran = overlapped.conv2d, [0]

    def conv2d(*arguments: Any) -> Tensor:
        ran[0] = 1
        return of(*arguments)

    patched: Any = {"LARGE": 0 if wanted else 1 << 60, "conv2d": conv2d}
    with mock.patch.multiple(overlapped, **patched), mock.patch.dict(seen._seen, clear=True):
        yield ran


def run(case: Case, ranks: tuple[int, ...] | None) -> None:
    found = member(ranks)
    if found is None:
        return
    group, _, size = found
    axis, sizes = case.shard_dim % 4, [case.scale * n for n in SHARDS[case.shards](size)]
    shape = [case.batch, case.channels, 7 * case.scale, 7 * case.scale]
    shape[axis] = sum(sizes)

    def images(shape: Any) -> Tensor:
        image = torch.randn(tuple(shape)).to(case.dtype)
        return image.to(memory_format=torch.channels_last) if case.channels_last else image

    x, weight, bias = (
        images(shape),
        images((case.filters, case.channels // case.groups, *case.kernel)),
        torch.randn(case.filters),
    )
    settings: Any = (case.stride, case.padding, case.dilation, case.groups)
    options: dict[str, Any] = {"padding_mode": case.mode, "activation": case.activation, "algorithm": case.algorithm}
    plain = hipconv.conv2d(x, weight, None, *settings, **options)
    residual = images(plain.shape) if case.residual else None

    def leaves(*tensors: Tensor | None) -> list[Any]:
        return [None if t is None else t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in tensors]

    def mine(whole: Tensor, sizes: list[int] | None = None) -> Tensor:
        return distributed.shard(whole.detach(), axis, group, sizes=sizes)

    whole = leaves(x, weight, bias if case.bias else None, residual)
    expected = hipconv.conv2d(*whole[:3], *settings, residual=whole[3], **options)
    local = leaves(mine(x, sizes), *whole[1:3], None if residual is None else mine(residual))
    given: dict[str, Any] = {} if case.validate else {"sizes": sizes, "validate": False}
    call: Any = distributed.conv2d
    with overlapping(case.overlapped) as ran:
        out = call(
            *local[:3],
            *settings,
            residual=local[3],
            group=group,
            shard_dim=case.shard_dim,
            reduce_gradients=case.reduces,
            **given,
            **options,
        )
    form = hipconv.conv2d_plan(x, weight, bias if case.bias else None, *settings, residual=residual, **options).form
    keeps = not re.search(r"_split\d+$|^direct_", form)  # the order of sums, in pieces
    assert (case.overlapped and keeps) == any(gathered(torch.tensor(ran), group)), form
    wanted = mine(expected)
    assert out.shape == wanted.shape and out.dtype == wanted.dtype
    assert (
        not out.numel()
        or out.stride()[1:]
        == (wanted.contiguous(memory_format=torch.channels_last) if case.channels_last else wanted).stride()[1:]
    )
    if case.exact:
        assert same_bits(out, wanted), "output"
    eps = torch.finfo(case.dtype).eps
    assert torch.allclose(out.float(), wanted.float(), rtol=20 * eps, atol=40 * eps), "output"
    direction = images(expected.shape)
    gradients = torch.autograd.grad(out, [leaf for leaf in local if leaf is not None], mine(direction))
    wholes = torch.autograd.grad(expected, [leaf for leaf in whole if leaf is not None], direction)
    names = [name for name, leaf in zip(("x", "weight", "bias", "residual"), local, strict=True) if leaf is not None]
    for name, gradient, of_whole in zip(names, gradients, wholes, strict=True):
        if name in ("weight", "bias"):
            if not case.reduces:
                gradient = torch.stack(gathered(gradient, group)).sum(0)
        else:
            of_whole = mine(of_whole, sizes if name == "x" else None)
        assert gradient.shape == of_whole.shape, name
        assert torch.allclose(gradient.float(), of_whole.float(), rtol=100 * eps, atol=400 * eps), name


on_two_streams = functools.partial(order_on_two_streams, run)


def launched_first() -> None:
    """The rows that need no other rank's are convolved before anything is sent."""
    group, _, size = everyone()
    x, weight = torch.randn(1, 8, 8, 8), torch.randn(8, 8, 3, 3)
    with overlapping(True), two_streams(stand_in=not x.is_cuda) as order:
        distributed.conv2d(x, weight, padding=1, group=group, sizes=[8] * size, validate=False)
    assert order[:2] == ["kernel", "exchange"], order


def _with_variable(name: str | None, call: Any) -> Any:
    variable = "HIPCONV_CONV2D_ALGORITHM"
    before = os.environ.pop(variable, None)
    if name is not None:
        os.environ[variable] = name
    try:
        return call()
    finally:
        os.environ.pop(variable, None)
        if before is not None:
            os.environ[variable] = before


WRONG: dict[str, Any] = {
    "stride": lambda rank, x, w, group: distributed.conv2d(x, w, stride=2 if rank == 1 else 1, group=group),
    "filter": lambda rank, x, w, group: distributed.conv2d(x, w[:2] if rank == 1 else w, group=group),
    "shard_dim": lambda rank, x, w, group: distributed.conv2d(x, w, group=group, shard_dim=1 if rank == 1 else 2),
    "residual": lambda rank, x, w, group: distributed.conv2d(x, w, group=group, residual=torch.zeros(1, 4, 5 + rank, 5)),
    "channels": lambda rank, x, w, group: distributed.conv2d(x[:, :2], w, group=group),
    "too_small": lambda rank, x, w, group: distributed.conv2d(x[:, :, :0], w, group=group),
    "out_sizes": lambda rank, x, w, group: distributed.conv2d(x, w, group=group, out_sizes=[1, 1, 1]),
    "out_sizes_of_others": lambda rank, x, w, group: distributed.conv2d(
        x, w, group=group, out_sizes=[5, 5] if rank == 1 else None
    ),
    "kind_of_out_sizes": lambda rank, x, w, group: distributed.conv2d(
        x, w, group=group, out_sizes=cast(Any, "10") if rank else None
    ),
    "reduce_gradients": lambda rank, x, w, group: distributed.conv2d(
        x, w, group=group, reduce_gradients=cast(Any, "no") if rank == 1 else False
    ),
    # of which only a rank with outputs would see that they are wrong
    "out_dtype": lambda rank, x, w, group: distributed.conv2d(x, w, group=group, out_sizes=[0, 10, 0], out_dtype=torch.int32),
    "algorithm": lambda rank, x, w, group: distributed.conv2d(x, w, group=group, out_sizes=[0, 10, 0], algorithm="magic"),
    "variable": lambda rank, x, w, group: _with_variable(
        "magic", lambda: distributed.conv2d(x, w, group=group, out_sizes=[0, 10, 0])
    ),
    "other_variable": lambda rank, x, w, group: _with_variable(
        "torch" if rank == 1 else None, lambda: distributed.conv2d(x, w, group=group)
    ),
    "served": lambda rank, x, w, group: distributed.conv2d(x.double(), w.double(), group=group, out_sizes=[0, 10, 0]),
    "shape_of_residual": lambda rank, x, w, group: distributed.conv2d(
        x, w, group=group, out_sizes=[0, 10, 0], residual=torch.zeros(1, 4, 10 if rank == 1 else 0, 6)
    ),
}


def refusals(name: str) -> str:
    group, rank, _ = everyone()
    x, weight = torch.randn(1, 3, 4, 7), torch.randn(4, 3, 3, 3)
    text = refusal(lambda: WRONG[name](rank, x, weight, group))
    distributed.conv2d(x, weight, group=group)
    return text


def overlapped_second_derivatives() -> None:
    """As those of what is not overlapped."""
    group, _, size = everyone()
    x, weight = (torch.randn(shape, dtype=torch.float32) for shape in ((1, 2, 6 * size, 4), (2, 2, 3, 3)))
    tensors = distributed.shard(x, 2, group), weight, torch.randn(2), torch.randn(1, 2, 6, 4)
    for activation in ("none", "silu", "tanh"):
        found = []
        for wanted in (False, True):
            leaves = [t.clone().requires_grad_() for t in tensors]
            call: Any = distributed.conv2d
            with overlapping(wanted) as ran:
                out = call(*leaves[:3], padding=1, activation=activation, residual=leaves[3], group=group)
            assert ran == [wanted]
            first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
            penalty = torch.stack([gradient.square().sum() for gradient in first]).sum()
            found.append((*first, *torch.autograd.grad(penalty, leaves)))
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(*found, strict=True)), activation


def written_behind() -> None:
    """The caller may write what the backward does not read, once the call returned, and gets an error for the rest."""
    group, _, size = everyone()
    x, weight = (torch.randn(shape, dtype=torch.float32) for shape in ((1, 2, 6 * size, 4), (2, 2, 3, 3)))
    leaves = [t.requires_grad_() for t in (distributed.shard(x, 2, group), weight, torch.randn(2), torch.randn(1, 2, 6, 4))]
    call: Any = distributed.conv2d

    def gradients(activation: str, written: str | None) -> tuple[Tensor, ...]:
        inputs = [leaf.clone() for leaf in leaves]
        with overlapping(True) as ran:
            out = call(*inputs[:3], padding=1, activation=activation, residual=inputs[3], group=group)
        assert ran == [True]
        if written is not None:
            {"bias": inputs[2], "residual": inputs[3], "result": out}[written].add_(0)
        return torch.autograd.grad(out.sin().sum(), leaves)

    for activation, read in (("none", ()), ("tanh", ("result",)), ("silu", ("bias", "residual"))):
        expected = gradients(activation, None)
        for written in ("bias", "residual", "result"):
            if written in read:
                assert "modified by an inplace operation" in refusal(lambda a=activation, w=written: gradients(a, w))
            else:
                found = gradients(activation, written)
                assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), (activation, written)


def checkpointed(wanted: bool) -> None:
    """Gradients through a checkpoint are those without."""
    group, _, size = everyone()
    x, weight = (torch.randn(shape, dtype=torch.float32) for shape in ((1, 2, 6 * size, 4), (2, 2, 3, 3)))
    tensors = distributed.shard(x, 2, group), weight, torch.randn(2), torch.randn(1, 2, 6, 4)

    def loss(activation: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        out = distributed.conv2d(x, weight, bias, padding=1, activation=activation, residual=residual, group=group)
        return out.sin().sum()

    for activation in ("none", "relu", "silu"):
        found = []
        with overlapping(wanted) as ran:
            for way in (None, False, True):
                leaves = [t.clone().requires_grad_() for t in tensors]
                given: tuple[Any, ...] = (activation, *leaves)
                (loss(*given) if way is None else checkpoint(loss, *given, use_reentrant=way)).backward()
                found.append([cast(Tensor, leaf.grad) for leaf in leaves])
        assert ran == [wanted]
        for gradients in found[1:]:
            assert all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in zip(gradients, found[0], strict=True))


def pieces_that_the_plan_does_not_serve() -> None:
    """A part is convolved in pieces only where its plan serves all of them;
    borders of two rows are tried where it does not serve one.
    """
    group, _, size = everyone()
    x, weight = torch.randn(1, 16, 16 * size, 8).bfloat16(), torch.randn(64, 16, 3, 3).bfloat16()
    mine = distributed.shard(x, 2, group)
    found = []
    for served in (1, 2, 3):
        borders: list[int] = []

        def follows(
            choice: Any,
            x: Any,
            weight: Any,
            bias: Any,
            piece: Any,
            *rest: Any,
            served: int = served,
            borders: list[int] = borders,
        ) -> bool:
            if piece.shape[2] < 8:
                borders.append(piece.shape[2] - 2)
            return piece.shape[2] > 8 or piece.shape[2] - 2 >= served

        with mock.patch.object(calls, "follows", follows), overlapping(True) as ran:
            found.append(distributed.conv2d(mine, weight, padding=1, group=group))
        assert ran == [served < 3] and borders == {1: [1, 1], 2: [1, 2, 2], 3: [1, 2]}[served], (ran, borders)
    assert all(same_bits(out, found[-1]) for out in found)
    with overlapping(True) as ran:
        negated = distributed.conv2d(torch._neg_view(-mine), torch._neg_view(-weight), padding=1, group=group)
    assert ran == [1] and same_bits(negated, found[-1])


def gathered_in_pieces(layout: torch.memory_format, border: int) -> None:
    """The warpgroups of sm_90 read NCHW images in patches, which a border of one row is none of;
    the bits are the whole image's.
    """
    group, _, size = everyone()
    x, weight = torch.randn(1, 64, 8 * size, 64).bfloat16().to(memory_format=layout), torch.randn(64, 64, 3, 3).bfloat16()
    parts: list[overlapped.Part] = []

    def conv2d(*arguments: Any, of: Any = overlapped.conv2d) -> Tensor:
        parts.append(arguments[-2])
        return of(*arguments)

    def follows(*arguments: Any, of: Any = calls.follows) -> bool:
        try:
            return of(*arguments)
        except ValueError:  # it is named, but stands for the choice of larger images
            return False

    expected = hipconv.conv2d(x, weight, padding=1, algorithm="warpgroup_gemm")
    patches: Any = {"is_named": lambda _: False, "follows": follows}
    with overlapping(True), mock.patch.multiple(calls, **patches), mock.patch.object(overlapped, "conv2d", conv2d):
        out = distributed.conv2d(distributed.shard(x, 2, group), weight, padding=1, group=group, algorithm="warpgroup_gemm")
    assert [(part.interior.start, part.outputs - part.interior.stop) for part in parts] == [(border, border)]
    assert same_bits(out, distributed.shard(expected, 2, group))


def refusals_of_kernels() -> list[str]:
    """Return what the kernels of GPUs refuse, where one rank has all outputs: all raise it, before anything is sent."""
    group, _, size = everyone()
    x, weight = torch.randn(1, 3, 4, 7), torch.randn(4, 3, 3, 3)
    texts = []
    for algorithm in ("magic", "warpgroup_gemm"):
        sizes = [6] + [0] * (size - 1) if size == 2 else None
        texts.append(refusal(lambda a=algorithm, s=sizes: distributed.conv2d(x, weight, group=group, algorithm=a, out_sizes=s)))
    distributed.conv2d(x, weight, group=group)
    return texts


def autocast() -> None:
    """Under autocast, what `hipconv.conv2d` gives on the whole image: its dtype on every rank, its values,
    the parameters' gradients.
    """
    group, _, size = everyone()
    x, weight, bias = (
        torch.randn(1, 4, 3 * size, 5),
        torch.randn(8, 4, 3, 3, requires_grad=True),
        torch.randn(8, dtype=torch.bfloat16),
    )
    residual = torch.randn(1, 8, 3 * size, 5)
    with torch.autocast(x.device.type, torch.bfloat16):
        expected = hipconv.conv2d(x, weight, bias, padding=1, residual=residual)
        for out_sizes in (None, [3 * size] + [0] * (size - 1)):
            given = distributed.shard(residual, 2, group, sizes=out_sizes)
            out = distributed.conv2d(
                distributed.shard(x, 2, group), weight, bias, padding=1, group=group, residual=given, out_sizes=out_sizes,
                reduce_gradients=True,
            )  # fmt: skip
            wanted = distributed.shard(expected.detach(), 2, group, sizes=out_sizes)
            assert out.dtype == wanted.dtype == torch.bfloat16 and out.shape == wanted.shape
            assert torch.allclose(out.float(), wanted.float(), rtol=2e-2, atol=2e-2)
            (dweight,) = torch.autograd.grad(out, weight, torch.ones_like(out))
            (whole,) = torch.autograd.grad(expected, weight, torch.ones_like(expected), retain_graph=True)
            assert dweight.dtype == torch.float32 and torch.allclose(dweight, whole, rtol=2e-2, atol=0.2)


def styles() -> None:
    """A small model under parallelize_module, DTensors in and out, and plain tensors."""
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import parallelize_module

    _, rank, size = everyone()
    mesh = init_device_mesh(torch.get_default_device().type, (size,))
    alone = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(8, 4, 3, stride=2, padding=1),
        nn.Conv2d(4, 4, 3, padding="same", bias=False),
    )
    split = copy.deepcopy(alone)
    parallelize_module(split, mesh, {str(i): distributed.SpatialParallel() for i in (0, 2, 3)})
    for rows in (4 * size, 4 * size + 3):
        x = torch.randn(2, 3, rows, 6)
        expected = alone(x)
        out = split(distribute_tensor(x, mesh, [Shard(2)]))
        assert isinstance(out, DTensor) and out.placements == (Shard(2),) and out.shape == expected.shape
        assert torch.allclose(out.full_tensor(), expected, atol=1e-5)
        again = split(distribute_tensor(x, mesh, [Replicate()]))
        assert torch.allclose(again.full_tensor(), expected, atol=1e-5)
        direction = torch.randn_like(expected)
        gradients = torch.autograd.grad(out, list(split.parameters()), distribute_tensor(direction, mesh, [Shard(2)]))
        wholes = torch.autograd.grad(expected, list(alone.parameters()), direction)
        assert all(torch.allclose(a, b, atol=1e-3) for a, b in zip(gradients, wholes, strict=True))
        local = split(x.tensor_split(size, 2)[rank])
        assert torch.allclose(local, expected.tensor_split(size, 2)[rank], atol=1e-5)
    twin = copy.deepcopy(split)
    assert twin[0].weight is not split[0].weight and torch.equal(twin(x.tensor_split(size, 2)[rank]), local)
    text = refusal(lambda: pickle.dumps(split))
    assert text.startswith("TypeError: module: got a layer that is split over DeviceMesh"), text
    channels_last = distribute_tensor(x.to(memory_format=torch.channels_last), mesh, [Shard(2)])
    out = split[0](channels_last)
    assert out.stride(1) == 1 and out.to_local().is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(out.full_tensor(), alone[0](x), atol=1e-5)
    known = parallelize_module(
        copy.deepcopy(alone[:1]), mesh, {"0": distributed.SpatialParallel(sizes=[4] * size, validate=False)}
    )
    assert torch.allclose(
        known(x[:, :, 4 * rank : 4 * rank + 4]), alone[0](x[:, :, : 4 * size])[:, :, 4 * rank : 4 * rank + 4], atol=1e-5
    )
    backwards = DeviceMesh(mesh.device_type, list(range(size))[::-1])
    text = refusal(lambda: distributed.halo(x, 2, 1, 1, backwards))
    assert text.startswith(
        f"ValueError: group: got a DeviceMesh of the ranks {list(range(size))[::-1]}, expected them in rising"
    ), text
    text = refusal(lambda: parallelize_module(nn.Sequential(nn.SiLU()), mesh, {"0": distributed.SpatialParallel()}))
    assert text.startswith("TypeError: module: got an object of type SiLU, expected an nn.Conv2d"), text
