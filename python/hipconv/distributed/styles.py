"""A torch.distributed.tensor style for models of images: ``parallelize_module(decoder, mesh, {"*conv*":
SpatialParallel()})``.
"""

from __future__ import annotations

from collections.abc import Sequence
import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from ..arguments import describe, flag
from ..ops.conv2d import geometry
from .conv2d import conv2d
from .graphs import outside_of_graphs
from .groups import group_of

if TYPE_CHECKING:
    from torch.distributed._tensor import DTensor, Shard  # in every version
else:
    try:
        from torch.distributed.tensor import DTensor, Shard
    except ImportError:  # torch 2.4
        from torch.distributed._tensor import DTensor, Shard


class SpatialParallel(ParallelStyle):
    """Has `nn.Conv2d` layers convolve images whose rows, or columns, are split over a mesh of one dimension.

    Args:
        shard_dim: the split axis of x and of the result: -2, rows, or -1, columns.
        reduce_gradients: sum the gradients of the layer's parameters over the mesh, so that they are whole and the same on all
            ranks. Where data parallelism over the mesh does that, False.
        sizes: rows, or columns, of every rank's part of the layers' inputs, if they are known and plain tensors: DTensors tell.
        validate: as for `hipconv.distributed.halo`; with False plain tensors need `sizes`.

    The layer's parameters stay plain tensors, the same on all ranks. Its input is a DTensor, which is redistributed to
    Shard(shard_dim) where it is not, and its output one too, of that placement, split as DTensor splits (torch.chunk). Or its
    input is a plain tensor, this rank's part, and so is its output, split as evenly as torch.tensor_split does.

    Raises, when it is applied: TypeError for a module that is no nn.Conv2d, ValueError for a mesh of several dimensions.
    """

    def __init__(
        self, shard_dim: int = -2, *, reduce_gradients: bool = True, sizes: Sequence[int] | None = None, validate: bool = True
    ) -> None:
        super().__init__()
        if shard_dim not in (-2, -1, 2, 3):
            raise ValueError(f"shard_dim: got {describe(shard_dim)}, expected -2 (rows) or -1 (columns)")
        self.axis, self.sizes = shard_dim % 4, sizes
        self.options: dict[str, Any] = {
            "reduce_gradients": flag("reduce_gradients", reduce_gradients),
            "validate": flag("validate", validate),
        }

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, nn.Conv2d):
            raise TypeError(
                f"module: got {describe(module)}, expected an nn.Conv2d; name the layers in the plan, such as 'conv_in'"
            )
        group_of(device_mesh)
        forward: Any = _Forward(self, module, device_mesh)
        module.forward = forward  # type: ignore[method-assign]
        return module

    def convolved(self, layer: nn.Conv2d, mesh: DeviceMesh, x: Any) -> Any:
        """The layer's result for x."""
        if not isinstance(x, DTensor):
            return self._convolve(layer, mesh, x, self.sizes, None)
        placement = Shard(self.axis)
        x = x.redistribute(mesh, [placement])
        sizes = _chunk_sizes(x.shape[self.axis], mesh.size())
        shape = _out_shape(layer, x.shape)
        local = self._convolve(layer, mesh, x.to_local(), sizes, _chunk_sizes(shape[self.axis], mesh.size()))
        # This is the layout of the whole, the same on all ranks.
        dense = torch.channels_last if x.stride(1) < x.stride(3) else torch.contiguous_format
        stride = torch.empty(shape, device="meta", memory_format=dense).stride()
        return DTensor.from_local(
            local.contiguous(memory_format=dense), mesh, [placement], run_check=False, shape=shape, stride=stride
        )

    def _convolve(self, layer: nn.Conv2d, mesh: DeviceMesh, x: Tensor, sizes: Any, out_sizes: Any) -> Tensor:
        return conv2d(
            x,
            layer.weight,
            layer.bias,
            layer.stride,
            _padding(layer),
            layer.dilation,
            layer.groups,
            group=mesh,
            shard_dim=self.axis,
            sizes=sizes,
            out_sizes=out_sizes,
            padding_mode=layer.padding_mode,
            **self.options,
        )


class _Forward:
    """The `forward` that a layer gets. A copy of the layer has the same mesh,
    whose process group cannot be copied or pickled.
    """

    def __init__(self, style: SpatialParallel, layer: nn.Conv2d, mesh: DeviceMesh) -> None:
        self.style, self.layer, self.mesh = style, layer, mesh

    @outside_of_graphs
    def __call__(self, x: Any) -> Any:
        return self.style.convolved(self.layer, self.mesh, x)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Forward:
        return _Forward(self.style, copy.deepcopy(self.layer, memo), self.mesh)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"module: got a layer that is split over {self.mesh}, expected one that is not where it is pickled, as torch.save "
            f"does too: save its state_dict(), and apply parallelize_module again where it is loaded"
        )


def _padding(layer: nn.Conv2d) -> Any:
    return layer.padding if isinstance(layer.padding, str) else tuple(layer.padding)


def _out_shape(layer: nn.Conv2d, shape: torch.Size) -> torch.Size:
    """Return the shape of the whole result, by torch's own rule."""
    kernel = geometry.kernel_size(layer.weight.shape)
    o = geometry.options(kernel, layer.stride, _padding(layer), layer.dilation, layer.groups, layer.padding_mode, "none")
    return torch.Size(geometry.out_shape(shape, layer.weight.shape, o))


def _chunk_sizes(total: int, ranks: int) -> tuple[int, ...]:
    """As torch.chunk and DTensor have them: the last ones may be smaller, or empty."""
    each = -(-total // ranks)
    return tuple(max(0, min(each, total - rank * each)) for rank in range(ranks))
