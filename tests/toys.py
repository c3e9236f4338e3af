"""Small things to test with: models of several families, a recipe that runs in seconds, random batches."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import databases
import pytest
import servers
import torch
import yaml

from pipelines.base.project import python_path
from pipelines.contract.columns import COLUMNS, Phase
from pipelines.contract.metrics import metric
from pipelines.contract.sampling import Sampling
from pipelines.engine.distribution import generator
from pipelines.laws import example_columns as examples
from pipelines.recipe.slots import bind_monitors

TRAINED = ("sft.steps=300", "sft.tokens_per_step=1024")
ROOT = Path(__file__).resolve().parent.parent
AT_START = dict(os.environ)
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FAMILIES = {
    "llama": SMALL,
    "qwen2": SMALL,
    "qwen3": SMALL | {"head_dim": 16},
    "gemma": SMALL | {"head_dim": 16},
    "gemma2": SMALL | {"head_dim": 16, "sliding_window": 8},
    "gemma3_text": SMALL | {"head_dim": 16, "sliding_window": 8},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128},
}
OTHERS = {
    "mistral": SMALL | {"sliding_window": 8},
    "gpt_oss": SMALL | {"head_dim": 16, "sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": SMALL | {
        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1,
        "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
        "first_k_dense_replace": 1,
    },
}  # fmt: skip
"""Families with a feature more: a window in every layer, attention sinks with experts, compressed keys."""


def model(family: str = "llama", vocab: int = 100):
    """A random float32 model whose answers are varied: its matrices are three times the usual size."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family, vocab_size=vocab, pad_token_id=0, bos_token_id=1, eos_token_id=2, **(FAMILIES | OTHERS)[family]
    )
    made = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for weight in made.parameters():
            if weight.ndim > 1:
                weight *= 3
    return made


def greedy(model, prefix: list[int], count: int) -> list[int]:
    """What transformers' own generate adds to a prefix."""
    ids = torch.tensor([prefix])
    mask = torch.ones_like(ids)
    made = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=count, pad_token_id=0)
    return made[0, len(prefix) :].tolist()


def check_greedy(sampler, prefixes: list[list[int]], count: int):
    """Greedy answers of a sampler are those of transformers' own generate."""
    made = sampler.extend(prefixes, Sampling(temperature=0, max_tokens=count), generator(sampler.device, 1))
    expected = {prefix: greedy(sampler.model, [*prefix], count) for prefix in {tuple(each) for each in prefixes}}
    for prefix, one in zip(prefixes, made, strict=True):
        assert one.tokens == expected[tuple(prefix)]


def recipe(folder: Path, **changes) -> Path:
    """A recipe of all four stages that takes seconds; `changes` replace whole sections' fields."""
    body = {
        "name": "toy",
        "threads": 1,
        "model": {
            "fresh": {
                "architecture": "llama",
                "config": {
                    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
                },
            },
            "tokenizer": {"kind": "char", "vocab_size": 128},
        },
        "curate": {
            "sources": [{
                "kind": "reasoning_gym", "task": "palindrome_generation", "size": 800, "seed": 3,
                "config": {"min_length": 3, "max_length": 4}, "prompt_template": "palindrome {metadata.letters}",
            }],
            "splits": {"train": 0.9, "heldout": 0.1},
        },
        "sft": {
            "steps": 12, "max_length": 64, "tokens_per_step": 512, "micro_batch_tokens": 512, "evaluate_every": 6,
            "optimizer": {"learning_rate": 0.003}, "commit": {"every": 3},
        },
        "rlvr": {
            "steps": 4, "prompts": 4, "group_size": 4, "sampling": {"max_tokens": 8},
            "optimizer": {"learning_rate": 0.0001, "schedule": "constant", "warmup": 0},
        },
        "evaluate": {"tasks": [{"name": "palindromes", "limit": 6, "samples": 2}], "batch_size": 64},
    }  # fmt: skip
    for section, fields in changes.items():
        if isinstance(fields, dict) and isinstance(body.get(section), dict):
            body[section] = body[section] | fields
        else:
            body[section] = fields
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def environment(**more: str) -> dict[str, str]:
    """Environment of a child process that finds the project."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}", **more}


def curated(folder: Path, *overrides: str, of: Path | None = None) -> Any:
    """A recipe, the toy one by default, whose curated data is in `folder/data`."""
    from pipelines.curate.run import run as curate
    from pipelines.recipe.read import read_recipe
    from pipelines.stage.report import Report

    read = read_recipe(of or recipe(folder), list(overrides))
    (folder / "data").mkdir()
    curate(read.curate, read.model, out=folder / "data", report=Report(folder / "w"), seed=0)
    return read


def start(folder: Path, of: Path | None = None, overrides: Sequence[str] = TRAINED) -> Path:
    """Curated data and a model that has seen a little SFT, in `folder/data` and `folder/sft/out/model`."""
    from pipelines.sft.run import Trainer as Sft
    from pipelines.stage.report import Report

    read = curated(folder, *overrides, of=of)
    work = folder / "sft"
    (work / "out").mkdir(parents=True)
    report = Report(work, committed=True)
    Sft(read.sft, read.model, data=folder / "data", out=work / "out", work=work, report=report, seed=0).run()
    return folder


def lake(folder: Path) -> Path:
    """A recipe of an agent on a small lake."""
    way = {"kind": "environment", "task": "frozen_lake", "config": {"side": 3}}
    return recipe(
        folder,
        model={
            "fresh": {
                "architecture": "llama",
                "config": {
                    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                    "num_key_value_heads": 2, "max_position_embeddings": 256, "tie_word_embeddings": True,
                },
            },
        },
        curate={
            "sources": [
                way | {"size": 600, "seed": 1, "config": {"side": 3, "demonstrations": True}, "splits": ["sft", "heldout"]},
                way | {"size": 200, "seed": 2, "splits": ["train"]},
            ],
            "near_duplicates": None,
            "splits": {"train": 0.4, "sft": 0.5, "heldout": 0.1},
        },
        sft={"split": "sft", "steps": 60, "max_length": 200, "tokens_per_step": 2000, "micro_batch_tokens": 2000},
        rlvr={"steps": 3, "prompts": 4, "group_size": 4, "rollout": {"kind": "multi_turn", "max_turns": 3}},
        evaluate={"tasks": [{"name": "lake", "samples": 2, "environment": {"task": "frozen_lake", "size": 8}}]},
    )  # fmt: skip


def tools(folder: Path) -> Path:
    """A recipe of an agent with a calculator."""
    source = {"kind": "environment", "task": "tools"}
    config = {"max_position_embeddings": 320, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return recipe(
        folder,
        model={
            "fresh": {"architecture": "llama", "config": config | heads},
            "tokenizer": {"kind": "char", "vocab_size": 128, "tools": True},
        },
        curate={
            "sources": [
                source | {"size": 600, "seed": 1, "config": {"demonstrations": True, "conversations": True}, "splits": ["sft", "heldout"]},
                source | {"size": 100, "seed": 2, "config": {"costs": {"call": 0.1, "error": 0.2, "malformed": 0.4}}, "splits": ["train"]},
            ],
            "near_duplicates": None, "decontaminate": None, "splits": {"train": 0.4, "sft": 0.5, "heldout": 0.1},
        },
        sft={"split": "sft", "steps": 60, "turns": "all", "max_length": 192, "tokens_per_step": 2000, "micro_batch_tokens": 2000},
        rlvr={
            "steps": 3, "prompts": 4, "group_size": 4, "rollout": {"kind": "multi_turn", "max_turns": 2},
            "sampling": {"max_tokens": 80},
        },
        evaluate={"tasks": [{"name": "tools", "samples": 2, "environment": {"task": "tools", "size": 8, "max_tokens": 80}}]},
    )  # fmt: skip


def start_lake(folder: Path) -> Path:
    """As `start`, for `lake`."""
    return start(folder, lake(folder), ["sft.steps=120"])


def trainer(folder: Path, begun: Path, of: Path, *overrides: str):
    """An RLVR trainer of the recipe `of` that works in `folder/work`; `begun` is what `start` made."""
    from pipelines.recipe.check import check
    from pipelines.recipe.read import read_recipe
    from pipelines.rlvr.train import Trainer
    from pipelines.stage.report import Report

    read = read_recipe(of, list(overrides))
    check(read)
    work = folder / "work"
    (work / "out").mkdir(parents=True, exist_ok=True)
    return Trainer(
        read.rlvr, read.model, start=str(begun / "sft/out/model"), data=begun / "data", out=work / "out", work=work,
        report=Report(work, committed=True), seed=0,
    )  # fmt: skip


def few_near_goals(made: Any) -> None:
    """Leave a trainer of `lake` four problems, those whose goal is two moves away, so that a step meets the maps of the one before."""
    made.problems[:] = [problem for problem in made.problems if problem.info["expert_turns"] == 2][:4]


def sft_trainer(folder: Path, data: Path, *overrides: str, of: Path | None = None):
    """The SFT trainer of a recipe, the toy one by default, on its curated `data`."""
    from pipelines.recipe.check import check
    from pipelines.recipe.read import read_recipe
    from pipelines.sft.run import Trainer
    from pipelines.stage.report import Report

    made = read_recipe(of or recipe(folder), list(overrides))
    check(made)
    work = folder / "work"
    (work / "out").mkdir(parents=True, exist_ok=True)
    return Trainer(
        made.sft, made.model, data=data, out=work / "out", work=work, report=Report(work, committed=True), seed=0
    )


def write_samples(path: Path, rows: list[dict[str, Any]]) -> None:
    """A shard of samples from rows; what a row does not say is null."""
    from pipelines.data import samples

    names = (*samples.TEXTS, "sample", "prompt_ids", "completion_ids", "logp", "entropy", "score", "correct")
    names += tuple(name for name in (samples.EPISODE, samples.STEPS, samples.COMPARISONS) if rows and name in rows[0])
    samples.write_columns(path, {name: [row.get(name) for row in rows] for name in names})


class Stopped(BaseException):
    """What a run that a test breaks off ends with."""


def stop(run: Any, step: int, part: str | None = None) -> None:
    """Run a trainer until it begins this step: an RLVR trainer until it begins this part of it."""
    make_step = None if part else run.make_step

    def phase(*reached: Any) -> None:
        if reached == (part, step):
            raise Stopped

    def step_or_stop(number: int) -> Any:
        if number == step:
            raise Stopped
        return make_step(number)

    if part:
        run.phase = phase
    else:
        run.make_step = step_or_stop
    with pytest.raises(Stopped):
        run.run()
    run.committer.wait()


def run_stopped(build: Callable[[], Any], step: int = 2, part: str | None = "rollout") -> Any:
    """A trainer that ran to its end after another of the same folder was stopped (`stop`); `build` makes them."""
    stop(build(), step, part)
    resumed = build()
    resumed.run()
    return resumed


def job(folder: Path, begun: Path, *overrides: str, of: Path | None = None) -> Path:
    """A work folder of the RLVR stage of a recipe, the toy one by default, as the task layer writes it; `begun` is what `start` made."""
    from pipelines.recipe.read import read_recipe

    folder.mkdir(parents=True)
    read = read_recipe(of or recipe(folder), list(overrides))
    body = {
        "stage": "rlvr", "seed": 0, "threads": 1,
        "settings": {"rlvr": read.rlvr.model_dump(), "model": read.model.model_dump()},
        "inputs": {"data": str(begun / "data"), "model": str(begun / "sft/out")},
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(body))
    (folder / "out").mkdir()
    return folder


def sft_job(folder: Path, begun: Path, *overrides: str) -> Path:
    """A work folder of the SFT stage as the task layer writes it; `begun` is what `start` made."""
    from pipelines.recipe.read import read_recipe

    (folder / "out").mkdir(parents=True)
    read = read_recipe(recipe(folder), list(overrides))
    settings = {"sft": read.sft.model_dump(), "model": read.model.model_dump()}
    body = {"stage": "sft", "seed": 0, "threads": 1, "settings": settings, "inputs": {"data": str(begun / "data")}}
    (folder / "job.json").write_text(json.dumps(body))
    return folder


def spool(work: Path) -> list[dict]:
    """Lines a stage wrote for the tracker."""
    return [json.loads(line) for line in (work / "spool.jsonl").read_text().splitlines()]


def unlisted_metrics(rlvr: Any, names: set[str] | dict[str, Any]) -> set[str]:
    """Metrics of a run that are neither in the table of metrics nor made by a monitor of the recipe."""
    of_rules = {name for each in bind_monitors("rlvr", rlvr.monitors) for name in each.rule.makes}
    return {name for name in names if metric("rlvr", name) is None} - of_rules


def history(work: Path) -> list[tuple[int, dict[str, float]]]:
    """(step, values that do not measure time) of every line of metrics that a stage wrote."""
    return [
        (b["step"], {k: v for k, v in b["values"].items() if not k.startswith("time/") and "per_s" not in k})
        for b in spool(work)
        if b["kind"] == "metrics"
    ]


def result(work: Path) -> tuple[str, list[tuple[int, dict[str, float]]], str]:
    """What an RLVR run came to: the digest of its weights, its history, its rollouts and draws."""
    weights = hashlib.sha256((work / "out/model/model.safetensors").read_bytes()).hexdigest()
    return (
        weights,
        history(work),
        (work / "out/report/rollouts.jsonl").read_text() + (work / "out/report/draws.jsonl").read_text(),
    )


FAKE_TRAINER: dict[str, Any] = {
    "python": sys.executable, "version": "1", "checkpoints": "step_*", "result": "final/*",
    "command": ["{python}", str(ROOT / "tests/fake_trainer.py"), "{config}"],
    "config": {
        "model": "{model}", "output": "{output}", "steps": 3, "shift": 0.01, "data": {"train": "{train_file}"},
        "reward": {"file": "{reward_file}"},
    },
}  # fmt: skip
"""Fields of a stage of kind `external` that `fake_trainer.py` does."""


def external(folder: Path, **fields: Any) -> Path:
    """A recipe whose stage `rl` is of kind `external`, with these fields, between an SFT of two steps and the evaluation of both."""
    body = yaml.safe_load(recipe(folder).read_text())
    sections = {kind: body.pop(kind) for kind in ("curate", "sft", "rlvr", "evaluate")}
    stages = {
        "data": {"kind": "curate", **sections["curate"]}, "cold": {"kind": "sft", "data": "data", **sections["sft"], "steps": 2},
        "rl": {"kind": "external", "data": "data", "model": "cold", **fields},
        "scores": {
            "kind": "evaluate", "models": ["cold", "rl"], **sections["evaluate"], "tasks": [{"name": "palindromes", "limit": 30}],
        },
    }  # fmt: skip
    path = folder / "external.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return path


def whetstone(
    *arguments: str, home: Path, check: bool = True, timeout: float = 300, first: bool = False, **env: str
) -> subprocess.CompletedProcess:
    """The command line in a process of its own.

    Unless `first`, a project folder that is not there yet gets empty databases, and runs share a Prefect server.
    """
    environment = {
        k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME")
    }
    if arguments[0] in ("run", "sweep", "rerun", "claims") and not first:
        databases.prepare(home)
        environment |= servers.shared_prefect() | {"PREFECT_HOME": str(home / "prefect")}
    environment |= {"WHETSTONE_HOME": str(home), "PYTHONPATH": python_path(), **env}
    command = [sys.executable, "-m", "flows.cli.main", *arguments]
    hub = {name for name, _ in environment.items() ^ AT_START.items() if name.startswith(("HF_", "TRANSFORMERS_"))}
    if first or hub:  # such variables are read when the libraries are imported
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout, check=False)
    else:
        import forks

        done = forks.run(
            command, capture_output=True, text=True, env=environment, timeout=timeout, libraries=forks.OF_COMMANDS
        )
    databases.keep(home)
    if check:
        assert done.returncode == 0, f"{arguments}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done


setup_context = examples.setup_context
"""What a method is told before the first step: four rollouts of each problem, one of them right."""


def as_batch(**columns: Any) -> Any:
    """The columns of a step before credit is assigned, by attribute; those of papers too."""
    from pipelines.contract.catalogue import load_plugins

    load_plugins()
    return _batch_type(tuple(name for name, c in COLUMNS.items() if c.phase < Phase.CREDIT))(**columns)


@functools.cache
def _batch_type(names: tuple[str, ...]) -> Any:
    return dataclasses.make_dataclass("Batch", [(name, Any, None) for name in names])


def batch(rows: int = 12, width: int = 9, groups: int = 3, seed: int = 0) -> Any:
    """A random step: ragged masks, unequal groups, rewards that differ between groups."""
    return as_batch(**examples.random_step(rows, width, groups, seed))


@functools.cache
def _bound(slot: str, spec: str) -> Any:
    from pipelines.contract.catalogue import bind

    return bind(slot, json.loads(spec))


def bound(slot: str, **spec: Any) -> Any:
    """A method that has seen nothing, as `bind` makes it; for tests that want many, as its settings are checked once."""
    return copy.deepcopy(_bound(slot, json.dumps(spec)))


def columns_of(batch: Any) -> dict[str, Any]:
    """The columns that exist, with what is paid at each token as the others have it."""
    from pipelines.rlvr.algorithm import immediate_reward

    columns = {k: v for k, v in vars(batch).items() if v is not None}
    return columns | {"immediate_reward": immediate_reward(columns)}


def rough(seed: int = 0) -> Any:
    """A random step with everything that happens: five groups, rows that nobody scored, holes between trained tokens.

    Group 0 is mixed, 1 all correct, 2 all incorrect, 3 has one row left and 4 none; unscored rows are packed as `pack`
    does: no token in `mask`, not in the loss. Their other columns hold whatever was sampled. A filter took a row of group 1 out.
    Every third row has a hint or is a demonstration.
    """
    draw = torch.Generator().manual_seed(seed)
    group = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 0])
    reward = torch.tensor([1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 0]).float()
    order = torch.randperm(len(group), generator=draw)
    group, reward = group[order], reward[order]
    lonely = (group == 3) & (reward == 0)
    scored = ~(lonely | (group == 4))
    scored[int(((group == 0) & (reward == 0)).nonzero()[0])] = False
    if seed % 2:
        scored[int((group == 2).nonzero()[1])] = False
    place, length = torch.arange(10), torch.randint(3, 10, (len(group),), generator=draw)
    row = (place > 0) & (place <= length[:, None])
    hole = (torch.rand(row.shape, generator=draw) < 0.25) & (place != 1)
    columns = examples.columns(row, group, reward, torch.where(row, place // 4, -1), seed=seed)
    mask = row & ~hole & scored[:, None]
    in_loss = scored.clone()
    in_loss[int((scored & (group == 1)).nonzero()[1])] = False
    share, penalty = mask.float(), columns["token_penalty"] * mask
    teacher = mask & ((mask.cumsum(1) <= 1) | (torch.arange(len(group)) % 6 == 0)[:, None])
    columns["teacher_forced"] = teacher & (torch.arange(len(group)) % 3 == 0)[:, None]
    columns |= {"mask": mask, "scored": scored, "in_loss": in_loss, "loss_share": share, "token_penalty": penalty}
    return as_batch(**columns)


HEAVY = {"torch", "numpy", "scipy", "pandas", "pyarrow", "transformers", "datasets", "matplotlib", "prefect", "mlflow", "rich"}  # fmt: skip
"""Modules that take long to import."""


def loaded(code: str) -> set[str]:
    """Modules that a new process has after some code."""
    script = f"import json, sys\n{code}\nprint(json.dumps([*sys.modules]), file=sys.__stderr__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))
