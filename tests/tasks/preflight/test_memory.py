"""The memory planner: its arithmetic, and its plans against the peaks of real stage processes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace

import hybrid_toys
import pytest
import torch
import toys
import yaml

from benchmarks import sides
from pipelines.engine import decoding_weights
from pipelines.engine.cache import SlabCache
from pipelines.engine.guided import cache_argument
from pipelines.recipe.read import read_recipe
from tasks import machine
from tasks.preflight import levers, memory

SHAPE = memory.Shape(10**6, layers=2, hidden=32, intermediate=64, heads=4, key_heads=2, head_size=8, vocabulary=1000)


HERE = memory.Device(avx512=machine.cpu_flags() >= memory.AVX512)


def planned(tmp_path, stage, *overrides, prompt_tokens=16, device=memory.CPU):
    node = read_recipe(toys.recipe(tmp_path), list(overrides)).node(stage)
    return memory.of_stage(node, SHAPE, prompt_tokens=prompt_tokens, device=device)


def test_full_fine_tuning(tmp_path):
    needs = planned(tmp_path, "sft")
    assert (needs.weights, needs.gradients, needs.optimizer, needs.commit) == (
        4 * 10**6,
        4 * 10**6,
        8 * 10**6,
        12 * 10**6,
    )
    assert needs.logits == 512 * 1000 * 4 + 4 * 1000 * 32 and needs.cache == 0
    assert needs.activations == 512 * 2 * 4 * (8 * 32 + 6 * 32 + 4 * 64 + 64)
    assert needs.peak == needs.process + max(needs.phases.values())


def test_a_base_in_four_bits(tmp_path):
    """2305.14314 says 0.127 bits a weight for the scales, which are quantised too."""
    lora = ("sft.lora={rank: 4, load_in_4bit: true}", "rlvr.lora={rank: 4, load_in_4bit: true}")
    assert pytest.approx(0.127, abs=1e-3) == (8 * memory.FOUR_BITS - 4)
    for stage in ("sft", "rlvr"):
        plain, needs = planned(tmp_path, stage, f"{stage}.lora=4"), planned(tmp_path, stage, *lora)
        ends = 2 * 1000 * 32
        assert plain.weights - needs.weights == pytest.approx((10**6 - ends) * (4 - memory.FOUR_BITS), abs=1)
        assert (needs.gradients, needs.optimizer, needs.commit) == (plain.gradients, plain.optimizer, plain.commit)
    packing = memory.Device(avx512=True)
    assert planned(tmp_path, "rlvr", *lora, "rlvr.sampling.max_tokens=40", device=packing).packed == 0


@pytest.mark.parametrize("family", hybrid_toys.FAMILIES)
def test_a_recurrent_state_is_counted_once_and_does_not_grow(family, tmp_path):
    """What the cache of a real model holds after a text is what the plan says, and longer answers add keys alone."""
    network = hybrid_toys.model(family)
    shape = memory.Shape.of(network.config.get_text_config(), 10**5)
    cache = SlabCache(network)
    with torch.no_grad():
        network(input_ids=torch.arange(3, 15)[None], use_cache=True, **{cache_argument(network): cache})
    held = sum(
        tensor.numel()
        for layer in cache.layers
        for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {}))
        for tensor in states.values()
        if tensor is not None
    )
    keys = sum(getattr(layer, "keys", None) is not None for layer in cache.layers)
    assert held <= shape.state <= 2 * held + 1
    assert shape.key_layers == keys

    def decoded(length):
        node = read_recipe(toys.recipe(tmp_path), [f"rlvr.sampling.max_tokens={length}"]).node("rlvr")
        return memory.of_stage(node, shape, prompt_tokens=16).cache

    assert decoded(108) - decoded(8) == 16 * 100 * keys * 2 * shape.key_heads * shape.head_size * 4
    assert decoded(8) >= 16 * held * 4


def test_weights_stored_in_bfloat16(tmp_path):
    both = ("model.dtype=bfloat16", "model.weights_dtype=bfloat16")
    needs, mixed = planned(tmp_path, "sft", *both), planned(tmp_path, "sft", *both[:1])
    assert (needs.weights, needs.gradients, needs.optimizer, needs.commit) == (
        2 * 10**6,
        2 * 10**6,
        8 * 10**6,
        10 * 10**6,
    )
    assert (mixed.weights, mixed.gradients, mixed.commit) == (6 * 10**6, 4 * 10**6, 12 * 10**6)
    assert mixed.logits - needs.logits == 2 * 1000 * 32 and mixed.activations == needs.activations
    adapters = [planned(tmp_path, "sft", *settings, "sft.lora={rank: 2}") for settings in (both, both[:1])]
    assert adapters[0].weights < adapters[1].weights, "the base is stored in bfloat16 too"
    assert adapters[0].gradients == adapters[1].gradients, "adapters stay float32"
    reference = planned(tmp_path, "rlvr", *both, "rlvr.divergence={kind: k3, weight: 0.1}")
    assert reference.weights == 4 * 10**6
    packed, plain = (planned(tmp_path, "rlvr", *both, device=memory.Device(avx512=avx512)) for avx512 in (True, False))
    assert packed.packed == 2 * 10**6 and plain.packed == 0
    held = {phase: packed.phases[phase] - plain.phases[phase] for phase in packed.phases}
    assert held == dict.fromkeys(packed.phases, 2 * 10**6), "packed matrices stay between steps, where float32 ones go"


def test_decoding(tmp_path):
    needs = planned(tmp_path, "rlvr")
    rows, length = 4 * 4, 16 + 8
    assert needs.cache == rows * length * 2 * 2 * 2 * 8 * 4 + 4 * rows * 1000 * 4
    assert planned(tmp_path, "rlvr", "rlvr.decode_rows=4").cache == needs.cache // 4
    head = 4 * 1000 * 32
    assert planned(tmp_path, "rlvr", "rlvr.sampling.top_p=0.9").logits == 6 * (needs.logits - head) + head
    halved = planned(tmp_path, "rlvr", "rlvr.processes=2")
    assert halved.optimizer == needs.optimizer // 2 and halved.weights > needs.weights
    served = planned(tmp_path, "rlvr", "rlvr.sampler={serve: true}", "rlvr.old_logp=trainer")
    assert served.cache == 0 and served.packed == 0
    beside = ["rlvr.processes=2", "rlvr.sampler={serve: true}", "rlvr.old_logp=trainer"]
    copied, shards = (planned(tmp_path, "rlvr", *beside, f"rlvr.full_copy={copy}") for copy in ("true", "false"))
    assert copied.weights == shards.weights + needs.weights
    reference = planned(tmp_path, "rlvr", "rlvr.divergence={kind: k3, weight: 0.1}")
    assert reference.weights == 2 * needs.weights
    assert planned(tmp_path, "rlvr", "rlvr.staleness=2").weights == 3 * needs.weights, "a copy for each step behind"


def test_sources_count_as_the_largest_of_them(tmp_path):
    own = "rlvr.by_source={a: {group_size: 6}, b: {max_tokens: 12, group_size: 2}}"
    largest = planned(tmp_path, "rlvr", "rlvr.group_size=6", "rlvr.sampling.max_tokens=12")
    assert planned(tmp_path, "rlvr", own).phases == largest.phases


@pytest.mark.parametrize("avx512", [True, False])
def test_packed_weights_of_long_answers(tmp_path, avx512):
    def on(stage, *overrides, gpu=False):
        return planned(tmp_path, stage, *overrides, device=memory.Device(gpu, avx512))

    assert on("rlvr").packed == 0
    long = on("rlvr", "rlvr.sampling.max_tokens=64")
    assert long.packed == (4 * 10**6 if avx512 else 0)
    assert long.phases["decoding"] == long.weights + long.optimizer + long.packed + long.cache
    assert on("rlvr", "rlvr.sampling.max_tokens=64", gpu=True).packed == 0
    assert on("rlvr", "rlvr.sampling.max_tokens=64", "model.dtype=bfloat16").packed == 0
    assert on("sft").packed == 0


def test_graphs_keep_their_buffers_while_the_policy_is_trained(tmp_path):
    def on(gpu, *overrides):
        return planned(tmp_path, "rlvr", *overrides, device=memory.Device(gpu=gpu))

    kept = on(True)
    assert kept.kept == kept.cache > 0 and on(False).kept == on(True, "rlvr.cuda_graphs=false").kept == 0
    assert kept.phases["training"] - on(True, "rlvr.cuda_graphs=false").phases["training"] == kept.kept
    node = read_recipe(toys.recipe(tmp_path)).node("rlvr")
    offered = [name for gpu in (True, False) for name, _ in levers.levers(node, SHAPE, device=memory.Device(gpu=gpu))]
    assert offered.count("rlvr.cuda_graphs=false") == 1


def test_compiled_blocks_keep_the_inputs_of_products_and_the_residuals(tmp_path):
    """2 layers of 32 hidden, 4 heads of 8 and 64 intermediate, two bytes a number and residuals in four."""
    on_gpu = memory.Device(gpu=True)

    def kept(device, *overrides):
        return planned(tmp_path, "sft", "model.dtype=bfloat16", *overrides, device=device).activations

    wide = kept(on_gpu)
    assert kept(memory.CPU, "model.compile=true") == wide == kept(on_gpu, "model.compile=false"), (
        "a small model is not compiled"
    )
    keys = SHAPE.key_heads * SHAPE.head_size
    inputs = 2 * SHAPE.hidden + 2 * SHAPE.heads * SHAPE.head_size + 2 * keys + 3 * SHAPE.intermediate + 64
    assert kept(on_gpu, "model.compile=true") == 512 * SHAPE.layers * (2 * inputs + 8 * SHAPE.hidden) < wide
    checkpointed = "sft.gradient_checkpointing=true"
    assert kept(on_gpu, "model.compile=true", checkpointed) == kept(on_gpu, checkpointed)


@pytest.mark.parametrize("checkpointed", ["false", "true"])
def test_offloaded_activations_are_the_hosts(tmp_path, checkpointed):
    on_gpu = memory.Device(gpu=True)
    more = [f"sft.gradient_checkpointing={checkpointed}", "model.compile=false"]
    plain = planned(tmp_path, "sft", *more, device=on_gpu)
    offload = [*more, "sft.activation_offload=true"]
    needs, here = planned(tmp_path, "sft", *offload, device=on_gpu), planned(tmp_path, "sft", *offload)
    whole = 512 * 4 * (8 * 32 + 6 * 32 + 4 * 64 + 64)
    layer = 512 * 4 * 32 if checkpointed == "true" else whole
    copies = 512 * 4 * 32 * (4 if checkpointed == "true" else 4 + 3 * 2)
    assert needs.offloaded == 2 * layer + copies and plain.offloaded == 0
    assert needs.activations == whole < plain.activations
    assert needs.host - plain.host == needs.offloaded
    held = here.weights + here.optimizer + here.activations + here.logits + here.offloaded
    assert here.phases["training"] == held, "without a GPU both are the machine's"


def test_keys_are_held_in_float32_on_a_cpu(tmp_path):
    sizes = {
        (dtype, gpu): planned(tmp_path, "rlvr", f"model.dtype={dtype}", device=memory.Device(gpu=gpu)).cache
        for dtype in ("float32", "bfloat16")
        for gpu in (False, True)
    }
    drawn = 4 * (4 * 4) * 1000 * 4
    assert sizes["bfloat16", False] == sizes["float32", False] == sizes["float32", True]
    assert 2 * (sizes["bfloat16", True] - drawn) == sizes["float32", True] - drawn


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/cpuinfo")
def test_the_planner_and_the_sampler_agree_on_packing():
    assert HERE.avx512 == decoding_weights.packs(torch.device("cpu"))
    assert memory.PACKED_STEPS == decoding_weights.PACKED_STEPS


PAIRS = {
    "stages": {
        "data": {"kind": "curate", "sources": [{"kind": "file", "path": "pairs.jsonl", "verifier": "exact"}]},
        "dpo": {"kind": "preference", "data": "data", "steps": 1, "pairs_per_step": 4, "max_length": 64},
        "reward": {"kind": "reward_model", "data": "data", "steps": 1, "pairs_per_step": 4, "max_length": 64},
        "drafts": {"kind": "sample", "data": "data", "k": 4, "sampling": {"max_tokens": 8}},
    }
}  # fmt: skip


def of_pairs(folder, stage, prompt_tokens=16, **changes):
    path = folder / "pairs.yaml"
    stages = {name: body | (changes if name == stage else {}) for name, body in PAIRS["stages"].items()}
    path.write_text(yaml.safe_dump({"name": "pairs", "model": {"path": "somewhere"}, "stages": stages}))
    return memory.of_stage(read_recipe(path).node(stage), SHAPE, prompt_tokens=prompt_tokens)


@pytest.mark.parametrize("stage", ["dpo", "reward"])
def test_processes_share_what_pairs_train(tmp_path, stage):
    """Each holds its share of weights, gradients and moments, and of the weights what a pass has in full."""
    alone, shared = (of_pairs(tmp_path, stage, processes=processes) for processes in (1, 4))
    for part in ("gradients", "optimizer", "commit"):
        assert getattr(shared, part) == getattr(alone, part) // 4
    ends, block = 2 * 1000 * 32, (10**6 - 2 * 1000 * 32) // 2
    assert shared.weights == alone.weights // 4 + 4 * ends + 2 * 4 * block
    assert shared.gathered == (4 * 10**6 if stage == "reward" else 0) and alone.gathered == 0
    at_once = of_pairs(tmp_path, stage, processes=4, gradient_sync="update")
    assert at_once.gradients == alone.gradients and at_once.commit == shared.commit
    assert shared.activations == alone.activations


def test_pairs_share_their_prompt(tmp_path):
    needs = of_pairs(tmp_path, "dpo")
    tokens, scored = 4 * (16 + 2 * 48), 4 * 2 * 48
    layer = 8 * 32 + 6 * 32 + 4 * 64 + 16 + 2 * 48
    assert needs.activations == tokens * 2 * 4 * layer and needs.cache == 0
    assert needs.logits == scored * 1000 * 4 + 4 * 1000 * 32 and needs.weights == 4 * 10**6, (
        "no model for the reference"
    )
    assert of_pairs(tmp_path, "dpo", share_prefixes=False).activations > needs.activations
    one_pair = of_pairs(tmp_path, "dpo", micro_batch_tokens=1)
    assert one_pair.activations == needs.activations // 4, "a pair is never cut"
    reward = of_pairs(tmp_path, "reward")
    assert (reward.activations, reward.logits) == (needs.activations, 0)
    text = of_pairs(tmp_path, "reward", loss="grm")
    assert text.logits == needs.logits, "a loss that reads the text makes logits of the answers"
    own = of_pairs(tmp_path, "reward", critique={"source": "own", "sampling": {"max_tokens": 8}}, loss="cloud")
    assert own.cache == 1024 * (64 * 2 * 2 * 2 * 8 * 4 + 4 * 1000 * 4)


def test_sampling_has_no_gradients(tmp_path):
    needs = of_pairs(tmp_path, "drafts", problems=5)
    rows = 5 * 4
    assert (needs.weights, needs.gradients, needs.optimizer, needs.commit) == (4 * 10**6, 0, 0, 0)
    assert needs.cache == rows * 24 * 2 * 2 * 2 * 8 * 4 + 4 * rows * 1000 * 4 + 100 * 2 * rows * 8
    assert needs.activations == 5 * 16 * 4 * 4 * (32 + 64), "a prompt is read once for all of its rows"
    server = {"url": "http://localhost:1", "weights": "w"}
    assert of_pairs(tmp_path, "drafts", problems=5, sampler=server).cache == 100 * 2 * rows * 8
    assert of_pairs(tmp_path, "drafts", problems=5, reference="dpo").weights == 8 * 10**6
    assert of_pairs(tmp_path, "drafts", problems=5, reward_model="reward").weights == 8 * 10**6


def test_settings_that_lower_a_stage_on_pairs_or_samples(tmp_path):
    of_pairs(tmp_path, "dpo")
    recipe = read_recipe(tmp_path / "pairs.yaml")
    names = {
        stage: {name.partition("=")[0] for name, _ in levers.levers(recipe.node(stage), SHAPE)}
        for stage in ("dpo", "reward", "drafts")
    }
    assert names["drafts"] == {"drafts.decode_rows"}
    assert "dpo.lora" in names["dpo"] and "reward.lora" in names["reward"], (
        "their peak is the copy that a commit writes"
    )


def test_settings_that_lower_it(tmp_path):
    recipe = read_recipe(toys.recipe(tmp_path), ["sft.tokens_per_step=4096", "sft.micro_batch_tokens=4096"])
    shape = replace(SHAPE, parameters=2 * 10**6)
    before = memory.of_stage(recipe.node("sft"), shape).peak
    lower = levers.levers(recipe.node("sft"), shape)
    assert [peak for _, peak in lower] == sorted(peak for _, peak in lower)
    assert {name.partition("=")[0] for name, _ in lower} == {
        "sft.lora", "sft.gradient_checkpointing", "sft.micro_batch_tokens",
    }  # fmt: skip
    for name, peak in lower:
        changed = read_recipe(toys.recipe(tmp_path), ["sft.tokens_per_step=4096", "sft.micro_batch_tokens=4096", name])
        assert memory.of_stage(changed.node("sft"), shape).peak == peak < before


def test_the_dtype_of_weights_is_proposed_where_it_is_possible(tmp_path):
    def names(*overrides):
        return [
            name for name, _ in levers.levers(read_recipe(toys.recipe(tmp_path), list(overrides)).node("sft"), SHAPE)
        ]

    proposed = "model.weights_dtype=bfloat16"
    assert proposed in names("model.dtype=bfloat16")
    assert proposed not in names() and proposed not in names("model.dtype=bfloat16", proposed)
    peaks = dict(levers.levers(read_recipe(toys.recipe(tmp_path), ["model.dtype=bfloat16"]).node("rlvr"), SHAPE, 16))
    assert peaks[proposed] == planned(tmp_path, "rlvr", "model.dtype=bfloat16", proposed).peak


# Stages of two steps commit at their end: a commit that is written while the next step computes adds its copy to the peak where
# the disk is slow, as the planner says, and a test's disk may be.
@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """42 M parameters with 32,000 words; prompts of 16 words, answers of 110."""
    folder = tmp_path_factory.mktemp("wide")
    model, _ = sides.wide(folder / "base")
    draw = random.Random(0)

    def words(count):
        return " ".join(f"w{draw.randrange(31_000)}" for _ in range(count))

    rows = []
    for _ in range(200):
        answer = words(110)
        pair = {"chosen": answer, "rejected": words(110), "chosen_score": 1.0, "rejected_score": 0.0}
        rows.append(json.dumps({"prompt": words(16), "answer": answer, **pair}))
    (folder / "rows.jsonl").write_text("\n".join(rows))
    body = {
        "name": "memory", "threads": 1, "model": {"path": str(model)},
        "curate": {
            "sources": [{"kind": "file", "path": str(folder / "rows.jsonl"), "verifier": "exact"}],
            "near_duplicates": None, "decontaminate": None, "self_check": False, "splits": {"train": 1.0},
        },
        "sft": {
            "heldout": None, "steps": 2, "max_length": 256, "tokens_per_step": 2048, "micro_batch_tokens": 2048,
            "target": "answer", "commit": {"every": 2},
        },
        "rlvr": {
            "steps": 2, "prompts": 8, "group_size": 4, "sampling": {"max_tokens": 64}, "micro_batch_tokens": 2048,
            "reward_functions": ["benchmarks.families:varied_reward"],
        },
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(yaml.safe_dump(body))
    (folder / "data").mkdir()
    (folder / "sft").mkdir()
    (folder / "sft" / "model").symlink_to(model)
    from pipelines.curate.run import run as curate
    from pipelines.stage.report import Report

    recipe = read_recipe(folder / "recipe.yaml", [])
    curate(recipe.curate, recipe.model, out=folder / "data", report=Report(folder / "c"), seed=0)
    return folder


def measured(work, node, inputs):
    """The largest resident set of the stage's own process, bytes."""
    (work / "out").mkdir(parents=True)
    kind = node.kind.name
    settings = {kind: node.settings.model_dump(), "model": node.recipe.model.model_dump()}
    job = {"stage": kind, "seed": 0, "threads": 1, "settings": settings, "inputs": inputs}
    (work / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-m", f"pipelines.{kind}", str(work)]
    child = subprocess.Popen(command, env=toys.environment(OMP_NUM_THREADS="1"), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0
    return usage.ru_maxrss * 1024


CASES = {
    "sft": ("sft", []),
    "sft, LoRA": ("sft", ["sft.lora={rank: 8}"]),
    "sft, checkpointing": ("sft", ["sft.gradient_checkpointing=true"]),
    "sft, offload": ("sft", ["sft.activation_offload=true"]),
    "sft, checkpointing and offload": ("sft", ["sft.gradient_checkpointing=true", "sft.activation_offload=true"]),
    "sft, weights in bfloat16": ("sft", ["model.dtype=bfloat16", "model.weights_dtype=bfloat16"]),
    "sft, small passes": ("sft", ["sft.micro_batch_tokens=512", "sft.tokens_per_step=1024"]),
    "rlvr": ("rlvr", []),
    "rlvr, weights in bfloat16": ("rlvr", ["model.dtype=bfloat16", "model.weights_dtype=bfloat16"]),
    "preference": ("preference", {}),
    "preference, LoRA, small passes": ("preference", {"lora": {"rank": 8}, "micro_batch_tokens": 700}),
    "preference, checkpointing": ("preference", {"gradient_checkpointing": True}),
    "reward model": ("reward_model", {}),
    "reward model, text": ("reward_model", {"loss": "grm"}),
    "sample": ("sample", {}),
}
ON_PAIRS = {
    "preference": {
        "heldout": None, "steps": 2, "pairs_per_step": 8, "max_length": 130, "micro_batch_tokens": 2048, "commit": {"every": 2},
    },
    "reward_model": {
        "heldout": None, "steps": 2, "pairs_per_step": 8, "max_length": 130, "micro_batch_tokens": 2080, "commit": {"every": 2},
    },
    "sample": {"problems": 64, "k": 8, "sampling": {"max_tokens": 128}},
}  # fmt: skip


def node_of(folder, wide, stage, changes):
    """The stage of a case."""
    if stage not in ON_PAIRS:
        return read_recipe(wide / "recipe.yaml", changes).node(stage)
    body = yaml.safe_load((wide / "recipe.yaml").read_text())
    stages = {
        "data": {"kind": "curate", **body["curate"]},
        stage: {"kind": stage, "data": "data", **ON_PAIRS[stage], **changes},
    }
    path = folder / "stage.yaml"
    path.write_text(yaml.safe_dump({"name": "memory", "threads": 1, "model": body["model"], "stages": stages}))
    return read_recipe(path).node(stage)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_plans_are_within_a_fifth_of_the_measured_peak(tmp_path, wide, case):
    stage, changes = CASES[case]
    node = node_of(tmp_path, wide, stage, changes)
    from transformers import AutoConfig

    from tasks.preflight.estimate import parameters_of

    base = str(node.recipe.model.path)
    shape = memory.Shape.of(AutoConfig.from_pretrained(base), parameters_of(base) or 0)
    needs = memory.of_stage(node, shape, prompt_tokens=18, device=HERE)
    peak = measured(tmp_path / "work", node, {"data": str(wide / "data"), "model": str(wide / "sft")})
    print(f"{case}: planned {needs.peak / 1e9:.2f} GB, measured {peak / 1e9:.2f} GB", needs.body())
    assert abs(needs.peak - peak) < 0.2 * peak, f"planned {needs.peak / 1e9:.2f} GB, measured {peak / 1e9:.2f} GB"
