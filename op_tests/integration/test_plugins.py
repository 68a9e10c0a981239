"""hipconv in inference engines, by its entry points: every holder of their functions, in every order of imports, and what calls
compute.

Each engine is stood in for by modules made of facts (engine_facts.py), which a run can afford: where its functions are
defined, with which signatures, and which modules import them under which names. `run_engine_plugins.py` uses the engines
themselves.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import textwrap
from typing import Any

import pytest

from integration.engine_facts import FACTS, of_module
from support import ROOT
from support.zygote import Forked

ENGINES: dict[str, dict[str, Any]] = json.loads(FACTS.read_text())
SINGLE = "fused_reshape_causal_conv1d_update_single_token"
AITER = "aiter.ops.triton.causal_conv1d_update_single_token"
AITERS = (
    "x, num_actual_tokens, num_k_heads, num_v_heads, head_k_dim, head_v_dim, ba, z_out, core_attn_out, conv_state, weight, "
    "bias=None, activation=None, conv_state_indices=None, num_accepted_tokens=None, query_start_loc=None, max_query_len=-1, "
    "pad_slot_id=-1, "
    "block_idx_last_scheduled_token=None, initial_state_idx=None, validate_data=False, qkvz_layout='interleaved'"
)
OPS = "vllm.model_executor.layers.mamba.ops.causal_conv1d"
TRITON = "sglang.kernels.ops.mamba.causal_conv1d_triton"
FACADE = "sglang.srt.layers.attention.mamba.causal_conv1d"
OURS = {"vllm": [OPS], "sglang": [TRITON, FACADE]}


def write_module(root: Path, name: str, text: str) -> None:
    place = root
    for part in name.split(".")[:-1]:
        place /= part
        place.mkdir(exist_ok=True)
        (place / "__init__.py").touch()
    package = place / name.rpartition(".")[2]
    (package / "__init__.py" if package.is_dir() else package.with_suffix(".py")).write_text(text)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both engines, and AITER, as modules whose functions return the name of the engine's function and what it was given."""
    root = tmp_path_factory.mktemp("engines")
    modules = {name: module for engine in ENGINES.values() for name, module in engine["modules"].items()}
    modules[AITER] = {"defines": {SINGLE: AITERS}, "imports": []}
    for name in sorted(modules, key=lambda name: -name.count(".")):  # a package after what it holds
        lines = [
            f"from {one['from']} import {one['name']} as {one['as']}"
            for one in modules[name]["imports"]
            if one["at"] == "import"
        ]
        for function, signature in modules[name]["defines"].items():
            lines += [f"def {function}({signature}):", f"    return '{name}.{function}', dict(locals())"]
        write_module(root, name, "\n".join(lines) + "\n")
    return root


def run(stand_ins: Path, script: str, *before: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HIPCONV_PLUGINS")}
    path = os.pathsep.join(map(str, (*before, stand_ins, ROOT / "python")))
    process = Forked(textwrap.dedent(script), kept | {"PYTHONPATH": path} | variables)
    output, errors = process.communicate(300)
    assert process.returncode == 0, f"{output}{errors}"
    return f"{output}{errors}"


def holders(engine: str) -> list[tuple[str, str]]:
    """Each module and name of an engine that must be hipconv's."""
    modules = ENGINES[engine]["modules"]
    defined = [(name, function) for name in OURS[engine] for function in modules[name]["defines"]]
    found, size = list(defined), 0
    while size != len(found):  # those who import from one who imports, too
        size = len(found)
        for name, module in modules.items():
            for one in module["imports"]:
                if one["at"] == "import" and (one["from"], one["name"]) in found and (name, one["as"]) not in found:
                    found.append((name, one["as"]))
    return found


CHECK = """
import importlib, json, sys
from importlib.metadata import entry_points
from hipconv.plugins import {engine}
holders = json.loads('''{holders}''')
modules = list(dict.fromkeys(module for module, _ in holders))
def load(names):
    for name in names:
        importlib.import_module(name)
def state():
    return [hasattr(vars(sys.modules[module])[name], "__hipconv_in_place_of__") for module, name in holders]
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_every_module_that_holds_a_function_by_name_gets_ours(stand_ins: Path, engine: str) -> None:
    """Imported before, after, or half of them before; and a second registration changes nothing."""
    assert len(holders(engine)) >= 12
    check = CHECK.format(engine=engine, holders=json.dumps(holders(engine)))
    for number in ("len(modules)", "0", "len(modules) // 2"):
        run(stand_ins, f"{check}\nload(modules[:{number}])\n{engine}.register()\nload(modules)\nassert all(state()), state()\n"
                       f"before = [vars(sys.modules[m])[n] for m, n in holders]\n{engine}.register()\n"
                       "assert all(vars(sys.modules[m])[n] is f for (m, n), f in zip(holders, before))\n")  # fmt: skip
    run(stand_ins, f"{check}\n{engine}.register()\nload(reversed(modules))\nassert all(state()), state()")


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_of_an_engine_is_imported_for_it(stand_ins: Path, engine: str) -> None:
    run(
        stand_ins,
        f"import sys\nfrom hipconv.plugins import {engine}\n{engine}.register()\n"
        f"assert not [name for name in sys.modules if name.split('.')[0] in ('vllm', 'sglang', 'aiter')]",
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_the_switch(stand_ins: Path, engine: str) -> None:
    check = CHECK.format(engine=engine, holders=json.dumps(holders(engine)))
    run(stand_ins, f"{check}\n{engine}.register()\nload(modules)\nassert not any(state())", HIPCONV_PLUGINS="0")
    script = f"{check}\ntry:\n    {engine}.register()\nexcept ValueError as error:\n    print(error)"
    assert "HIPCONV_PLUGINS: got 'off', expected 0, 1 or all" in run(stand_ins, script, HIPCONV_PLUGINS="off")


def test_aiters_fused_function_is_ours_only_where_that_is_asked_for(stand_ins: Path) -> None:
    script = f"""
        import torch
        import vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn as qwen
        from hipconv.plugins import vllm as plugin
        plugin.register()
        held = qwen.gdn_aiter_{SINGLE}
        x, ba, z, core = torch.randn(2, 24), torch.randn(2, 2), torch.ones(2, 1, 8), torch.ones(2, 1, 8)
        state, weight = torch.zeros(3, 16, 3), torch.ones(16, 4)
        found = held(x, 2, 1, 1, 4, 8, ba, z, core, state, weight, None, "silu", conv_state_indices=torch.tensor([1, 2]),
                     validate_data=True, qkvz_layout="flat")
        print("aiter" if isinstance(found[0], str) else tuple(found[0].shape))
    """
    assert run(stand_ins, script).strip() == "aiter"
    assert run(stand_ins, script, HIPCONV_PLUGINS="all").strip() == "(2, 16)"


def test_what_vllms_callers_pass_is_computed_as_theirs(stand_ins: Path) -> None:
    """Prefill and decode as its layers call them: by position and by name, in place without `out`, values never checked."""
    run(
        stand_ins,
        f"""
        import torch
        from hipconv.plugins import vllm as plugin
        from hipconv import reference, reference_update
        plugin.register()
        import {OPS} as ops
        torch.manual_seed(0)
        weight, bias = torch.randn(8, 4), torch.randn(8)
        x, pool = torch.randn(9, 8), torch.randn(5, 3, 8).mT
        starts, slots = torch.tensor([0, 5, 9], dtype=torch.int32), torch.tensor([2, 4], dtype=torch.int32)
        has = torch.tensor([True, False])
        expected, state = reference.causal_conv1d_varlen(x.T, weight, bias, pool.clone(), starts, slots, has, True)[:2]
        out = ops.causal_conv1d_fn(x.T, weight, bias, activation="silu", conv_states=pool, has_initial_state=has,
                                   cache_indices=slots,
                                   query_start_loc=starts, metadata=object(), validate_data=True)
        assert torch.allclose(out.double(), expected.double(), atol=1e-5) and torch.equal(pool, state)
        longer, again = torch.tensor([2, 4, 0, 7], dtype=torch.int32), torch.randn(5, 3, 8).mT
        ops.causal_conv1d_fn(x.T, weight, bias, again, starts, longer, torch.tensor([False] * 4), "silu")
        assert torch.equal(again[4], x[6:].T)

        x = torch.randn(3, 8)
        slots = torch.tensor([[3, 1], [0, 1], [1, 0]], dtype=torch.int32)   # 0 is vLLM's null block
        expected = reference_update.causal_conv1d_update(x, pool, weight, bias, True, conv_state_indices=slots, pad_slot_id=0)
        given, kept = x.clone(), pool.clone()
        out = ops.causal_conv1d_update(given, pool, weight, bias, "silu", conv_state_indices=slots, validate_data=True)
        assert out is given and torch.equal(given[1], x[1]) and torch.equal(pool, expected.conv_state)
        assert torch.allclose(given[::2].double(), expected.out[::2], atol=1e-5)
        elsewhere, given = torch.full_like(x, 42), x.clone()
        assert ops.causal_conv1d_update(given, kept, weight, bias, "silu", slots, out=elsewhere) is elsewhere
        assert torch.equal(given, x) and torch.allclose(elsewhere[::2].double(), expected.out[::2], atol=1e-5)
        accepted = torch.tensor([1, 2])
        drafts = ops.causal_conv1d_update(torch.randn(4, 8), torch.zeros(3, 8, 5), weight, bias, "silu",
                                          torch.tensor([1, 2]), accepted,
                                          torch.tensor([0, 2, 4]), 2)
        assert drafts.shape == (4, 8)
        for wrong in (lambda: ops.causal_conv1d_update(x), lambda: ops.causal_conv1d_update(x, pool, weight, x=x),
                      lambda: ops.causal_conv1d_update(*[x] * 20)):
            try:
                wrong()
            except TypeError as error:
                assert "causal_conv1d_update()" in str(error), error
            else:
                raise AssertionError("taken")
    """,
    )


def test_what_sglangs_callers_pass_is_computed_as_theirs_or_left_to_them(stand_ins: Path) -> None:
    run(
        stand_ins,
        f"""
        import torch
        from hipconv.plugins import sglang as plugin
        from hipconv import reference, reference_update
        plugin.register()
        import {TRITON} as triton
        import {FACADE} as facade
        torch.manual_seed(0)
        weight, bias = torch.randn(8, 4), torch.randn(8)
        x, pool = torch.randn(9, 8), torch.randn(5, 8, 3)
        starts, slots, has = torch.tensor([0, 5, 9]), torch.tensor([2, 4]), torch.tensor([True, False])
        expected, state = reference.causal_conv1d_varlen(x.T, weight, bias, pool.clone(), starts, slots, has, True)[:2]
        one, other = pool.clone(), pool.clone()
        out = triton.causal_conv1d_fn(x.T, weight, bias, one, starts, [5, 4], slots, has)
        again = facade.causal_conv1d_fn(x.T, weight, bias, query_start_loc=starts, cache_indices=slots, has_initial_state=has,
                                        conv_states=other, seq_lens_cpu=[5, 4])
        assert torch.allclose(out.double(), expected.double(), atol=1e-5) and torch.equal(out, again)
        assert torch.equal(one, state) and torch.equal(other, state)
        more = dict(cache_indices=torch.tensor([2, 4, 0]), has_initial_state=torch.tensor([True, False, True]))
        kept = pool.clone()
        again = triton.causal_conv1d_fn(x.T, weight, bias, kept, starts, [5, 4], **more)
        assert torch.equal(out, again) and torch.equal(kept, state)

        call = dict(conv_states=pool, query_start_loc=starts, cache_indices=slots, has_initial_state=has, seq_lens_cpu=None)
        theirs = triton.causal_conv1d_fn(x.T, weight, bias, block_table=torch.zeros(1), **call)
        assert theirs[0] == "{TRITON}.causal_conv1d_fn" and theirs[1]["block_table"] is not None
        dense = facade.causal_conv1d_fn(torch.randn(2, 8, 5), weight, bias)
        assert dense[0] == "{FACADE}.causal_conv1d_fn"
        assert triton.causal_conv1d_fn(x.T, weight, bias, something_new=1, **call)[0] == "{TRITON}.causal_conv1d_fn"

        x, slots = torch.randn(2, 8, 3), torch.tensor([3, -1])
        windows = torch.zeros(2, 3, 8, 3)
        expected = reference_update.causal_conv1d_update(x, pool, weight, bias, True, conv_state_indices=slots,
                                                         intermediate_conv_window=windows,
                                                         intermediate_state_indices=torch.tensor([1, 0]))
        out = triton.causal_conv1d_update(x, pool, weight, bias, "silu", conv_state_indices=slots,
                                          intermediate_conv_window=windows,
                                          intermediate_state_indices=torch.tensor([1, 0]))
        assert torch.allclose(out.double(), expected.out, atol=1e-5) and torch.equal(pool, expected.conv_state)
        assert torch.equal(windows, expected.intermediate_conv_window)
        speculative = torch.zeros(5, 8, 5)
        accepted = torch.tensor([2, 1])
        expected = reference_update.causal_conv1d_update(x, speculative, weight, bias, True, conv_state_indices=slots,
                                                         num_accepted_tokens=accepted)
        triton.causal_conv1d_update(x, speculative, weight, bias, "silu", None, slots, accepted)
        assert torch.equal(speculative, expected.conv_state)
        circular = triton.causal_conv1d_update(x, pool, weight, bias, "silu", torch.tensor([0, 1]), slots)
        assert circular[0] == "{TRITON}.causal_conv1d_update"
    """,
    )


def test_what_cannot_be_replaced_stays_and_is_named(stand_ins: Path, tmp_path: Path) -> None:
    """An argument that is not known, another platform's function, and one that is no function."""
    script = f"""
        import logging
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        from hipconv.plugins import vllm as plugin
        plugin.register()
        import {OPS} as ops
        print(ops.causal_conv1d_fn(1), ops.causal_conv1d_update(1))
    """
    for number, (text, words) in enumerate(
        {
            "def causal_conv1d_fn(x, novel=1):\n    return 'theirs'\ncausal_conv1d_update = causal_conv1d_fn": (
                "causal_conv1d_fn stays the engine's own: it takes novel, which this version of hipconv does not know"
            ),
            "import functools\ncausal_conv1d_fn = functools.partial(str)\ncausal_conv1d_update = str": (
                "it is partial, not a plain function"
            ),
            f"from {OPS.replace('.ops.', '.ops.cpu.')} import f\ncausal_conv1d_fn = causal_conv1d_update = f": (
                "for another platform"
            ),
        }.items()
    ):
        place = tmp_path / str(number)
        place.mkdir()
        write_module(place, OPS.replace(".ops.", ".ops.cpu."), "def f(x):\n    return 'theirs'")
        write_module(place, OPS, text)
        output = run(stand_ins, script, place)
        assert words in output and ("theirs" in output or "1 1" in output)


def test_the_facts_are_read_as_pythons_parser_reads_them() -> None:
    text = """
from ..ops.causal_conv1d import causal_conv1d_fn, other as causal
if True:
    from a.b import causal_conv1d_update as update
def late():
    from a.b import causal_conv1d_fn
def causal_conv1d_fn(x: T, w: T | None = None, pad: int = PAD_SLOT_ID, *, out=None, **kwargs) -> T: ...
"""
    found = of_module("e/layers/mixer.py", text)
    assert found is not None and found["defines"] == {"causal_conv1d_fn": "x, w=None, pad=-1, *, out=None, **kwargs"}
    assert {(one["from"], one["as"], one["at"]) for one in found["imports"]} == {
        ("e.ops.causal_conv1d", "causal_conv1d_fn", "import"), ("a.b", "update", "import"), ("a.b", "causal_conv1d_fn", "call"),
    }  # fmt: skip
    assert of_module("e/x.py", "import causal_conv1d") is None
