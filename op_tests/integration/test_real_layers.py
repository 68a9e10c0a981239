"""Hugging Face transformers' own model code, unmodified, on hipconv: every family that uses causal_conv1d, tiny and random.

transformers looks a function up when a model's module is imported and keeps what it finds, else its own one in torch; neither
needs a GPU. So `hipconv.install_as_causal_conv1d()` comes first (or the distribution in compat/, where it is installed), and a
family's torch path is what its functions wrap. Only LFM3, whose width the original does not serve, never looks; there the names
are rebound.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
from pathlib import Path
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from peers import models
from support import ROOT
from support.backends import environment
from support.observe import Calls
import hipconv

transformers: Any = pytest.importorskip(
    "transformers", reason="transformers is not installed (pip install -r requirements-dev.txt)"
)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
NAMES = ("causal_conv1d_fn", "causal_conv1d_update")
LAYERS = ["linear_attention", "full_attention"]

COMMON: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SSD = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_chunk_size": 8}
EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip
DELTA = {
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": LAYERS,
}
KIMI = {
    "linear_head_dim": 8,
    "linear_num_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
    "layer_types": LAYERS,
    "mlp_layer_types": ["dense", "sparse"],
}

# By the folder of transformers/models: the name of the configuration, and what it needs beyond COMMON.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bailing_hybrid": ("bailing_hybrid", KIMI | EXPERTS),
    "bamba": ("bamba", SSD | {"attn_layer_indices": [1]}),
    "falcon_h1": ("falcon_h1", SSD | {"mamba_d_ssm": 64}),
    "falcon_mamba": ("falcon_mamba", {"state_size": 8}),
    "glm5_next": ("glm5_next_text", KIMI | EXPERTS | {"qk_rope_head_dim": 0, "head_dim": 0}),
    "granitemoehybrid": (
        "granitemoehybrid",
        SSD | EXPERTS | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 32},
    ),
    "inkling": ("inkling_text", EXPERTS),
    "inkling2": ("inkling2_text", EXPERTS),
    "jamba": ("jamba", {"mamba_d_state": 8, "num_experts": 4, "attn_layer_period": 2, "attn_layer_offset": 1}),
    "kimi_linear": ("kimi_linear", KIMI | EXPERTS),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": ("lfm2_moe", EXPERTS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}),
    "lfm3": ("lfm3", {"layer_types": ["conv", "full_attention"]}),
    "mamba": ("mamba", {"state_size": 8}),
    "mamba2": ("mamba2", {"num_heads": 4, "head_dim": 16, "n_groups": 2, "state_size": 16, "chunk_size": 8}),
    "nemotron_h": (
        "nemotron_h",
        {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 8}
        | {"layers_block_type": ["mamba", "attention"]},
    ),
    "olmo_hybrid": ("olmo_hybrid", DELTA),
    "qwen3_5": ("qwen3_5_text", DELTA),
    "qwen3_5_moe": ("qwen3_5_moe_text", DELTA | EXPERTS),
    "qwen3_next": ("qwen3_next", DELTA | EXPERTS),
    "qwen4_exp": (
        "qwen4_exp_text",
        DELTA
        | EXPERTS
        | {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8}
        | {"indexer_budget": 64, "indexer_compress_ratio": 4},
    ),
    "zamba": (
        "zamba",
        {"mamba_d_state": 8, "attention_head_dim": None, "num_key_value_heads": 4, "num_hidden_layers": 3}
        | {"layers_block_type": ["mamba", "hybrid", "hybrid"]},
    ),
    "zamba2": (
        "zamba2",
        {"mamba_d_state": 16, "n_mamba_heads": 4, "chunk_size": 8, "num_key_value_heads": 4}
        | {"layers_block_type": ["mamba", "hybrid"]},
    ),
}


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """hipconv in the place of causal_conv1d before any model is imported: as a distribution if that is here,
    else for this process.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        if importlib.metadata.version("causal-conv1d").endswith("+hipconv"):
            return
    hipconv.install_as_causal_conv1d()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Layers this small take ten times longer on two threads of a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def model_of(family: str, device: str) -> Any:
    kind, settings = FAMILIES[family]
    config = transformers.AutoConfig.for_model(kind, **COMMON | settings)
    torch.manual_seed(0)
    with_head = type(config) in transformers.AutoModelForCausalLM._model_mapping
    model = (transformers.AutoModelForCausalLM if with_head else transformers.AutoModel).from_config(config).to(device)
    for parameter in model.parameters():  # far from the initial values, whose layers hardly change anything
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def module_of(family: str) -> Any:
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


@contextlib.contextmanager
def functions(family: str, hipconv_s: bool) -> Iterator[None]:
    """A family's two functions: hipconv's, which it found on import, or its own in torch."""
    module = module_of(family)
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            function = getattr(module, name)
            if not hipconv_s:
                patch.setattr(module, name, getattr(function, "__wrapped__", function))
            elif family == "lfm3":
                patch.setattr(module, name, getattr(importlib.import_module("causal_conv1d"), name))
        yield


def close(found: Tensor, expected: Tensor) -> bool:
    """float32 through a few layers: within 2e-5 of the largest value."""
    return found.shape == expected.shape and bool((found - expected).abs().max() <= 2e-5 * expected.abs().max() + 1e-9)


def train(model: Any, tokens: Tensor) -> dict[str, Tensor]:
    """Logits (hidden states of a model without a head), and the gradient of each parameter."""
    model.train()
    model.zero_grad()
    out = model(tokens)[0]
    probe = torch.linspace(-1, 1, out.shape[-1], device=out.device)
    (out.float().tanh() * probe).mean().backward()
    return {"logits": out.detach()} | {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@torch.no_grad()
def decode(model: Any, tokens: Tensor) -> list[Tensor]:
    """Prefill, then six tokens one by one: by `generate`, or through the cache where a model has no head."""
    model.eval()
    if hasattr(model, "generate") and model.get_output_embeddings() is not None:
        options = {
            "max_new_tokens": 6,
            "min_new_tokens": 6,
            "do_sample": False,
            "output_logits": True,
            "return_dict_in_generate": True,
        }
        done = model.generate(tokens, **options)
        return [done.sequences.float(), *done.logits]
    out, cache = [], None
    for piece in (tokens, *tokens[:, :6].split(1, dim=1)):
        step = model(piece, past_key_values=cache, use_cache=True)
        cache = step.past_key_values
        out.append(step[0][:, -1])
    return out


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return request.param


@pytest.fixture
def tokens(device: str) -> Tensor:
    return torch.randint(3, 64, (2, 13), generator=torch.Generator().manual_seed(1)).to(device)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_gradients_and_generation_equal_the_torch_path(family: str, device: str, tokens: Tensor) -> None:
    model = model_of(family, device)
    with functions(family, hipconv_s=False), Calls() as torch_s:
        expected, expected_steps = train(model, tokens), decode(model, tokens)
    with functions(family, hipconv_s=True):
        found, found_steps = train(model, tokens), decode(model, tokens)
        with Calls() as ours:
            train(model, tokens)
        with Calls() as ours_decoding:
            decode(model, tokens)

    assert found.keys() == expected.keys()
    wrong = [name for name in expected if not close(found[name], expected[name])]
    assert not wrong, f"{family}: {wrong}"
    assert all(close(a, b) for a, b in zip(found_steps, expected_steps, strict=True)), f"{family}: decode"

    # Every convolution of the torch path is one of hipconv's, and in each of the steps one of update's.
    assert not any(name.startswith("hipconv::") for name in torch_s.count)
    layers = ours.count["hipconv::causal_conv1d_fn"]
    assert layers > 0 and ours.count["hipconv::causal_conv1d_bwd"] == layers
    assert any(expected[name].abs().max() > 0 for name in expected if "conv" in name)
    updates = ours_decoding.count["hipconv::causal_conv1d_update"]
    assert updates > 0 and updates % layers == 0
    rest = (ours.count + ours_decoding.count)["aten::convolution"]
    by_hipconv = layers + ours_decoding.count["hipconv::causal_conv1d_fn"] + updates
    assert torch_s.count["aten::convolution"] == by_hipconv + rest and rest == 0


@pytest.mark.parametrize("family", ["lfm2", "lfm2_moe"])
def test_packed_sequences_stay_apart(family: str, device: str, tokens: Tensor) -> None:
    """Families whose only recurrence is the convolution: the torch path refuses seq_idx, hipconv serves it."""
    model, row = model_of(family, device).eval(), tokens[:1]
    lengths = [5, 1, 7]
    positions = torch.cat([torch.arange(length) for length in lengths])[None].to(device)
    ids = torch.repeat_interleave(torch.arange(3, dtype=torch.int32), torch.tensor(lengths))[None].to(device)
    with torch.no_grad(), functions(family, hipconv_s=True):
        packed = model(row, position_ids=positions, seq_idx=ids, use_cache=False).logits
        apart = torch.cat([model(piece).logits for piece in row.split(lengths, dim=1)], dim=1)
    assert close(packed, apart)


def test_the_bench_of_layers_compares_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main(["--small"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 3 * 3 and all(line.endswith("ok") for line in lines[1:])


def test_no_family_is_missing() -> None:
    models = Path(transformers.__file__).parent / "models"
    users = {file.parent.name for file in models.glob("*/modeling_*.py") if "causal_conv1d_fn(" in file.read_text()}
    assert users == FAMILIES.keys()


def test_through_the_installed_distribution(tmp_path: Path) -> None:
    """hipconv and compat/causal_conv1d by pip, and this file again in another process."""
    skipped = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, tmp_path / "checkout", ignore=skipped)  # a build leaves its traces beside the sources
    site, tests = tmp_path / "site", tmp_path / "checkout" / "op_tests"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--target",
        str(site),
    ]
    subprocess.run([*pip, str(tmp_path / "checkout"), str(tmp_path / "checkout/compat/causal_conv1d")], check=True)
    shutil.rmtree(tmp_path / "checkout" / "python")
    with environment(PYTHONPATH=str(site)):
        script = "import causal_conv1d; print(causal_conv1d.__version__, causal_conv1d.__file__)"
        version, place = subprocess.check_output([sys.executable, "-c", script], cwd=tmp_path, text=True).split()
        assert version.endswith("+hipconv") and Path(place).is_relative_to(site)
        chosen = "equal_the_torch_path and (mamba2 or qwen3_next)"
        pytest_ = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(tests / "integration" / "test_real_layers.py"),
            "-k",
            chosen,
        ]
        done = subprocess.run(pytest_, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr
