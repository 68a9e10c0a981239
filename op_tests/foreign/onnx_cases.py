"""ONNX's backend tests of Conv (one to three dimensions) and CausalConvWithState: models, inputs and outputs of the `onnx`
package.

The node tests are made in memory by the package, with numpy; those that were once converted from PyTorch lie in it as files,
with the outputs that PyTorch gave then.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import hipconv


class OnnxCase(NamedTuple):
    name: str
    operator: str  # "Conv", "CausalConvWithState"
    attributes: dict[str, Any]
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    tolerances: tuple[float, float]  # relative, absolute: the package's own


def _node_cases() -> list[Any]:
    """Those of the modules that have convolutions: the package's own list works out the outputs of all operators."""
    node = importlib.import_module("onnx.backend.test.case.node")
    for module in ("causal_conv_with_state", "conv"):
        importlib.import_module(f"{node.__name__}.{module}")
    starts = ("test_conv", "test_basic_conv", "test_causal_conv")
    return [case for case in node._NodeTestCases if case.name.startswith(starts)]


def _attributes(node: Any) -> dict[str, Any]:
    onnx = importlib.import_module("onnx")
    return {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}


def _tensors(node_names: Any, graph_names: list[str], values: Any) -> list[Tensor | None]:
    """A node's inputs or outputs in its own order, None where it names none."""
    known = dict(zip(graph_names, values, strict=True))
    return [None if name not in known else torch.from_numpy(np.array(known[name])) for name in node_names]


def _case(name: str, model: Any, inputs: Any, outputs: Any, tolerances: tuple[float, float]) -> OnnxCase | None:
    nodes = model.graph.node
    if len(nodes) != 1 or nodes[0].op_type not in ("Conv", "CausalConvWithState"):
        return None
    node = nodes[0]
    taken = _tensors(node.input, [each.name for each in model.graph.input][: len(inputs)], inputs)
    given = [each for each in _tensors(node.output, [each.name for each in model.graph.output], outputs) if each is not None]
    return OnnxCase(name, node.op_type, _attributes(node), taken, given, tolerances)


def _converted() -> list[OnnxCase]:
    """Those whose models and data are files of the package."""
    loader, onnx = importlib.import_module("onnx.backend.test.loader"), importlib.import_module("onnx")
    found = []
    for kind in ("pytorch-converted", "pytorch-operator"):
        for test in loader.load_model_tests(kind=kind):
            if "onv" not in test.name or "ranspose" in test.name:
                continue
            model = onnx.load(f"{test.model_dir}/model.onnx")
            stored = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
            folder = Path(test.model_dir) / "test_data_set_0"
            inputs, outputs = (
                [
                    onnx.numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))
                    for file in sorted(folder.glob(f"{kind_of}_*.pb"), key=lambda file: int(file.stem.split("_")[1]))
                ]
                for kind_of in ("input", "output")
            )
            names = [each.name for each in model.graph.input if each.name not in stored][: len(inputs)]
            del model.graph.input[:]
            model.graph.input.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in [*names, *stored])
            case = _case(test.name, model, [*inputs, *stored.values()], outputs, (test.rtol, test.atol))
            if case is not None:
                found.append(case)
    return found


@functools.cache
def cases() -> tuple[OnnxCase, ...]:
    nodes = []
    for each in _node_cases():
        inputs, outputs = each.data_sets[0]
        nodes.append(_case(each.name, each.model, inputs, outputs, (each.rtol, each.atol)))
    return tuple(each for each in [*nodes, *_converted()] if each is not None)


# ---- the operators on hipconv ------------------------------------------------------------------------------------------------


def conv(case: OnnxCase, device: torch.device) -> list[Tensor]:
    """Conv, by `hipconv.conv3d` or `conv2d`: of one dimension with a height of one."""
    x, weight, *rest = (None if each is None else each.to(device) for each in case.inputs)
    assert x is not None and weight is not None
    bias = rest[0] if rest else None
    dimensions = weight.dim() - 2
    told = case.attributes

    def of(name: str, plain: int, count: int) -> list[int]:
        return list(told.get(name, [plain] * count))

    steps, distances, pads = of("strides", 1, dimensions), of("dilations", 1, dimensions), of("pads", 0, 2 * dimensions)
    automatic = told.get("auto_pad", b"NOTSET")
    if automatic in (b"SAME_UPPER", b"SAME_LOWER"):
        pads = [0] * (2 * dimensions)
        for axis in range(dimensions):
            size, taps = x.shape[2 + axis], weight.shape[2 + axis]
            total = max(0, (-(-size // steps[axis]) - 1) * steps[axis] + distances[axis] * (taps - 1) + 1 - size)
            small, large = total // 2, total - total // 2
            pads[axis], pads[dimensions + axis] = (large, small) if automatic == b"SAME_LOWER" else (small, large)
    if dimensions == 1:
        x, weight = x.unsqueeze(2), weight.unsqueeze(2)
        steps, distances, pads = [1, *steps], [1, *distances], [0, pads[0], 0, pads[1]]
    if dimensions == 3:
        sides = tuple(pads[axis + end] for axis in range(3) for end in (0, 3))
        return [hipconv.conv3d(x, weight, bias, tuple(steps), sides, tuple(distances), told.get("group", 1))]
    top, left, bottom, right = pads
    out = hipconv.conv2d(x, weight, bias, tuple(steps), (top, bottom, left, right), tuple(distances), told.get("group", 1))
    return [out.squeeze(2) if dimensions == 1 else out]


def causal_conv_with_state(case: OnnxCase, device: torch.device) -> list[Tensor]:
    """CausalConvWithState, by `hipconv.causal_conv1d_fn`, whose states have the same columns."""
    x, weight, bias, state = ([None if each is None else each.to(device) for each in case.inputs] + [None, None])[:4]
    assert x is not None and weight is not None
    activation = case.attributes.get("activation", b"none").decode()
    out, after = hipconv.causal_conv1d_fn(
        x,
        weight.squeeze(1),
        bias,
        initial_states=state,
        return_final_states=True,
        activation=None if activation == "none" else activation,
    )
    return [out, after]


OPERATORS = {"Conv": conv, "CausalConvWithState": causal_conv_with_state}
