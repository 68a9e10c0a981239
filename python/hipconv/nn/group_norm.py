"""torch.nn.GroupNorm that leaves images and videos in channels_last memory, for models whose convolutions are replaced."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.transforms import in_torch_func, wants_derivative
from .conv2d import SERVED

LARGE = 1 << 20  # elements of an image, from which on its memory counts and not the launches
FEW = 4  # images, up to which torch's kernel, which has a block for each group of an image, leaves most of a card idle
MOST = 1 << 31  # elements, which torch's kernels of batch norms count in 32 bits
_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


class GroupNorm(torch.nn.GroupNorm):
    """`torch.nn.GroupNorm` with the same parameters and state dict, faster for large images in channels_last and videos in
    channels_last_3d on a GPU.

    torch's own copies them to contiguous memory and leaves the result there, so that the next convolution gets it in
    the wrong layout. Here torch's kernels of batch norms in channels_last compute mean and variance of each channel and
    normalize by those of its group. Calls of other kinds are torch's: on a CPU, of smaller images or more than a few, in other
    layouts, under autocast and torch.func, compiled, and where a gradient is recorded.
    """

    @classmethod
    def from_torch(cls, layer: torch.nn.GroupNorm) -> GroupNorm:
        """A layer with the settings, the mode and the very parameters of `layer`, which shares them from then on."""
        made = cls.__new__(cls)
        torch.nn.Module.__init__(made)
        made.__dict__.update({name: value for name, value in layer.__dict__.items() if not name.startswith("_")})
        made.register_parameter("weight", layer.weight)
        made.register_parameter("bias", layer.bias)
        return made.train(layer.training)

    def forward(self, input: Tensor) -> Tensor:
        if self._serves(input):
            return normalized(input, self.num_groups, self.weight, self.bias, self.eps)
        return super().forward(input)

    def _serves(self, x: Tensor) -> bool:
        if torch.compiler.is_compiling() or type(x) is not Tensor or not x.is_cuda or x.dim() not in _LAYOUTS:
            return False
        parameters = [parameter for parameter in (self.weight, self.bias) if parameter is not None]
        return (
            x.dtype in SERVED
            and all(parameter.dtype in (x.dtype, torch.float32) for parameter in parameters)
            and x.shape[1] == self.num_channels
            and x.is_contiguous(memory_format=_LAYOUTS[x.dim()])
            and not x.is_contiguous()
            and len(x) <= FEW
            and LARGE <= x[0].numel() < MOST
            and not torch.is_autocast_enabled()
            and not in_torch_func()
            and not wants_derivative(x, *parameters)
        )


def normalized(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The group norm of images in channels_last memory, or of videos in channels_last_3d, in that memory, one after another."""
    out = torch.empty_like(x)
    # The frames of a video are one image, above one another.
    images, results = (t if t.dim() == 4 else t.flatten(2, 3) for t in (x, out))
    for image, result in zip(images.split(1), results.split(1), strict=True):
        means, inverses = (each.view(groups, -1) for each in torch.batch_norm_stats(image, 0.0))
        mean = means.mean(1, keepdim=True)
        variance = (inverses.pow(-2) + (means - mean).square()).mean(1, keepdim=True)
        shift, scale = (each.expand_as(means).reshape(-1) for each in (mean, torch.rsqrt(variance + eps)))
        torch.batch_norm_elemt(image, weight, bias, shift, scale, eps, out=result)
    return out
