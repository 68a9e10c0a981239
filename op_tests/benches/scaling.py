"""A model of how long a convolution takes on N devices, from bandwidths and latencies in docs/data/scaling.json, which says
which of them were measured.

With the figures of another machine in that file's place, docs/distributed.md's picture is of that machine.
"""

from __future__ import annotations

DEVICES = (1, 2, 4, 8, 16, 32, 64)
Curve = list[tuple[int, float]]


def exchange_seconds(inputs: dict, devices: int, sent: float) -> float:
    """An all_to_all_single in which each device sends `sent` bytes to its neighbours."""
    if devices == 1:
        return 0.0
    where = "in_host" if devices <= inputs["devices_of_a_host"] else "between_hosts"
    return inputs[f"latency_{where}"] + sent / inputs[f"link_bandwidth_{where}"]


def conv1d_seconds(inputs: dict, devices: int, tokens: int) -> float:
    """The forward: the interior, beside it the exchange and the head, a copy of whose row is made, then the head's way to its
    place.
    """
    what, bandwidth = inputs["conv1d"], inputs["copy_bandwidth"]
    token = what["dim"] * inputs["element"]
    interior = inputs["launch"] + 2 * token * tokens / devices / bandwidth
    if devices == 1:
        return interior
    exchange = exchange_seconds(inputs, devices, (what["width"] - 1) * token)
    head = 3 * inputs["launch"] + 4 * token * what["head"] / bandwidth
    return max(interior, exchange + head) + inputs["launch"] + 2 * token * what["head"] / bandwidth


def conv2d_seconds(inputs: dict, devices: int, channels: int, height: int, width: int) -> float:
    """The forward: the interior beside the exchange, then a row of outputs at each border; of a small part the exchange, a copy
    of what is there and what came, and the convolution.
    """
    what = inputs["conv2d"]
    taps, row = what["kernel"], channels * width * inputs["element"]
    flops_of_row = 2 * taps**2 * channels**2 * width
    launch, rate = inputs["launch"], inputs["matrix_rate"]
    convolution = launch + flops_of_row * height / devices / rate
    if devices == 1:
        return convolution
    exchange = exchange_seconds(inputs, devices, (taps - 1) * row)
    if row * height / devices < what["overlapped_from"]:
        return exchange + launch + 2 * row * (height / devices + taps - 1) / inputs["copy_bandwidth"] + convolution
    border = launch + max(flops_of_row / rate, taps**2 * channels / 64 * what["step"])
    return max(convolution - (taps - 1) * flops_of_row / rate, exchange) + (taps - 1) * border


def conv1d_curves(inputs: dict) -> dict[str, Curve]:
    alone = {tokens: conv1d_seconds(inputs, 1, tokens) for tokens in inputs["conv1d"]["tokens"]}
    return {
        f"{tokens:,} tokens": [(n, one / conv1d_seconds(inputs, n, tokens)) for n in DEVICES] for tokens, one in alone.items()
    }


def conv2d_curves(inputs: dict) -> dict[str, Curve]:
    curves = {}
    for channels, height, width in inputs["conv2d"]["layers"]:
        one = conv2d_seconds(inputs, 1, channels, height, width)
        points = [(n, one / conv2d_seconds(inputs, n, channels, height, width)) for n in DEVICES]
        curves[f"{channels} channels, {height} x {width}"] = points
    return curves
