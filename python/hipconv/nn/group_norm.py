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
        if not input.is_cuda and torch.is_grad_enabled():
            # On a CPU torch 2.13 crashes in the backward of channels_last memory whose gradient nobody wants.
            input = input.contiguous()
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
    for image, result in zip(_images(x), _images(out), strict=True):
        mean, variance = _moments(image, groups)
        shift, scale = (each.expand(-1, x.shape[1] // groups).reshape(-1) for each in (mean, torch.rsqrt(variance + eps)))
        torch.batch_norm_elemt(image, weight, bias, shift, scale, eps, out=result)
    return out


def factors(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """Return what the group norm of videos in channels_last_3d memory multiplies each channel by, and what it adds then:
    float32, (batch, channels, 1, 1, 1).
    """
    if x.is_cuda:
        both = [torch.stack(each) for each in zip(*(_moments(image, groups) for image in _images(x)), strict=True)]
    else:
        both = list(torch.var_mean(x.float().unflatten(1, (groups, -1)), (2, 3, 4, 5), correction=0)[::-1])
    mean, variance = (each.view(len(x), groups, 1).expand(-1, -1, x.shape[1] // groups).flatten(1) for each in both)
    scale = torch.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale if bias is None else torch.addcmul(bias.float(), mean, scale, value=-1)
    return scale[:, :, None, None, None], shift[:, :, None, None, None]


def _images(x: Tensor) -> tuple[Tensor, ...]:
    """Each image; the frames of a video are one, above one another."""
    return (x if x.dim() == 4 else x.flatten(2, 3)).split(1)


def _moments(image: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of each group of one image in channels_last memory, (groups, 1), by torch's kernel of batch norms."""
    parts = image.split(max(1, (MOST - 1) // image[:, :, :1].numel()), 2)
    stats = [[each.view(groups, -1) for each in torch.batch_norm_stats(part, 0.0)] for part in parts]
    shares = [part.shape[2] / image.shape[2] for part in parts]
    mean = sum(share * means.mean(1, keepdim=True) for share, (means, _) in zip(shares, stats, strict=True))
    variance = sum(
        share * (inverses.pow(-2) + (means - mean).square()).mean(1, keepdim=True)
        for share, (means, inverses) in zip(shares, stats, strict=True)
    )
    return mean, variance  # type: ignore[return-value]  # there is a part
