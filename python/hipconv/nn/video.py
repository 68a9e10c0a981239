"""The convolutions of a video model, computed by ours: those of diffusers' autoencoders with the frames before a chunk read in
place.

A layer stays where it is, with its name, parameters, hooks and class, of which it becomes an instance of a subclass: models
count their causal convolutions by class. Which convolution a layer is, its attributes say; diffusers is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

import torch
from torch import Tensor

from ..arguments import describe, require_kinds
from ..ops.conv3d.forward import conv3d
from . import blocks, wan
from .conv2d import SERVED
from .replace import ReplacedLayer, Replacement, convert_arguments, keep_norms_in_layout, lay_out

Layer = torch.nn.Module


def replace_conv3d(model: torch.nn.Module, *, channels_last: bool = True) -> Replacement:
    """Have `hipconv.conv3d` compute the three-dimensional convolutions of `model`, in place.

    The causal convolutions of diffusers' AutoencoderKLWan, AutoencoderKLQwenImage, AutoencoderKLHunyuanVideo,
    AutoencoderKLCogVideoX and AutoencoderKLLTXVideo make no padded copy and no concatenation with their cache any more;
    `torch.nn.Conv3d` elsewhere is replaced too. The encoders and decoders of the first two are run as a whole, those of the
    others block by block, norms, SiLU, upsampling and residuals included, where no gradient is recorded and nobody looks at a
    layer inside (hooks, `train()`, autocast, `torch.compile`).

    Args:
        model: any module.
        channels_last: have the weights in channels_last_3d memory, and 5-dimensional arguments of the model, its encoder and
            its decoder converted to it by a forward pre-hook, while they have few channels. It is the layout in which the
            kernels are fastest and take no workspace, and the one of what is run as a whole. A `torch.nn.GroupNorm` of the
            model is replaced by one that shares its parameters and leaves large videos in that layout on a GPU, where torch's
            moves them to contiguous memory. Any other layer leaves its result in the layout of its input: to convert large
            tensors takes longer than to convolve them in the slower layout.

    Returns:
        What was replaced, and what was left and why: a table when printed, with an `undo()`. Other subclasses of
        `torch.nn.Conv3d`, layers whose forward was replaced already, and dtypes other than float32, float16 and bfloat16 are
        left.

    Raises:
        TypeError: an argument of the wrong kind.
    """
    require_kinds(replace_conv3d, locals())
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: got {describe(model)}, expected a torch.nn.Module")
    layers: list[ReplacedLayer] = []
    steps: list[Callable[[], object]] = []
    inside: set[torch.nn.Module] = set()  # convolutions that a layer around them computes
    for name, layer in list(model.named_modules()):
        if layer in inside or isinstance(layer, _Served):
            continue
        kind = _CAUSAL.get(type(layer).__name__)
        convolution = getattr(layer, "conv", layer) if kind else layer
        if not isinstance(convolution, torch.nn.Conv3d):
            continue
        forward, why = (kind or _plain)(layer, convolution)
        why = why or _why_left(layer, convolution)
        if why and kind and convolution is not layer:  # its own forward still calls the convolution in it, which is met next
            layers.append(ReplacedLayer(name, False, (), why))
            continue
        layers.append(ReplacedLayer(name, not why, (), why))
        if why:
            continue
        inside.add(convolution)
        steps.append(functools.partial(setattr, layer, "__class__", type(layer)))
        layer.__class__ = _subclass(type(layer), forward)
        if channels_last:
            lay_out(convolution.weight, torch.channels_last_3d, steps)
    if not channels_last or not steps:
        return Replacement(layers, steps)
    norms = keep_norms_in_layout(model, steps)
    for name, module in model.named_modules():
        if isinstance(module, _Served):
            continue
        if type(module).__name__ in wan.CODERS:
            _take_whole(name, module, wan, inside, layers, steps)
        elif block := blocks.KINDS.get(type(module).__name__):
            _take_whole(name, module, block, inside, layers, steps)
        if module is model or type(module).__name__.endswith(_CODERS):
            convert_arguments(module, torch.channels_last_3d, steps)
    return Replacement(layers, steps, norms)


# ---- what is run as a whole --------------------------------------------------------------------------------------------------

Forward = Callable[..., Any]
_CODERS = ("Encoder3d", "Decoder3d", "Encoder3D", "Decoder3D")


def _take_whole(
    name: str,
    module: Any,
    how: Any,
    inside: set[torch.nn.Module],
    layers: list[ReplacedLayer],
    steps: list[Callable[[], object]],
) -> None:
    """Have `how.run` compute a coder or a block as a whole, if its layers are those that are known of it. It returns None for
    calls that it leaves to the module's own forward."""
    convolutions = [layer for layer in module.modules() if isinstance(layer, torch.nn.Conv3d)]
    if not all(convolution in inside for convolution in convolutions) or not how.is_known(module):
        return
    kind: Any = type(module)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = how.run(self, *args, **kwargs) if args and _is_unwatched(self, args[0]) else None
        return kind.forward(self, *args, **kwargs) if result is None else result

    steps.append(functools.partial(setattr, module, "__class__", kind))
    module.__class__ = _subclass(kind, forward)
    for weight in how.image_weights(module):
        lay_out(weight, torch.channels_last, steps)
    places = {layer.name: place for place, layer in enumerate(layers)}
    for own, others in how.computed_with(name, module):
        layer = ReplacedLayer(own, True, others, "")
        if own in places:
            layers[places[own]] = layer
        else:
            layers.append(layer)


def _is_unwatched(module: Any, x: Tensor) -> bool:
    """Tell whether a call records no gradient, no hook sees what the layers in a module give, and all is of one dtype."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    if x.dim() != 5 or torch.is_autocast_enabled(x.device.type):
        return False
    if any(parameter.dtype != x.dtype or parameter.device != x.device for parameter in module.parameters()):
        return False
    return not any(layer is not module and _is_watched(layer) for layer in module.modules())


def _is_watched(module: Any) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    return module.training or "forward" in module.__dict__ or any(module.__dict__.get(name) for name in hooks)


# ---- how each layer calls conv3d ---------------------------------------------------------------------------------------------


def _convolve(convolution: Any, x: Tensor, **options: Any) -> Tensor:
    padding = options.pop("padding", convolution.padding)
    mode = options.pop("padding_mode", convolution.padding_mode)
    numbers = (convolution.stride, padding, convolution.dilation, convolution.groups)
    return conv3d(x, convolution.weight, convolution.bias, *numbers, padding_mode=mode, **options)


def _plain(layer: Any, convolution: Any) -> tuple[Forward, str]:
    def forward(self: Any, input: Tensor, **options: Any) -> Tensor:
        return _convolve(self, input, **options)

    known = type(layer) is torch.nn.Conv3d or type(layer).__name__ == "CogVideoXSafeConv3d"
    return forward, "" if known else f"is a {type(layer).__name__}, which may do more than a convolution"


def _wan(layer: Any, convolution: Any) -> tuple[Forward, str]:
    """Zeros before the first frame, of which a cache takes the last ones' place: WanCausalConv3d, QwenImageCausalConv3d."""
    left, right, top, bottom, front, back = layer._padding
    sides = (0, 0, top, bottom, left, right)
    causal = front == layer.kernel_size[0] - 1 and front > 0

    def forward(self: Any, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
        if not causal:
            return _convolve(self, x, padding=sides)
        cache = None if cache_x is None else cache_x.to(x.device, x.dtype)
        return _convolve(self, x, padding=sides, cache=cache, time_padding="zeros")

    odd = back != 0 or (front and not causal) or layer.dilation[0] != 1 or layer.padding != (0, 0, 0)
    return forward, "pads frames otherwise than a causal convolution does" if odd else ""


def _hunyuan(layer: Any, convolution: Any) -> tuple[Forward, str]:
    """Replicated edges, and the first frame before itself."""
    left, right, top, bottom, front, back = layer.time_causal_padding
    time_padding = {"replicate": "first", "constant": "zeros"}.get(layer.pad_mode)
    mode = {"replicate": "replicate"}.get(layer.pad_mode, "zeros")

    def forward(self: Any, hidden_states: Tensor, **options: Any) -> Tensor:
        sides = (0, 0, top, bottom, left, right)
        options = {"padding": sides, "time_padding": time_padding, "padding_mode": mode, **options}
        return _convolve(self.conv, hidden_states, **options)

    odd = (
        time_padding is None
        or back
        or front != convolution.kernel_size[0] - 1
        or any(convolution.padding)
        or convolution.dilation[0] != 1
    )
    return forward, f"pads by '{layer.pad_mode}' and a convolution of padding {convolution.padding}" if odd else ""


def _cogvideox(layer: Any, convolution: Any) -> tuple[Forward, str]:
    """The first frame before itself, or the cache, which the layer returns with the result."""
    replicates = layer.pad_mode == "replicate"
    left, right, top, bottom, front, _ = layer.time_causal_padding

    def forward(
        self: Any, inputs: Tensor, conv_cache: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        if replicates:
            sides = (0, 0, top, bottom, left, right)
            options = {"padding": sides, "time_padding": "first", "padding_mode": "replicate", **options}
            return _convolve(self.conv, inputs, **options), None
        if front == 0:
            return _convolve(self.conv, inputs, **options), None
        leaves = (inputs, self.conv.weight, self.conv.bias, conv_cache)
        records = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in leaves)
        if records or torch.is_autocast_enabled(inputs.device.type):
            earlier = inputs[:, :, :1].expand(-1, -1, front, -1, -1) if conv_cache is None else conv_cache
            saved = torch.cat([earlier, inputs], 2)[:, :, -front:].clone()
            return _convolve(self.conv, inputs, cache=conv_cache, time_padding="first", **options), saved
        last = inputs.is_contiguous(memory_format=torch.channels_last_3d)
        saved = torch.empty(
            [*inputs.shape[:2], front, *inputs.shape[3:]], dtype=inputs.dtype, device=inputs.device,
            memory_format=torch.channels_last_3d if last else torch.contiguous_format,
        )  # fmt: skip
        return _convolve(self.conv, inputs, cache=conv_cache, cache_out=saved, time_padding="first", **options), saved

    spatial = (0, layer.width_pad, layer.height_pad)
    odd = layer.temporal_dim != 2 or front != convolution.kernel_size[0] - 1 or convolution.dilation[0] != 1
    odd = odd or tuple(convolution.padding) != ((0, 0, 0) if replicates else spatial)
    return forward, f"pads {layer.time_causal_padding} and by a convolution of padding {convolution.padding}" if odd else ""


def _ltx(layer: Any, convolution: Any) -> tuple[Forward, str]:
    """The first frame before itself, or, where it is not causal, the first and the last one on both sides."""
    frames = 0 if layer.is_causal else (convolution.kernel_size[0] - 1) // 2
    time_padding = "first" if layer.is_causal else "edges"

    def forward(self: Any, hidden_states: Tensor, **options: Any) -> Tensor:
        padding = (frames, *self.conv.padding[1:])
        return _convolve(self.conv, hidden_states, padding=padding, time_padding=time_padding, **options)

    odd = convolution.padding[0] != 0 or convolution.dilation[0] != 1
    return forward, f"has a convolution of padding {convolution.padding} and dilation {convolution.dilation}" if odd else ""


_CAUSAL: dict[str, Callable[[Any, Any], tuple[Forward, str]]] = {
    "WanCausalConv3d": _wan,
    "QwenImageCausalConv3d": _wan,
    "HunyuanVideoCausalConv3d": _hunyuan,
    "CogVideoXCausalConv3d": _cogvideox,
    "LTXVideoCausalConv3d": _ltx,
}


# ---- layers ------------------------------------------------------------------------------------------------------------------


class _Served:
    """A mark of layers that are replaced."""


def _subclass(kind: type, forward: Forward) -> type:
    """Derive from a layer's class one with this forward."""
    return type(kind.__name__, (_Served, kind), {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__})


def _why_left(layer: Any, convolution: Any) -> str:
    if "forward" in layer.__dict__ or "forward" in convolution.__dict__:
        return "has a forward of its own"
    if convolution is not layer and any(convolution.__dict__.get(name) for name in ("_forward_hooks", "_forward_pre_hooks")):
        return "has hooks on the convolution in it"
    if not isinstance(convolution.weight, Tensor) or convolution.weight.dtype not in SERVED:
        return f"is of {getattr(convolution.weight, 'dtype', type(convolution.weight).__name__)}"
    return ""
