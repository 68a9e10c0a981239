"""The convolutions of a model, replaced by ours, and what follows them taken into them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
import dataclasses
import functools
import inspect
import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn.utils.fusion import fuse_conv_bn_weights

from ..arguments import describe, require_kinds
from ..ops.conv2d.activations import LEAKY_SLOPE
from .conv2d import SERVED, Conv2d
from .group_norm import GroupNorm


@dataclasses.dataclass(frozen=True)
class ReplacedLayer:
    """A convolution of the model, and its fate."""

    name: str
    """Its name in the model."""
    replaced: bool
    taken_in: tuple[str, ...]
    """The names of the layers that it computes now, too: a batch norm, an activation."""
    why: str
    """Why it, or what follows it, was left; empty where nothing was."""


class Replacement:
    """The result of `replace_conv2d` and `replace_conv3d`. Print it for a table; `undo` it to have the model as it was."""

    def __init__(
        self,
        layers: list[ReplacedLayer],
        steps: list[Callable[[], object]],
        norms: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:
        self.layers = layers
        self.norms = norms
        """The names of group norms that leave images in channels_last memory now."""
        self.notes = notes
        """Lines on what is uncertain about the order of the model's layers; empty where `torch.fx` could follow its code."""
        self._steps = steps

    @property
    def replaced(self) -> int:
        """The number of convolutions that were replaced."""
        return sum(layer.replaced for layer in self.layers)

    def undo(self) -> None:
        """Put the model's own layers back; a second call does nothing. Layers without a folded batch norm have shared their
        parameters all the while, and keep what training made of them; the others are as they were."""
        while self._steps:
            self._steps.pop()()

    def __str__(self) -> str:
        rows = [("layer", "", "takes in", "why not more")]
        rows += [
            (layer.name, "replaced" if layer.replaced else "left", ", ".join(layer.taken_in), layer.why)
            for layer in self.layers
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines += [f"{len(self.norms)} group norms keep channels_last memory"] if self.norms else []
        return "\n".join([*lines, *self.notes, f"{self.replaced} of {len(self.layers)} convolutions are replaced"])


def replace_conv2d(
    model: torch.nn.Module, *, fold_batchnorm: bool = False, fuse_activations: bool = True, channels_last: bool = True
) -> Replacement:
    """Replace each `torch.nn.Conv2d` in `model`, in place, by a `hipconv.nn.Conv2d` that shares its parameters.

    What follows a convolution is found by `torch.fx`, which follows `forward` in the mode that the model is in, once with all
    arguments given and once without the optional ones: a layer is taken in where it follows in both. Where one of these cannot
    be followed, the order in each `torch.nn.Sequential` decides, whose children are taken to be called one after another, and
    the report says so. A model that then calls a child of a Sequential by itself, or a convolution from a method other than
    `forward`, gets the activation there too: pass ``fuse_activations=False`` for it.

    Args:
        model: any module but a convolution itself.
        fold_batchnorm: multiply a following BatchNorm2d that is in eval mode, with running statistics, into the convolution's
            weight and bias, which are new parameters then. The batch norm leaves the model and its state dict until `undo`.
        fuse_activations: let the kernel compute an activation layer if nothing but it follows the convolution or its folded
            batch norm. The gradient of a ReLU6 or LeakyReLU is then computed from its result, as torch computes that of a ReLU:
            if the model changes it in place (``y += shortcut``), torch raises in the backward.
        channels_last: have the weights in channels_last memory, and 4-dimensional arguments of the model converted to it by a
            forward pre-hook. It is the layout in which the kernels are fastest. A `torch.nn.GroupNorm` of the model is replaced
            by one that shares its parameters and leaves large images in that layout on a GPU, where torch's moves them to
            contiguous memory.

    Returns:
        What was replaced, and what was left and why: a table when printed, with an `undo()`. Subclasses of `torch.nn.Conv2d`,
        layers with hooks, and dtypes other than float32, float16 and bfloat16 are left.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: the model is itself a convolution. The model is not changed then.
    """
    require_kinds(replace_conv2d, locals())
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: got {describe(model)}, expected a torch.nn.Module")
    if isinstance(model, torch.nn.Conv2d):
        raise ValueError(f"model: got a {type(model).__name__} itself, expected a module that holds convolutions")
    layers: list[ReplacedLayer] = []
    steps: list[Callable[[], object]] = []
    names = _names(model)
    order, notes = _order(model, names)
    made: list[Conv2d] = []
    for layer, places in names.items():
        if not isinstance(layer, torch.nn.Conv2d) or isinstance(layer, Conv2d):
            continue
        if why := _why_left(layer):
            layers += [ReplacedLayer(name, False, (), why) for name in places]
            continue
        new = Conv2d.from_torch(layer)
        taken, why = _take_in(new, layer, names, order, fold_batchnorm, fuse_activations)
        for name in places:
            _put(model, name, new, steps)
        for name, instead in taken.items():
            _put(model, name, instead, steps)
        layers += [ReplacedLayer(name, True, tuple(taken), why) for name in places]
        made.append(new)
    norms: list[str] = []
    if channels_last and made:
        for new in made:
            lay_out(new.weight, torch.channels_last, steps)
        norms = keep_norms_in_layout(model, steps)
        convert_arguments(model, torch.channels_last, steps)
    return Replacement(layers, steps, norms, notes if made and (fold_batchnorm or fuse_activations) else ())


# ---- what follows a layer ----------------------------------------------------------------------------------------------------

Names = dict[torch.nn.Module, list[str]]


class _Order(NamedTuple):
    """The order of layers, as a graph or the Sequentials of a model have it."""

    called: Collection[torch.nn.Module]
    """The layers of which it tells."""
    next_of: dict[torch.nn.Module, torch.nn.Module]
    """For a layer that is called once, and whose result goes to one layer alone, which is called once: that layer."""
    left: dict[torch.nn.Module, tuple[torch.nn.Module, str]]
    """For another layer before a batch norm or an activation: that one, and why it does not count as the next."""


def _order(model: torch.nn.Module, names: Names) -> tuple[_Order, list[str]]:
    """The order of layers in every call of the model, as far as can be told, and notes on how far that is."""
    orders: list[_Order] = []
    failures: list[tuple[str, str]] = []
    for with_optional, how in ((True, " with all of its arguments"), (False, " without its optional arguments")):
        try:
            if not with_optional and not any(map(_is_optional, _parameters(type(model).forward))):
                continue  # it is the same call
            orders.append(_order_in_graph(model, _Tracer(with_optional).trace(model)))
        except Exception as error:  # whatever the model's own code raises for what fx hands it
            reason = " ".join(str(error).split()) or type(error).__name__
            failures.append((how, reason if len(reason) <= 150 else f"{reason[:150]}..."))
    notes: list[str] = []
    if failures:
        how, reason = failures[0]
        meaning = "what follows a layer is taken from the order of each Sequential"
        if orders:
            meaning += ", where the calls that it can follow agree"
        else:
            how = ""
        notes = [f"torch.fx cannot follow {type(model).__name__}.forward{how} ({reason}): {meaning}"]
        orders.append(_order_in_sequentials(model, names))
    return _agreed(orders), notes


def _agreed(orders: list[_Order]) -> _Order:
    """Keep of a layer and its next what all orders say that call one of the two."""
    result = _Order(set().union(*(order.called for order in orders)), {}, {})
    for order in orders:
        for layer, after in order.next_of.items():
            others = [other for other in orders if layer in other.called or after in other.called]
            if all(other.next_of.get(layer) is after for other in others):
                result.next_of[layer] = after
            else:
                result.left.setdefault(layer, (after, "follows it in some calls only"))
    for order in orders:
        result.left.update({layer: left for layer, left in order.left.items() if layer not in result.next_of})
    return result


class _Tracer(fx.Tracer):
    """Calls forward with all of its arguments, or only with those that have no default."""

    def __init__(self, with_optional: bool) -> None:
        super().__init__()
        self._with_optional = with_optional

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        own = isinstance(m, (torch.nn.Conv2d, torch.nn.BatchNorm2d, torch.nn.GroupNorm))
        return own or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None) -> tuple[Any, list]:
        if self._with_optional:
            return super().create_args_for_root(root_fn, is_module, concrete_args)
        needed = [parameter for parameter in _parameters(root_fn) if not _is_optional(parameter)]
        keywords = [parameter.name for parameter in needed if parameter.kind is parameter.KEYWORD_ONLY]
        positional = len(needed) - len(keywords)

        def call(root: torch.nn.Module, *values: Any) -> Any:
            return root_fn(root, *values[:positional], **dict(zip(keywords, values[positional:], strict=True)))

        return call, [self.root, *(self.create_proxy("placeholder", parameter.name, (), {}) for parameter in needed)]


def _parameters(forward: Callable[..., Any]) -> list[inspect.Parameter]:
    """Those of a method, without self."""
    return list(inspect.signature(forward).parameters.values())[1:]


def _is_optional(parameter: inspect.Parameter) -> bool:
    stars = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is not parameter.empty or parameter.kind in stars


def _order_in_graph(model: torch.nn.Module, graph: fx.Graph) -> _Order:
    calls: dict[torch.nn.Module, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls.setdefault(model.get_submodule(str(node.target)), []).append(node)
    result = _Order(calls, {}, {})
    for layer, nodes in calls.items():
        users = [user for node in nodes for user in node.users]
        followers = [
            model.get_submodule(str(user.target))
            for user in users
            if user.op == "call_module" and len(user.args) == 1 and user.args[0] in nodes and not user.kwargs
        ]
        if len(nodes) == len(users) == len(followers) == len(calls[followers[0]]) == 1:
            result.next_of[layer] = followers[0]
        elif after := next(filter(_may_be_taken_in, followers), None):
            if len(nodes) > 1:
                why = f"follows one of {len(nodes)} calls of it"
            elif len(users) > 1:
                why = f"is one of {len(users)} uses of its result"
            else:
                why = f"is called {len(calls[after])} times"
            result.left[layer] = after, why
    return result


def _order_in_sequentials(model: torch.nn.Module, names: Names) -> _Order:
    result = _Order(names, {}, {})
    for parent in model.modules():
        if not isinstance(parent, torch.nn.Sequential) or type(parent).forward is not torch.nn.Sequential.forward:
            continue
        for layer, after in itertools.pairwise(parent):
            places = [max(len(names[module]), list(parent).count(module)) for module in (layer, after)]
            if places == [1, 1]:
                result.next_of[layer] = after
            elif _may_be_taken_in(after):
                why = f"follows it in one of {places[0]} places" if places[0] > 1 else f"stands in {places[1]} places"
                result.left[layer] = after, why
    return result


def _may_be_taken_in(layer: torch.nn.Module) -> bool:
    return isinstance(layer, torch.nn.BatchNorm2d) or _name_of_activation(layer) is not None


# ---- what a convolution takes in ---------------------------------------------------------------------------------------------


def _take_in(
    new: Conv2d,
    layer: torch.nn.Conv2d,
    names: Names,
    order: _Order,
    fold_batchnorm: bool,
    fuse_activations: bool,
) -> tuple[dict[str, torch.nn.Module], str]:
    """Have `new`, which replaces `layer`, compute what follows that one.

    Returns by name what stands in the place of each layer that is taken in, and why the next one is not.
    """
    taken: dict[str, torch.nn.Module] = {}
    after = order.next_of.get(layer)
    activation: torch.nn.Module | None = after
    last: torch.nn.Module = layer
    if isinstance(after, torch.nn.BatchNorm2d):
        if not fold_batchnorm:
            return taken, ""
        if why := _why_not_folded(new, after):
            return taken, f"{names[after][0]} {why}"
        _fold(new, after)
        own = getattr(after, "act", None) if type(after) is not torch.nn.BatchNorm2d else None  # timm's BatchNormAct2d
        if own is not None and type(own) is not torch.nn.Identity:
            name = _name_of_activation(own) if fuse_activations else None
            new.activation = name or "none"
            taken.update(dict.fromkeys(names[after], own if name is None else torch.nn.Identity()))
            return taken, ""
        taken.update(dict.fromkeys(names[after], torch.nn.Identity()))
        activation, last = order.next_of.get(after), after
    if last in order.left:
        left, why = order.left[last]
        wanted = fold_batchnorm and last is layer if isinstance(left, torch.nn.BatchNorm2d) else fuse_activations
        return taken, f"{names[left][0]} {why}" if wanted else ""
    if fuse_activations and activation is not None and not _has_hooks(activation):
        name = _name_of_activation(activation)
        if name is not None:
            new.activation = name
            taken.update(dict.fromkeys(names[activation], torch.nn.Identity()))
    return taken, ""


def _name_of_activation(layer: torch.nn.Module) -> str | None:
    """The name that `hipconv.conv2d` has for the activation that a layer computes; None if there is none."""
    kind = type(layer)
    if kind is torch.nn.GELU:
        return {"none": "gelu", "tanh": "gelu_tanh"}.get(layer.approximate)  # type: ignore[call-overload]
    if kind is torch.nn.LeakyReLU and layer.negative_slope != LEAKY_SLOPE:
        return None
    return _ACTIVATIONS.get(kind)


_ACTIVATIONS = {
    torch.nn.ReLU: "relu",
    torch.nn.ReLU6: "relu6",
    torch.nn.SiLU: "silu",
    torch.nn.Sigmoid: "sigmoid",
    torch.nn.Tanh: "tanh",
    torch.nn.LeakyReLU: "leaky_relu",
    torch.nn.Hardswish: "hardswish",
}


def _why_not_folded(new: Conv2d, norm: torch.nn.BatchNorm2d) -> str:
    drop = getattr(norm, "drop", None)
    if type(norm) is not torch.nn.BatchNorm2d and type(norm).__name__ != "BatchNormAct2d":
        return f"is a {type(norm).__name__}, which may do more than a batch norm"
    if drop is not None and type(drop) is not torch.nn.Identity:
        return "drops out channels"
    if norm.training:
        return "is in training mode: call model.eval() first"
    if norm.running_mean is None or norm.running_var is None:
        return "has no running statistics"
    if norm.num_features != new.out_channels:
        return f"has {norm.num_features} channels"
    return "has hooks" if _has_hooks(norm) else ""


def _fold(new: Conv2d, norm: torch.nn.BatchNorm2d) -> None:
    """Multiply a batch norm into new parameters of `new`; in float32 at least."""
    weight, bias = new.weight, new.bias
    widest = torch.promote_types(weight.dtype, torch.float32)

    def wide(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor.detach().to(widest)

    folded = fuse_conv_bn_weights(
        wide(weight), wide(bias), wide(norm.running_mean), wide(norm.running_var), norm.eps, wide(norm.weight), wide(norm.bias)
    )
    new.weight, new.bias = (torch.nn.Parameter(t.detach().to(weight.dtype), requires_grad=weight.requires_grad) for t in folded)


# ---- the model ---------------------------------------------------------------------------------------------------------------


def _names(model: torch.nn.Module) -> Names:
    """Each module's names: a module may have several."""
    names: Names = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return names


def _has_hooks(layer: torch.nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" in layer.__dict__ or any(layer.__dict__.get(name) for name in hooks)


def _why_left(layer: torch.nn.Conv2d) -> str:
    if type(layer) is not torch.nn.Conv2d:
        return f"is a {type(layer).__name__}, which may do more than a convolution"
    if _has_hooks(layer):
        return "has hooks"
    if not isinstance(layer.weight, Tensor) or layer.weight.dtype not in SERVED:
        return f"is of {getattr(layer.weight, 'dtype', type(layer.weight).__name__)}"
    return ""


def _put(model: torch.nn.Module, name: str, module: torch.nn.Module, steps: list[Callable[[], object]]) -> None:
    """Set the module of this name; a step puts the one before back."""
    parent, _, own = name.rpartition(".")
    children = model.get_submodule(parent)._modules
    steps.append(functools.partial(children.__setitem__, own, children[own]))
    module.train(model.get_submodule(name).training)
    children[own] = module


def lay_out(weight: Tensor, memory_format: torch.memory_format, steps: list[Callable[[], object]]) -> None:
    """Have a weight in memory of that format; a step lays it out as before."""
    if weight.is_contiguous(memory_format=memory_format):
        return

    def restore() -> None:
        weight.data = weight.data.contiguous()

    weight.data = weight.data.contiguous(memory_format=memory_format)
    steps.append(restore)


def keep_norms_in_layout(model: torch.nn.Module, steps: list[Callable[[], object]]) -> list[str]:
    """Put a GroupNorm that leaves large images and videos in channels_last memory in the place of each of torch's.

    Returns their names.
    """
    norms: list[str] = []
    for layer, places in _names(model).items():
        if type(layer) is torch.nn.GroupNorm and not _has_hooks(layer) and layer is not model:
            keeps = GroupNorm.from_torch(layer)
            for name in places:
                _put(model, name, keeps, steps)
            norms += places
    return norms


def convert_arguments(module: torch.nn.Module, memory_format: torch.memory_format, steps: list[Callable[[], object]]) -> None:
    """Have a module get its images (channels_last) or videos (channels_last_3d) in memory of that format."""
    convert = functools.partial(_converted, memory_format)
    steps.append(module.register_forward_pre_hook(convert, with_kwargs=True).remove)


def _converted(
    memory_format: torch.memory_format, _: torch.nn.Module, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    axes = 5 if memory_format == torch.channels_last_3d else 4

    def laid_out(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() == axes and value.is_floating_point():
            return value.contiguous(memory_format=memory_format)
        return value

    return tuple(map(laid_out, args)), {name: laid_out(value) for name, value in kwargs.items()}
