"""Classify an image by one of timm's models, before and after `hipconv.replace_conv2d` with batch norms folded.

The model has random weights, or those of --pretrained (which timm fetches) or of --checkpoint; the image is drawn, or read from
--image. The five likeliest classes of both stand side by side; then come the largest difference of logits, times and, on a GPU,
peak memory.

    python examples/classify.py --size 64
    python examples/classify.py --model convnext_tiny --pretrained --image cat.jpg --batch 32 --device cuda
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "python"))  # found last: an installed hipconv goes first

from images import measured, read_image, told  # noqa: E402

import hipconv  # noqa: E402

LIKELIEST = 5  # classes that are shown
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "input_size": (3, 224, 224)}


def drawn(size: int) -> Tensor:
    """An image (3, size, size) from 0 to 1: rings on a slope of colours."""
    rows, columns = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    rings = 0.5 + 0.5 * torch.cos(12 * (rows.square() + columns.square()).sqrt())
    return torch.stack([rings, (rows + 1) / 2, (columns + 1) / 2])


def cropped(image: Tensor, size: int) -> Tensor:
    """The square in the middle of an image (3, height, width), as (3, size, size)."""
    side = min(image.shape[1:])
    top, left = ((length - side) // 2 for length in image.shape[1:])
    square = image[None, :, top : top + side, left : left + side]
    return F.interpolate(square, size=(size, size), mode="bicubic", antialias=True)[0].clamp(0, 1)


def timm_of() -> ModuleType:
    """timm; SystemExit where it is not installed."""
    needs = f"examples/classify.py needs timm, and torchvision as this torch ({torch.__version__}) has it"
    try:
        import timm
    except ImportError as error:
        sys.exit(f"{needs}: {error}; `pip install timm` installs both")
    except RuntimeError as error:  # torchvision of another torch
        sys.exit(f"{needs}, and they cannot be imported: {error}; https://pytorch.org has the torchvision of each torch")
    return timm


def made(timm: ModuleType, name: str, pretrained: bool, checkpoint: Path | None) -> nn.Module:
    """The model in eval mode. Batch norms of random weights get statistics and scales at random, so that they do something."""
    model = timm.create_model(name, pretrained=pretrained, checkpoint_path=str(checkpoint or ""))
    for layer in model.modules() if not (pretrained or checkpoint) else ():
        if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None and layer.running_var is not None:
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 1.5)
            if layer.affine:
                nn.init.uniform_(layer.weight, 0.5, 1.5)
    return model.eval().requires_grad_(False)


def names_of(timm: ModuleType, classes: int) -> Callable[[int], str]:
    """The description of a class where a model of so many classes has ImageNet's, else its number."""
    if classes != 1000:
        return "class {}".format
    described = timm.data.ImageNetInfo().index_to_description
    return lambda index: described(index).partition(",")[0]


def side_by_side(logits: Sequence[Tensor], name_of: Callable[[int], str]) -> str:
    """A line for each of the likeliest classes by torch's logits and by hipconv's, each (classes,)."""
    columns = []
    for title, of_way in zip(("torch", "hipconv"), logits, strict=True):
        likeliest = of_way.float().softmax(0).topk(min(LIKELIEST, len(of_way)))
        lines = [f"{p:6.1%}  {name_of(index)}" for p, index in zip(*map(Tensor.tolist, likeliest), strict=True)]
        columns.append([title, *lines])
    width = max(map(len, columns[0]))
    return "\n".join(f"{left.ljust(width)}   {right}" for left, right in zip(*columns, strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="a name of timm's, such as convnext_tiny")
    parser.add_argument("--pretrained", action="store_true", help="with the weights that timm fetches; random ones without")
    parser.add_argument("--checkpoint", type=Path, help="a file of weights for the model")
    parser.add_argument("--image", type=Path, help="any file that Pillow reads; a drawn image without")
    parser.add_argument("--size", type=int, help="rows and columns that the model gets; by default those of its training")
    parser.add_argument("--batch", type=int, default=1, help="copies of the image")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3, help="the fastest of so many runs counts")
    options = parser.parse_args(arguments)
    for name, file in (("--checkpoint", options.checkpoint), ("--image", options.image)):
        if file and not file.is_file():
            parser.error(f"{name}: got {file}, expected a file")
    for name in ("size", "batch", "rounds"):
        if (given := getattr(options, name)) is not None and given < 1:
            parser.error(f"--{name}: got {given}, expected at least 1")
    timm = timm_of()

    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = made(timm, options.model, options.pretrained, options.checkpoint)
    config: dict[str, Any] = IMAGENET | (getattr(model, "pretrained_cfg", None) or {})
    size = options.size or config["input_size"][-1]
    image = cropped(read_image(options.image), size) if options.image else drawn(size)
    mean, std = (torch.tensor(config[name])[:, None, None] for name in ("mean", "std"))
    x = ((image - mean) / std).expand(options.batch, -1, -1, -1).to(device, dtype, memory_format=torch.channels_last)
    model = model.to(device, dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch at its best

    before, torch_ms, torch_memory = measured(lambda: model(x), device, options.rounds)
    replacement = hipconv.replace_conv2d(model, fold_batchnorm=True)
    after, ms, memory = measured(lambda: model(x), device, options.rounds)
    taken_in = sum(len(layer.taken_in) for layer in replacement.layers)
    of_all = f"{replacement.replaced} of {len(replacement.layers)}"
    print(f"{options.model}: {of_all} convolutions are replaced, and take in {taken_in} layers that follow them")
    print(told("torch  ", torch_ms, torch_memory))
    print(told("hipconv", ms, memory) + f", {torch_ms / ms:.2f} times as fast")
    print(side_by_side((before[0], after[0]), names_of(timm, before.shape[1])))
    error = ((after.float() - before.float()).abs().max() / before.float().abs().max().clamp_min(1e-6)).item()
    print(f"the logits differ by at most {error:.1e} of the largest one")


if __name__ == "__main__":
    main()
