"""Recipes and overrides made to break the reader: each is accepted with a stated meaning or refused by name, at once."""

from __future__ import annotations

import copy
import os
import re
import time
from dataclasses import dataclass
from typing import Any

import pytest
import toys
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

pytestmark = pytest.mark.hostile
SECONDS = 2.0
"""Longest a single input may take; most take some milliseconds."""


@dataclass
class Accepted:
    """The input means something: the resolved value at a path."""

    path: str
    value: Any


def field_of(recipe: Any, path: str) -> Any:
    for key in path.split("."):
        recipe = (
            recipe[int(key)]
            if isinstance(recipe, list | tuple)
            else recipe[key]
            if isinstance(recipe, dict)
            else getattr(recipe, key)
        )
    return recipe


def judge(path, overrides, expected):
    """Read and check; `expected` is what the message must say (a regular expression), or what the input means."""
    began = time.process_time()
    if isinstance(expected, Accepted):
        recipe = read_recipe(path, overrides)
        check(recipe)
        got = field_of(recipe, expected.path)
        assert got == expected.value and type(got) is type(expected.value)
    else:
        with pytest.raises(RecipeError) as caught:
            check(read_recipe(path, overrides))
        message = str(caught.value)
        assert re.search(expected, message), message
        assert (len(message) < 6000 and message.isprintable()) or "\n" in message
    assert time.process_time() - began < SECONDS


@pytest.fixture(scope="module", autouse=True)
def _imports(tmp_path_factory):
    """The first check imports torch; that is not an input's fault."""
    check(read_recipe(toys.recipe(tmp_path_factory.mktemp("warm"))))


def bomb(levels: int, width: int = 9) -> str:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines)


def chain(levels: int) -> str:
    return "\n".join(["l0: &l0 [x]", *(f"l{i}: &l{i} [*l{i - 1}]" for i in range(1, levels))])


FILES: dict[str, tuple[Any, str]] = {
    "empty": ("", "expected fields"),
    "spaces": ("   \n\n", "expected fields"),
    "comment only": ("# nothing\n", "expected fields"),
    "a scalar": ("hello\n", "expected fields"),
    "a number": ("3\n", "expected fields"),
    "null": ("null\n", "expected fields"),
    "a list": ("- a\n- b\n", "expected fields"),
    "empty section": ("{}\n", r"name: this field is required"),
    "not YAML": ("name: [1, 2\n", "not readable as YAML: line"),
    "tab indentation": ("name:\n\tx: 1\n", "line 2"),
    "unclosed quote": ('name: "abc\n', "not readable as YAML"),
    "colon in plain text": ("name: a: b\n", "not readable as YAML: line 1"),
    "unknown alias": ("name: *nowhere\n", "nowhere"),
    "percent": ("name: %x\n", "line 1"),
    "at sign": ("name: @x\n", "line 1"),
    "directive": ("%YAML 9.9\n---\nname: x\n", "not readable as YAML"),
    "latin-1": ("name: caf\xe9\n".encode("latin-1"), "line 1: not UTF-8"),
    "utf-16": ("name: x\n".encode("utf-16"), "not UTF-8"),
    "utf-32": ("name: x\n".encode("utf-32"), "not UTF-8"),
    "binary": (bytes(range(256)), "not UTF-8|not readable"),
    "overlong utf-8": (b"name: \xc0\xaf\n", "not UTF-8"),
    "surrogate bytes": (b"name: \xed\xa0\x80\n", "not UTF-8"),
    "raw NUL": (b"name: a\x00b\n", "not readable as YAML"),
    "raw control character": (b"name: a\x07b\n", "not readable as YAML"),
    "gzip": (b"\x1f\x8b\x08\x00" + b"\x00" * 20, "not UTF-8|not readable"),
    "two documents": ("name: a\n---\nname: b\n", "single document"),
    "two documents, one empty": ("name: a\n---\n---\n", "single document"),
    "python object": ("name: !!python/object/apply:os.system ['true']\n", "line 1: the tag"),
    "python name": ("name: !!python/name:os.system\n", "the tag"),
    "python tuple": ("name: !!python/tuple [a]\n", "the tag"),
    "own tag": ("name: !env HOME\n", "the tag"),
    "set tag": ("name: !!set {a, b}\n", "the tag"),
    "binary tag": ("name: !!binary aGVsbG8=\n", "the tag"),
    "timestamp tag": ("name: !!timestamp 2026-01-01\n", "the tag"),
    "ordered map tag": ("name: !!omap [a: b]\n", "the tag"),
    "int tag": ("name: !!int abc\n", "the tag"),
    "str tag": ("name: !!str abc\n", "the tag"),
    "non-specific tag": ("name: ! abc\n", "the tag"),
    "tag on a key": ("!!str name: x\n", "the tag"),
    "tag on the document": ("!!map {name: x}\n", "the tag"),
    "verbatim tag": ("name: !<tag:yaml.org,2002:str> x\n", "the tag"),
    "key twice": ("name: a\nseed: 1\nname: b\n", r"line 3: 'name' is written twice; it is on line 1"),
    "key twice, quoted": ("name: a\n'name': b\n", "line 2: 'name' is written twice"),
    "key twice, flow": ("rlvr: {steps: 3, steps: 4}\n", "'steps' is written twice"),
    "key twice, deep": ("model:\n  fresh:\n    config:\n      a: 1\n      b: 2\n      a: 3\n", "line 6: 'a' is written twice"),
    "key twice, in a list": ("curate:\n  sources:\n    - {kind: file, kind: hub}\n", "line 3: 'kind' is written twice"),
    "merge twice": ("a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a\n", "line 4: '<<' is written twice"),
    "merge of a scalar": ("a: {<<: 3}\n", "not readable as YAML: line 1"),
    "merge of a list of scalars": ("a: {<<: [3, 4]}\n", "not readable as YAML: line 1"),
    "number as key": ("1: x\n", "line 1: the key '1'"),
    "boolean as key": ("on: x\n", "the key 'on'"),
    "null as key": ("~: x\n", "the key '~'"),
    "float as key": ("1.5: x\n", "the key '1.5'"),
    "empty key": ("'': x\n", "the key ''"),
    "blank key": ("'  ': x\n", "the key"),
    "question mark key": ("? [a, b]\n: x\n", "cannot be a key"),
    "section as key": ("{a: b}: x\n", "cannot be a key"),
    "alias as key": ("a: &k [x]\n? *k\n: y\n", "cannot be a key"),
    "infinity": ("name: x\nseed: .inf\n", "seed: inf is not a finite number"),
    "minus infinity": ("name: x\nseed: -.INF\n", "seed: -inf is not a finite"),
    "not a number": ("name: x\nseed: .nan\n", "seed: nan is not a finite"),
    "too large a float": ("name: x\nseed: 1e999\n", "seed: inf is not a finite"),
    "too large an integer": ("name: x\nseed: 99999999999999999999\n", r"seed: .* larger than 2\*\*63"),
    "5,000 digits": (f"name: x\nseed: {'9' * 5000}\n", "a whole number of 5000 characters"),
    "5,000 hexadecimal digits": (f"name: x\nseed: 0x{'f' * 5000}\n", "a whole number of 5002 characters"),
    "deep lists": ("a: " + "[" * 100 + "]" * 100, "nested deeper than 40"),
    "900 deep": ("a: " + "[" * 900 + "]" * 900, "nested deeper than 40"),
    "90,000 deep": ("a: " + "[" * 90_000, "nested deeper than 40"),
    "90,000 deep maps": ("a: " + "{a: " * 45_000, "nested deeper than 40"),
    "deep blocks": ("\n".join(" " * i + f"k{i}:" for i in range(200)), "nested deeper than 40"),
    "deep dashes": ("a:\n " + "- " * 2000 + "x", "nested deeper than 40"),
    "alias bomb": (bomb(9), "over 20000 values"),
    "alias bomb of 200 levels": (bomb(200), "over 20000 values|nested deeper"),
    "alias chain": (chain(2000), "nested deeper than 40"),
    "merge bomb": (
        "\n".join(["m0: &m0 {a: 1, b: 2}", *(f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, 12))]),
        "over 20000 values",
    ),
    "alias of itself": ("a: &a [*a]\n", "contains itself"),
    "alias of itself, map": ("a: &a {b: *a}\n", "contains itself"),
    "alias of its parent": ("&top\nname: x\na: [*top]\n", "contains itself"),
    "a large file": ("# " + "x" * 300_000, "over 200000 bytes"),
    "a long text": (f"name: {'x' * 150_000}\n", "at most 100000"),
    "many keys": ("\n".join(f"k{i}: 1" for i in range(5000)), "no such field"),
    "a long key": (f"{'k' * 900}: 1\nname: x\n", "no such field"),
    "a long key with question mark": (f"? {'k' * 90_000}\n: 1\n", "no such field"),
    "newline in the name": ('name: "a\\nb"\n', "name:"),
    "NUL in the name": ('name: "a\\0b"\n', "name: the text holds the character"),
    "surrogate in the name": ('name: "\\ud800"\n', "name: the text holds the character|not readable"),
    "bell in the name": ('name: "\\a"\n', "name: the text holds the character"),
    "list as section": ("name: x\nrlvr: [1]\n", "rlvr: expected a section"),
    "text as section": ("name: x\nrlvr: hello\n", "rlvr: expected a section"),
    "number as section": ("name: x\nsft: 3\n", "sft: expected a section"),
    "true as section": ("name: x\nsft: true\n", "sft: expected a section"),
    "list as model": ("name: x\nmodel: []\n", "model: expected a section"),
    "unknown section": ("name: x\nrlrv: {}\n", "rlrv: no such field. Did you mean 'rlvr'"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files(name, tmp_path):
    content, expected = FILES[name]
    path = tmp_path / "r.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    judge(path, [], expected)


SHARES = "splits must be positive shares"
CHANGES: list[tuple[str, Any, Any]] = [
    ("name", "", "name:"), ("name", "../x", "name:"), ("name", "a/b", "name:"), ("name", "x" * 81, "name:"),
    ("name", 3, "name:"), ("name", None, "name:"), ("name", ["x"], "name:"), ("name", ".hidden", "name:"),
    ("name", "a b", "name:"), ("name", "név", "name:"), ("name", "a\n", "name:"), ("name", True, "name:"),
    ("seed", -1, "seed:"), ("seed", 1.5, "seed:"), ("seed", True, "seed: a number is wanted, not true"),
    ("seed", 2**63 - 1, Accepted("seed", 2**63 - 1)), ("seed", "abc", "seed:"), ("seed", None, "seed:"), ("seed", [0], "seed:"),
    ("seed", "7", Accepted("seed", 7)), ("seed", 7.0, Accepted("seed", 7)),
    ("threads", 0, "threads:"), ("threads", True, "threads: a number"), ("threads", 10**6, "threads:"), ("threads", "two", "threads:"),
    ("presets", 3, "presets: expected names"), ("presets", None, Accepted("presets", [])), ("presets", [3], "presets: expected names"),
    ("presets", [["dapo"]], "presets: expected names"), ("presets", {"a": "b"}, "presets: expected names"), ("presets", True, "presets: expected"),
    ("presets", ["dapo", "dapo"], "presets: 'dapo' is named twice"), ("presets", ["../quickstart"], "presets: no preset"),
    ("presets", [""], "presets: no preset"), ("presets", ["x" * 9000], "presets: no preset"), ("presets", ["dapo\0"], "presets"),
    ("presets", "dapo", Accepted("presets", ["dapo"])), ("presets", ["DAPO"], "presets: no preset"), ("presets", [None], "presets:"),
    ("model", None, "model:"), ("model", {}, "model: give either"), ("model.path", "x", "model: give either"), ("model.fresh", None, "model: give either"),
    ("model.fresh.architecture", "", "model.fresh.architecture:"), ("model.fresh.architecture", "../x", "model.fresh.architecture:"),
    ("model.fresh.config", 3, "model.fresh.config: expected a section"), ("model.fresh.config", None, "model.fresh.config"),
    ("model.fresh.config.hidden_size", float("nan"), "model.fresh.config.hidden_size: nan"), ("model.tokenizer.vocab_size", 3, "vocab_size:"),
    ("model.tokenizer.vocab_size", 10**9, "vocab_size:"), ("model.tokenizer.kind", "word", "model.tokenizer.kind:"), ("model.dtype", "float16", "model.dtype:"),
    ("model.chat_template", "", "model.chat_template:"), ("model.chat_template", 3, "model.chat_template:"), ("model.attention", 1, "model.attention:"),
    ("curate", None, "curate:"), ("curate.sources", [], "curate.sources:"), ("curate.sources", {}, "curate.sources:"),
    ("curate.sources", None, "curate.sources:"), ("curate.sources", "file", "curate.sources:"), ("curate.sources.0", None, "curate.sources.0:"),
    ("curate.sources.0", "x", "curate.sources.0: expected a section"), ("curate.sources.0.kind", "mongodb", "curate.sources.0.kind:"),
    ("curate.sources.0.kind", "file", "curate.sources.0: a file source needs `path`"), ("curate.sources.0.task", "../../x", "curate.sources.0.task:"),
    ("curate.sources.0.task", None, "needs `task`"), ("curate.sources.0.size", 0, "curate.sources.0.size:"), ("curate.sources.0.size", True, "curate.sources.0.size: a number"),
    ("curate.sources.0.size", 10**18, "curate.sources.0.size:"), ("curate.sources.0.size", "many", "curate.sources.0.size:"),
    ("curate.sources.0.seed", -3, "curate.sources.0.seed:"), ("curate.sources.0.config", [], "curate.sources.0.config:"),
    ("curate.sources.0.path", "a\nb", "curate.sources.0.path:"), ("curate.sources.0.path", "a\0b", "curate.sources.0.path"), ("curate.sources.0.path", "", "curate.sources.0.path:"),
    ("curate.sources.0.path", "   ", "curate.sources.0.path: an empty text"), ("curate.sources.0.path", "x" * 5000, "curate.sources.0.path:"),
    ("curate.sources.0.splits", [], "names no split"), ("curate.sources.0.splits", ["nope"], "names no split.*nope"), ("curate.sources.0.splits", "train", "curate.sources.0.splits:"),
    ("curate.sources.0.splits", ["../x"], "curate.sources.0.splits.0:"), ("curate.sources.0.columns", {"prompts": "q"}, "curate.sources.0.columns"),
    ("curate.sources.0.columns", {"prompt": 3}, "curate.sources.0.columns.prompt:"), ("curate.sources.0.verifier", "../math", "verifier:"),
    ("curate.sources.0.prompt_template", "no field", "must contain"), ("curate.sources.0.licence", "", "licence:"), ("curate.sources.0.licence", "a\nb", "licence:"),
    ("curate.sources.0.extra", 1, "curate.sources.0.extra: no such field"), ("curate.splits", {}, SHARES), ("curate.splits", None, "curate.splits"),
    ("curate.splits", {"train": 1.0, "../../x": 0.1}, r"curate.splits.*a name starts with"), ("curate.splits", {"../../x": 1.0}, "curate.splits"),
    ("curate.splits", {"a/b": 0.5, "train": 0.5}, "curate.splits"), ("curate.splits", {".": 1.0}, "curate.splits"), ("curate.splits", {"a" * 200: 1.0}, "curate.splits"),
    ("curate.splits", {"train": 2.0, "heldout": -1.0}, SHARES), ("curate.splits", {"train": 1.0, "heldout": 0.0}, SHARES),
    ("curate.splits", {"train": float("nan"), "heldout": 0.5}, "nan is not a finite"), ("curate.splits", {"train": True}, "curate.splits: a number is wanted"),
    ("curate.splits", {"train": "most"}, "curate.splits.train:"), ("curate.splits", {"train": 0.5, "heldout": 0.4}, SHARES), ("curate.splits", ["train"], "curate.splits: expected a section"),
    ("curate.splits", {"train": 0.5, "Train": 0.4, "heldout": 0.1}, "upper and lower case"), ("curate.splits", {"train": 1e-320, "heldout": 1.0}, Accepted("curate.splits.heldout", 1.0)),
    ("curate.splits", {"train": 10**300, "heldout": 0.5}, "a whole number of 301"), ("curate.near_duplicates.threshold", 0, "threshold:"), ("curate.near_duplicates.permutations", 10**6, "permutations:"),
    ("curate.near_duplicates.shingle", 10**6, "shingle:"), ("curate.near_duplicates", True, "curate.near_duplicates: expected a section"), ("curate.decontaminate.ngram", 1, "ngram:"),
    ("curate.min_prompt_tokens", -1, "min_prompt_tokens:"), ("curate.difficulty", {"model": "m", "low": 0.9, "high": 0.1}, r"curate.difficulty: low \(0.9\) must be under high"),
    ("curate.difficulty", {"model": "m", "low": 0.5, "high": 0.5}, "must be under"), ("curate.difficulty", {"model": ""}, "curate.difficulty.model:"), ("curate.difficulty", {}, "curate.difficulty.model: this field is required"),
    ("curate.self_check", "perhaps", "curate.self_check:"), ("curate.batch_rows", 0, "curate.batch_rows:"), ("curate.max_prompt_tokens", 0, "max_prompt_tokens:"),
    ("sft.steps", 0, "sft.steps:"), ("sft.steps", 10**15, "sft.steps: a number of at most"), ("sft.steps", "9" * 30, "sft.steps:"), ("sft.epochs", 1, "give either `epochs` or `steps`"),
    ("sft.split", "../x", "sft.split:"), ("sft.split", "", "sft.split:"), ("sft.heldout", "nope", "sft.heldout: curate makes no split"), ("sft.max_length", 1, "sft.max_length:"),
    ("sft.max_length", 10**6, "micro_batch_tokens must hold"), ("sft.optimizer.betas", [0.9], "sft.optimizer.betas"), ("sft.optimizer.betas", [0.9, 0.9, 0.9], "sft.optimizer.betas"),
    ("sft.optimizer.betas", [1.0, 0.9], "sft.optimizer.betas.0:"), ("sft.optimizer.betas", [-0.1, 0.9], "sft.optimizer.betas.0:"), ("sft.optimizer.betas", [True, 0.9], "sft.optimizer.betas: a number is wanted"),
    ("sft.optimizer.betas", {"a": 1}, "sft.optimizer.betas"), ("sft.optimizer.betas", None, "sft.optimizer.betas"), ("sft.optimizer.eps", 0, "eps:"), ("sft.optimizer.eps", 5, "eps:"),
    ("sft.optimizer.learning_rate", 0, "learning_rate:"), ("sft.optimizer.learning_rate", -1, "learning_rate:"), ("sft.optimizer.learning_rate", float("inf"), "learning_rate: inf"),
    ("sft.optimizer.learning_rate", "nan", "learning_rate:"), ("sft.optimizer.learning_rate", "inf", "learning_rate:"), ("sft.optimizer.learning_rate", True, "learning_rate: a number"),
    ("sft.optimizer.learning_rate", "1e-3", Accepted("sft.optimizer.learning_rate", 0.001)), ("sft.optimizer.warmup", -1, "warmup:"), ("sft.optimizer.final_share", 2, "final_share:"),
    ("sft.optimizer.schedule", "step", "schedule:"), ("sft.optimizer.max_grad_norm", 0, "max_grad_norm:"), ("sft.optimizer.weight_decay", -1, "weight_decay:"),
    ("sft.optimizer", "adam", "sft.optimizer: expected a section"), ("sft.commit.every", 0, "sft.commit.every:"), ("sft.checkpoint_selection", "first", "sft.checkpoint_selection:"),
    ("sft.lora", {"rank": 0}, "sft.lora.rank:"), ("sft.lora", {"dropout": 1}, "sft.lora.dropout:"), ("sft.lora", {"target_modules": []}, "target_modules"), ("sft.lora", {"target_modules": [""]}, "target_modules"),
    ("rlvr.steps", 1.5, "rlvr.steps:"), ("rlvr.steps", True, "rlvr.steps: a number is wanted, not true"), ("rlvr.prompts", 0, "rlvr.prompts:"), ("rlvr.prompts", 10**9, "rlvr.prompts:"),
    ("rlvr.group_size", 10**9, "rlvr.group_size:"), ("rlvr.group_size", -8, "rlvr.group_size:"), ("rlvr.mini_batches", 1000, "more updates per pass"), ("rlvr.sampling.temperature", -1, "temperature:"),
    ("rlvr.sampling.temperature", 0, "rlvr.sampling.temperature: 0 is greedy"), ("rlvr.sampling.top_p", 0, "top_p:"), ("rlvr.sampling.top_p", 1.1, "top_p:"), ("rlvr.sampling.min_p", 1, "min_p:"),
    ("rlvr.sampling.top_k", -1, "top_k:"), ("rlvr.sampling.max_tokens", 0, "max_tokens:"), ("rlvr.sampling.max_tokens", 10**13, "max_tokens:"), ("rlvr.sampling", [], "rlvr.sampling: expected a section"),
    ("rlvr.advantage", None, "rlvr.advantage"), ("rlvr.advantage", 3, "rlvr.advantage: the name of a method is wanted"), ("rlvr.advantage", [], "rlvr.advantage"), ("rlvr.advantage", {}, "rlvr.advantage: say which method"),
    ("rlvr.advantage", {"kind": 3}, "rlvr.advantage: no method"), ("rlvr.advantage", {"kind": None}, "rlvr.advantage: no method"), ("rlvr.advantage", {"kind": ["grpo"]}, "rlvr.advantage: no method"),
    ("rlvr.advantage", "../objective/clip", "rlvr.advantage: no method"), ("rlvr.advantage", "_estimate", "rlvr.advantage: no method"), ("rlvr.advantage", "__init__", "rlvr.advantage: no method"), ("rlvr.advantage", "", "rlvr.advantage: no method"),
    ("rlvr.advantage", "x" * 50_000, "rlvr.advantage: no method"), ("rlvr.advantage", {"kind": "grpo", "scale": 3}, "rlvr.advantage.scale:"), ("rlvr.advantage", {"kind": "grpo", "self": 3}, "rlvr.advantage.self: no such setting"),
    ("rlvr.objective", {"kind": "clip", "low": True}, "rlvr.objective.low: .*a number is wanted"), ("rlvr.objective", {"kind": "clip", "low": "nan"}, "rlvr.objective.low:"), ("rlvr.objective", {"kind": "clip", "high": 10**15}, "rlvr.objective.high:"),
    ("rlvr.objective", {"kind": "clip", "weight": 2}, "rlvr.objective.weight: no such setting"), ("rlvr.divergence", {"kind": "k3", "weight": "abc"}, "rlvr.divergence.weight: a finite number"),
    ("rlvr.divergence", {"kind": "k3", "weight": None}, "rlvr.divergence.weight:"), ("rlvr.divergence", {"kind": "k3", "weight": [1]}, "rlvr.divergence.weight:"), ("rlvr.divergence", {"kind": "k3", "weight": "nan"}, "rlvr.divergence.weight:"),
    ("rlvr.divergence", {"kind": "k3", "weight": "inf"}, "rlvr.divergence.weight:"), ("rlvr.divergence", {"kind": "k3", "weight": True}, "rlvr.divergence.weight:"), ("rlvr.divergence", {"kind": "k3", "weight": 1e300}, "rlvr.divergence.weight:"),
    ("rlvr.divergence", {"kind": "k3", "where": "nowhere"}, "rlvr.divergence.where:"), ("rlvr.divergence", {"kind": "k3", "where": ["loss"]}, "rlvr.divergence.where:"), ("rlvr.auxiliary_loss", {"kind": "entropy", "weight": "abc"}, "rlvr.auxiliary_loss"),
    ("rlvr.shaping", [None], "rlvr.shaping"), ("rlvr.shaping", [3], "rlvr.shaping"), ("rlvr.shaping", [["par"]], "rlvr.shaping"), ("rlvr.shaping", "nothing_such", "rlvr.shaping: no method"),
    ("rlvr.shaping", None, Accepted("rlvr.shaping", [])), ("rlvr.reward_functions", "m:f", "rlvr.reward_functions:"), ("rlvr.reward_functions", [""], "reward_functions.0:"), ("rlvr.reward_functions", ["os.system"], "reward_functions.0:"),
    ("rlvr.reward_functions", ["os:system('x')"], "reward_functions.0:"), ("rlvr.reward_functions", ["m:f", "m:f"], "named once"), ("rlvr.reward_functions", [3], "reward_functions.0:"), ("rlvr.reward_functions", ["../x:f"], "reward_functions.0:"),
    ("rlvr.sampler", {"url": "", "weights": "w"}, "rlvr.sampler.url:"), ("rlvr.sampler", {"url": "file:///etc/passwd", "weights": "w"}, "rlvr.sampler.url:"), ("rlvr.sampler", {"url": "http://", "weights": "w"}, "rlvr.sampler.url:"),
    ("rlvr.sampler", {"url": "http://a\nb", "weights": "w"}, "rlvr.sampler.url:"), ("rlvr.sampler", {"url": "http://a"}, "`weights` is required with a server of your own"), ("rlvr.sampler", {"url": "http://a", "weights": "w", "timeout_s": 0}, "timeout_s:"),
    ("rlvr.providers", [{"kind": "critic", "epochs": 0}], "rlvr.providers.epochs:"), ("rlvr.providers", 3, "rlvr.providers"), ("rlvr.processes", 0, "rlvr.processes:"), ("rlvr.processes", 10**7, "rlvr.processes:"),
    ("rlvr.mismatch.bound", 0, "rlvr.mismatch.bound: no such field"), ("rlvr.mismatch.on_breach", "panic", "rlvr.mismatch.on_breach:"), ("rlvr.agreement", {"on_breach": "warn"}, "rlvr.agreement: no such field"),
    ("rlvr.split", "../../x", "rlvr.split:"), ("rlvr.log_rollouts", -1, "rlvr.log_rollouts:"), ("rlvr.optimizer.betas", ["a", "b"], "rlvr.optimizer.betas.0:"), ("rlvr.epochs", 10**6, "rlvr.epochs:"),
    ("evaluate.tasks", [], "evaluate.tasks:"), ("evaluate.tasks", None, "evaluate.tasks:"), ("evaluate.tasks", "palindromes", "evaluate.tasks:"), ("evaluate.tasks", [3], "evaluate.tasks.0: expected a section"),
    ("evaluate.tasks", [""], "evaluate.tasks.0.name:"), ("evaluate.tasks", ["../../x"], "evaluate.tasks.0.name:"), ("evaluate.tasks", ["a\nb"], "evaluate.tasks.0.name:"), ("evaluate.tasks", ["a", "a"], "named once"),
    ("evaluate.tasks", ["palindromes"], Accepted("evaluate.tasks.0.name", "palindromes")), ("evaluate.tasks.0.limit", 0, "evaluate.tasks.0.limit:"), ("evaluate.tasks.0.samples", True, "evaluate.tasks.0.samples: a number"),
    ("evaluate.tasks.0.few_shot", -1, "few_shot:"), ("evaluate.tasks.0.environment", {"task": "../x"}, "environment.task:"), ("evaluate.tasks.0.sampling", [], "evaluate.tasks.0.sampling:"),
    ("evaluate.checkpoints", [], "evaluate.checkpoints:"), ("evaluate.checkpoints", ["best"], "evaluate.checkpoints.0:"), ("evaluate.checkpoints", ["sft", "sft"], "checkpoints: each may be named once"),
    ("evaluate.confidence", 1, "evaluate.confidence:"), ("evaluate.confidence", 0.5, "evaluate.confidence:"), ("evaluate.bootstrap", 1, "evaluate.bootstrap:"), ("evaluate.bootstrap", 10**9, "evaluate.bootstrap:"), ("evaluate.include", "", "evaluate.include:"),
    ("tracking", None, "tracking:"), ("tracking.experiment", "", "tracking.experiment:"), ("tracking.experiment", "a\nb", "tracking.experiment:"), ("tracking.timeout_s", 0, "tracking.timeout_s:"), ("tracking.timeout_s", "soon", "tracking.timeout_s:"),
    ("tracking.upload_models", 3, "tracking.upload_models:"), ("tracking.uri", "x", "tracking.uri: no such field"),
]  # fmt: skip


@pytest.mark.parametrize(
    "number", range(len(CHANGES)), ids=lambda i: f"{i}-{CHANGES[i][0]}={str(CHANGES[i][1])[:20]!a}"
)
def test_values(number, tmp_path):
    field, value, expected = CHANGES[number]
    path = toys.recipe(tmp_path)
    body = yaml.safe_load(path.read_text())
    put(body, field.split("."), copy.deepcopy(value))
    path.write_text(yaml.safe_dump(body))
    judge(path, [], expected)


def put(body: Any, keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        if isinstance(body, dict):
            if not isinstance(body.get(key), dict | list):
                body[key] = {}
            body = body[key]
        else:
            body = body[int(key)]
    body[int(keys[-1]) if isinstance(body, list) else keys[-1]] = value


OVERRIDES: list[tuple[str, Any]] = [
    ("x=[1", "--set x: not readable as YAML"), ("rlvr.steps=[1", "--set rlvr.steps: not readable as YAML"), ("rlvr.steps={", "--set rlvr.steps"), ("rlvr.steps='", "--set rlvr.steps"),
    ("presets=3", "presets: expected names"), ("presets=null", Accepted("presets", [])), ("presets=", Accepted("presets", [])), ("presets=[", "--set presets: not readable"), ("presets={a: b}", "presets: expected"),
    ("presets=dapo", Accepted("presets", ["dapo"])), ("presets=[dapo, dapo]", "named twice"), ("presets.0=dapo", "presets"), ("presets.x=dapo", "presets"), ("presets=[null]", "presets: expected"),
    ("", "write it as field=value"), ("rlvr.steps", "write it as field=value"), ("=3", "not the name of a field"), (".=3", "not the name of a field"), ("rlvr.=3", "not the name of a field"),
    ("rlvr..steps=3", "not the name of a field"), (".rlvr.steps=3", "not the name of a field"), ("a" * 5000 + "=1", "no such field"), (".".join(["a"] * 500) + "=1", "not the name of a field"),
    ("rlvr.steps=3=4", "rlvr.steps"), ("rlvr.steps==", "rlvr.steps"), ("rlvr.steps = 3", Accepted("rlvr.steps", 3)), ("rlvr.steps=0x10", Accepted("rlvr.steps", 16)), ("rlvr.steps=1_000", Accepted("rlvr.steps", 1000)),
    ("rlvr.steps=010", Accepted("rlvr.steps", 10)), ("rlvr.steps=1:30", "rlvr.steps:"), ("rlvr.steps=2026-01-01", "rlvr.steps:"), ("rlvr.steps=1e2", Accepted("rlvr.steps", 100)), ("rlvr.steps=١", "rlvr.steps"),
    ("rlvr.steps=true", "rlvr.steps: a number is wanted"), ("rlvr.steps=yes", "rlvr.steps: a number is wanted"), ("rlvr.steps=null", "rlvr.steps"), ("rlvr.steps=", "rlvr.steps"), ("rlvr.steps=.nan", "--set rlvr.steps: nan"),
    ("rlvr.steps=1e999", "--set rlvr.steps: inf"), ("rlvr.steps=-1e999", "--set rlvr.steps: -inf"), (f"rlvr.steps={'9' * 5000}", "whole number of 5000"), ("rlvr.steps=!!python/object/apply:os.getcwd []", "the tag"),
    ("rlvr.steps=!!int 3", "the tag"), ("rlvr.steps=*a", "--set rlvr.steps"), ("rlvr.steps=--- 1\n--- 2", "single document"), ("rlvr.steps=[" * 3, "--set"), ("x=" + "[" * 50_000, "nested deeper"),
    ("model.fresh.config={a: 1, a: 2}", "'a' is written twice"), ("rlvr.advantage={kind: grpo, kind: rloo}", "written twice"), ("model.fresh.config={1: 2}", "the key '1'"), ("rlvr.steps=\x00", "--set rlvr.steps"),
    ('name="a\\0b"', "--set name: the text holds"), ("name.x=1", "--set name.x: name is a value"), ("seed.x=1", "seed: Input should be a valid integer"), ("rlvr.steps.x=1", "rlvr.steps is a value"), ("sft.optimizer.learning_rate.x=1", "is a value"),
    ("sft.optimizer.learning_rate.x.y.z=1", "is a value"), ("model.fresh.architecture.x=1", "is a value"), ("curate.sources.x=1", "not an entry of a list of 1"), ("curate.sources.-1.size=1", "not an entry"),
    ("curate.sources.1=1", "not an entry of a list of 1"), ("curate.sources.²=1", "not an entry"), (f"curate.sources.{'9' * 6000}=1", "not an entry"), ("curate.sources.0.0=1", "curate.sources.0.0: no such field"),
    ("curate.sources.00.size=900", Accepted("curate.sources.0.size", 900)), ("evaluate.tasks.0.limit.x=1", "is a value"), ("evaluate.tasks.0.limt=1", "evaluate.tasks.0.limt: no such field. Did you mean 'limit'"),
    ("rlvr.stpes=3", "rlvr.stpes: no such field. Did you mean 'steps'"), ("rlvr.optimizer.beta=3", "Did you mean 'betas'"), ("stf.steps=3", "Did you mean 'sft'"), ("curate.sources.0.sise=3", "Did you mean 'size'"),
    ("model.tokenizer.vocab=3", "Did you mean 'vocab_size'"), ("tracking.experimnt=x", "Did you mean 'experiment'"), ("rlvr.sampling.temprature=1", "Did you mean 'temperature'"), ("rlvr.commit.kep_last=1", "Did you mean 'keep_last'"),
    ("curate.difficulty.model.x=1", "curate.difficulty.model"), ("rlvr.objective.lo=1", "Did you mean 'low'"), ("rlvr.objective.low=abc", "rlvr.objective.low:"), ("rlvr.objective.low=", "rlvr.objective.low:"),
    ("rlvr.objective.x.y.z=1", "rlvr.objective.x"), ("rlvr.shaping.0=par", "rlvr.shaping"), ("rlvr.shaping.kind=", "rlvr.shaping"), ("rlvr.divergence.weight=abc", "rlvr.divergence"), ("rlvr.divergence=k3", Accepted("rlvr.divergence", {"kind": "k3"})),
    ("rlvr=null", Accepted("rlvr", None)), ("rlvr=3", "rlvr: expected a section"), ("rlvr=[]", "rlvr: expected a section"), ("rlvr={}", "rlvr={}: an empty section in place of rlvr"), ("sft=null", "sft: a fresh model must be trained"), ("curate=null", "curate: this field is required. Add the section"),
    ("evaluate=null", Accepted("evaluate", None)), ("evaluate.tasks.0=x", Accepted("evaluate.tasks.0.name", "x")), ("rlvr.keep.x=1", "rlvr.keep: no such field"), ("rlvr.keep=all_rows", "rlvr.keep: no such field"),
    ("rlvr.deliver=best", "rlvr.deliver: no such field"), ("sft.deliver=best", "sft.deliver: no such field"), ("rlvr.compose=fresh", "rlvr.compose: no such field"),
    ("curate.splits.train=2", SHARES), ("curate.splits.../../x=0.1", "--set curate.splits"), ("curate.splits={'../../x': 1.0}", "curate.splits"), ("rlvr.optimizer.betas=[0.9, .nan]", "nan is not a finite"), ("rlvr.optimizer.betas.0=0.5", "rlvr.optimizer.betas"),
    ("seed=18446744073709551616", r"--set seed: .*larger than 2\*\*63"), ("seed=-0", Accepted("seed", 0)), ("seed=1.0", Accepted("seed", 1)), ("threads=null", Accepted("threads", None)), ("name=on", "name:"), ("name=2026-01-01", Accepted("name", "2026-01-01")),
    ("rlvr.sampler.url='http://ann:pw@host'", "rlvr.sampler.url: the address holds a user name or password"), ("model.path=http://h/?" + "key" * 33_000, "model"),
    ("name=1:30", "name:"), ("name=~", "name:"), ("name=- a", "name:"), ("name=a #b", Accepted("name", "a")), ("model.path=", Accepted("model.path", None)), ("__class__=1", "__class__: no such field"), ("rlvr.__class__.__init__=1", "rlvr.__class__: no such field"),
    ("rlvr.model_config=1", "rlvr.model_config: no such field"), ("rlvr.prompts=100000 rlvr.group_size=10000", "rollouts a step"), ("rlvr.prompts=4096 rlvr.group_size=2048", "rollouts a step"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(OVERRIDES)), ids=lambda i: f"{i}-{OVERRIDES[i][0][:30]!a}")
def test_overrides(number, tmp_path):
    text, expected = OVERRIDES[number]
    judge(toys.recipe(tmp_path), re.split(r" (?=rlvr\.)", text), expected)


def staged(folder):
    """A recipe with a stage of each kind."""
    body = yaml.safe_load(toys.recipe(folder).read_text())
    curate, sft, rlvr, evaluate = (body.pop(name) for name in ("curate", "sft", "rlvr", "evaluate"))
    drawn = {"kind": "stage", "path": "drafts", "select": {"kind": "pairs", "pair": "random"}}
    body["stages"] = {
        "data": {"kind": "curate", **curate}, "cold": {"kind": "sft", "data": "data", **sft},
        "drafts": {"kind": "sample", "data": "data", "model": "cold", "k": 4, "sampling": {"max_tokens": 8}},
        "pairs": {"kind": "curate", "sources": [drawn], "splits": {"train": 0.9, "heldout": 0.1}},
        "scorer": {"kind": "reward_model", "data": "pairs", "model": "cold", "epochs": 1, "max_length": 64},
        "dpo": {"kind": "preference", "data": "pairs", "model": "cold", "epochs": 1, "max_length": 64},
        "rl": {"kind": "rlvr", "data": "data", "model": "cold", **rlvr},
        "avg": {"kind": "merge", "models": ["rl", "dpo"]}, "scores": {"kind": "evaluate", **evaluate},
    }  # fmt: skip
    path = folder / "staged.yaml"
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    return path


LAKE = "{kind: environment, task: frozen_lake, size: 9}"
MISTAKES: list[tuple[list[str], str]] = [
    (["rlvr.reward=[verifier, {kind: verifier, name: f, verifier: regex, answer: '(a'}]"], r"rlvr.reward.terms.1: .*unterminated subpattern"),
    (["rlvr.reward={kind: verifier, verifier: regex, answer: a, info: {mode: full}}"], "rlvr.reward: .*neither fullmatch nor search"),
    (["rlvr.reward={kind: verifier, verifier: overlap, info: {metric: bleu}}"], "rlvr.reward: .*metric 'bleu' is none of em"),
    (["rlvr.reward={kind: verifier, verifier: number, answer: seven}"], "rlvr.reward: .*'seven' is no number"),
    (["rlvr.reward={kind: verifier, verifier: staged, info: {weights: [1]}}"], "rlvr.reward: .*weights are five numbers"),
    (["curate.sources.0.prompt_template='{prompt} {qestion}'"], r"curate.sources.0: prompt_template: \{qestion\} would stand"),
    (["curate.sources.0.prompt_template='{prompt} for {metadata}'"], r"prompt_template: \{metadata\} would stand"),
    (["curate.sources.0.prompt_template='palindrome {metadata.letters'"], r"prompt_template: a brace is without its other half: '\{metadata.letters'"),
    (["curate.sources.0.prompt_template='{prompt}} now'"], r"prompt_template: a brace is without its other half: '\} now'"),
    (["curate.sources.0.prompt_template='{metadata.letters:>9999999999}'"], r"prompt_template: \{metadata.letters:>9999999999\} would stand"),
    (["curate.sources.0.prompt_template='{prompt!r}'"], r"prompt_template: \{prompt!r\} would stand"),
    (["curate.sources.0.prompt_template='{ prompt }'"], r"prompt_template: \{ prompt \} would stand"),
    (["curate.sources.0.prompt_template='{prompt} {}'"], r"prompt_template: \{\} would stand"),
    (["curate.sources.0.prompt_template='{{prompt}}'"], r"prompt_template: double braces"),
    (["curate.sources.0.prompt_template='{metadata.letters[0]}'"], r"prompt_template: \{metadata.letters\[0\]\} would stand"),
    (["curate.sources.0.path=x.jsonl"], "curate.sources.0: path is read of sources of kind file"),
    (["curate.sources=[{kind: file, path: x.jsonl, task: a}]"], "curate.sources.0: task is read of sources of kind reasoning_gym"),
    (["curate.sources=[{kind: file, path: x.jsonl, config: {a: 1}}]"], "curate.sources.0: config is read of"),
    (["curate.sources=[{kind: file, path: x.jsonl, revision: main}]"], "curate.sources.0: revision is read of sources of kind hub"),
    (["curate.sources=[{kind: hub, path: a/b, subset: main}]"], "curate.sources.0.subset: no such field. It is called name here"),
    (["model.revision=main"], "model: revision is about the files of `path`"),
    (["model.fresh.hidden_size=32"], "model.fresh.hidden_size: no such field. Settings of the architecture stand in `config`"),
    (["sft.lr=1e-4"], "sft.lr: no such field. It is sft.optimizer.learning_rate"),
    (["sft.learning_rate=1e-4"], "It is sft.optimizer.learning_rate"),
    (["sft.optimizer.lr=1e-4"], "sft.optimizer.lr: no such field. It is called learning_rate here"),
    (["sft.warmup_steps=3"], "It is sft.optimizer.warmup"),
    (["sft.batch_size=8"], "It is counted in tokens: `tokens_per_step`"),
    (["rlvr.sampler={serve: true}", "rlvr.lora={use_dora: true}"], "rlvr.lora.use_dora: adapters are pushed to a decoding server"),
    (["sft.lora={r: 8}"], "sft.lora.r: no such field. It is called rank here"),
    (["sft.weights={gsm8k: 0.5}"], "sft.weights: train has no records of a source 'gsm8k'"),
    (["sft.mixture={gsm8k: 0.5}"], "sft.mixture: train has no records of a source 'gsm8k'. Known: palindrome_generation"),
    (["sft.heldout=train"], "sft.heldout: train is what the stage trains on"),
    (["rlvr.batch_size=64"], "rlvr.batch_size: no such field. A step has `prompts` problems"),
    (["rlvr.kl=0.01"], "rlvr.kl: no such field. Write divergence"),
    (["rlvr.beta=0.01"], "rlvr.beta: no such field. Write divergence"),
    (["rlvr.algorithm=grpo"], r"rlvr.algorithm: no such field. Name a preset \(presets: \[grpo\]\)"),
    (["rlvr.temperature=1"], "It is rlvr.sampling.temperature"),
    (["rlvr.max_new_tokens=64"], "It is rlvr.sampling.max_tokens"),
    (["rlvr.num_generations=8"], "It is called group_size here"),
    (["rlvr.by_source={gsm8k: {group_size: 4}}"], "rlvr.by_source: train has no records of a source 'gsm8k'. Known: palindrome_generation"),
    (["rlvr.by_source={palindrome_generation: {temperature: 1}}"], "temperature: no such field. Known: divergence, group_size, max_tokens, objective, rollout"),
    (["rlvr.by_source={palindrome_generation: {group_size: 1}}"], "a group of 1 has nothing to compare with"),
    (["rlvr.reward=[{kind: verifier, sources: [gsm8k]}]"], "rlvr.reward.terms.0.sources: train has no records of a source 'gsm8k'"),
    (["rlvr.window=8"], r"rlvr.window: 8 is not below sampling.max_tokens \(8\)"),
    (["rlvr.divergence={kind: k3, weight: -1}"], "rlvr.divergence.weight: -1 pays the policy"),
    (["rlvr.rollout=multi_turn"], "rlvr.rollout: multi_turn plays episodes, and the problems of curate.sources.0"),
    ([f"curate.sources=[{LAKE}]"], "rlvr.rollout: single_turn asks for single answers"),
    (["rlvr.curriculum=self_curation", "rlvr.prompting=prefix_rl"], "prompting: prefix_rl begins it with a part of the solution"),
    (["rlvr.curriculum=self_curation", "rlvr.rollout=spae"], "rollout: spae probes its steps"),
    (["rlvr.rollout=noisy", "rlvr.advantage=reinforce_pp", "rlvr.reward=[verifier, {kind: drlc, model: m}]"], "drlc reads the tokens that the policy chose"),
    (["rlvr.reward={kind: function, path: my_rewards}"], r"rlvr.reward.path: .*package.module:function"),
    (["rlvr.reward={kind: judge, model: m, api_key_env: sk-1}"], r"rlvr.reward.api_key_env: .*OPENAI_API_KEY"),
    (["rlvr.reward=[]"], "rlvr.reward: the list is empty"),
    (["rlvr.reward=[{kind: verifier, weight: high}]"], "rlvr.reward.terms.0.weight: .*number"),
    (["rlvr.reward=[verifier, {kind: verifier, name: b, gate: {term: verifier}}]"], "terms.1.gate: say at_least, at_most or both"),
    (["evaluate.tasks=[{name: palindromes, k: 8}]"], "evaluate.tasks.0.k: no such field. It is called samples here"),
    (["evaluate.tasks=[{name: palindromes, temperature: 1}]"], r"Write sampling: \{temperature"),
    (["evaluate.tasks=[{name: palindromes, sampling: {temperatur: 1}}]"], "sampling.temperatur: no such setting. Did you mean 'temperature'"),
    (["evaluate.tasks=[{name: palindromes, sampling: {top_p: high}}]"], "sampling.top_p: a number is wanted"),
    (["evaluate.tasks=[{name: palindromes, samples: 4, sampling: {temperature: 0}}]"], "at temperature 0 all 4 answers"),
    (["evaluate.tasks=[{name: a, environment: {task: frozen_lake}, few_shot: 3}]"], "a.few_shot: episodes of an environment do not"),
    (["evaluate.tasks=[{name: a, environment: {task: frozen_lake}, sampling: {top_p: 1}}]"], "a.sampling: episodes of an environment"),
]  # fmt: skip
STAGED: list[tuple[list[str], str]] = [
    (["cold.lr=1"], "cold.lr: no such field. It is cold.optimizer.learning_rate"),
    (["cold.heldout=train"], "cold.heldout: train is what the stage trains on"),
    (["cold.split=test"], "cold.split: data makes no split called 'test'"),
    (["cold.heldout=test"], "cold.heldout: data makes no split called .test.*Or set heldout: null"),
    (["cold.model=rl"], "stages: cold reads rl reads cold: a circle"),
    (["drafts.episodes={max_turns: 4}"], r"drafts.episodes: the stage plays episodes, and the problems of data.sources.0 \(palindrome"),
    ([f"data.sources=[{LAKE}]", "rl.rollout=multi_turn"], "drafts.k: the stage asks for single answers, and the problems of data.sources.0"),
    ([f"data.sources=[{LAKE}]", "drafts.episodes={}"], "pairs.sources.0.select: drafts plays episodes"),
    (["drafts.sampling.temperature=0"], "drafts.sampling.temperature: at 0 all 4 completions"),
    (["drafts.n=4"], "drafts.n: no such field. It is called k here"),
    (["pairs.sources.0.select={kind: best, by: judge}"], r"pairs.sources.0.select: judge .* Set self_judge: \{\} in drafts"),
    (["pairs.sources.0.select={kind: pairs, by: reward_model}"], "select: reward_model .* Set reward_model: STAGE in drafts"),
    (["pairs.sources.0.select={kind: pairs, pair: ranked, factors: [log_ratio]}"], "Set reference: STAGE in drafts"),
    (["pairs.sources.0.select=correct"], r"(scorer|dpo).data: pairs.sources.0 \(drafts\) makes no pairs"),
    (["dpo.data=data"], r"dpo.data: data.sources.0 \(palindrome_generation\) makes no pairs of answers"),
    (["scorer.data=data"], "scorer.data: data.sources.0 .* makes no pairs of answers"),
    (["dpo.beta=0.1"], "dpo.beta: no such field. It is a setting of the loss"),
    (["dpo.batch_size=8"], "dpo.batch_size: no such field. It is `pairs_per_step`"),
    (["rl.reward={kind: model, model: scorer, user: ann}"], "rl.reward.model: scorer knows no users"),
    (["rl.reward={kind: model, model: scorr}"], "rl.reward.model: there is no stage called 'scorr'. Did you mean 'scorer'"),
    (["rl.samples=drafts"], "rl.samples: the rollout single_turn draws its own"),
    (["avg.density=0.5"], "avg.density: is read by ties, and the method is linear"),
    (["avg.scale=2"], "avg.scale: is read by task_arithmetic and ties"),
    (["avg.origin=cold"], "avg.origin: is read by task_arithmetic and ties"),
    (["scores.models=[rl, colt]"], "scores.models: there is no stage called 'colt'. Did you mean 'cold'"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=lambda i: f"{i}-{MISTAKES[i][0][-1][:40]!a}")
def test_typical_mistakes(number, tmp_path):
    overrides, expected = MISTAKES[number]
    judge(toys.recipe(tmp_path), overrides, expected)


@pytest.mark.parametrize("number", range(len(STAGED)), ids=lambda i: f"{i}-{STAGED[i][0][-1][:40]!a}")
def test_typical_mistakes_of_named_stages(number, tmp_path):
    overrides, expected = STAGED[number]
    judge(staged(tmp_path), overrides, expected)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["avg.method=ties", "avg.origin=cold", "avg.density=0.5"],
        ["pairs.sources.0.select={kind: pairs, by: judge}", "drafts.self_judge={}"],
        ["rl.reward={kind: model, model: scorer}"],
        ["rl.window=0.5", "rl.reward={kind: verifier, verifier: grades, info: {low: 3}}"],
        ["data.sources.0.prompt_template='{prompt} in \\boxed{answer}, {{x}} { x } x_{i}'"],
        ["drafts.sampling.temperature=0", "drafts.k=1"],
        ["scores.tasks.0.sampling={num_beams: 2, max_new_tokens: 8}"],
    ],
    ids=str,
)
def test_what_only_looks_like_a_mistake_is_accepted(overrides, tmp_path):
    check(read_recipe(staged(tmp_path), overrides))


def test_the_last_override_of_a_field_counts(tmp_path):
    recipe = read_recipe(toys.recipe(tmp_path), ["presets=dapo", "rlvr.steps=3", "presets=dr_grpo", "rlvr.steps=5"])
    assert recipe.presets == ["dr_grpo"] and recipe.rlvr.steps == 5


def test_paths_that_are_no_recipe(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, expected in (
        (tmp_path, "is a folder"),
        (tmp_path / "fifo", "not a regular file"),
        (tmp_path / "link", "no such file"),
        (tmp_path / "loop", "cannot be read"),
        (tmp_path / ("x" * 300), "cannot be read"),
        (str(tmp_path / "a\0b"), "cannot be read"),
        (tmp_path / "none.yaml" / "x", "no such file"),
        ("/dev/zero", "not a regular file"),
        ("", "is a folder"),
    ):
        judge(path, [], expected)


def test_aliases_do_not_share_what_an_override_changes(tmp_path):
    path = toys.recipe(tmp_path)
    body = yaml.safe_load(path.read_text())
    shared = {"learning_rate": 0.001}
    body["sft"]["optimizer"] = body["rlvr"]["optimizer"] = shared
    path.write_text(yaml.safe_dump(body))
    assert "&id" in path.read_text()
    recipe = read_recipe(path, ["rlvr.optimizer.learning_rate=0.5"])
    assert recipe.sft.optimizer.learning_rate == 0.001 and recipe.rlvr.optimizer.learning_rate == 0.5


def test_enough_was_tried():
    assert len(FILES) + len(CHANGES) + len(OVERRIDES) + len(MISTAKES) + len(STAGED) >= 300


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    return [path, *(p for k, v in inner for p in places(v, (*path, k)))]


BASE = {p.stem: yaml.safe_load(p.read_text()) for p in sorted((toys.ROOT / "recipes").glob("*.yaml"))}
SPOTS = [(name, path) for name, body in BASE.items() for path in places(body) if path]
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20),
    st.sampled_from(["nan", "inf", "grpo", "../x", "true", "0", "-1", "1e5", "~", "kind", "[", "{}", "\0", "a\nb", 0, 1, -1, 2**31, 2**63, 1e308]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.sampled_from(SPOTS), values), min_size=1, max_size=3),
    name=st.sampled_from(sorted(BASE)),
)
def test_any_value_anywhere(changes, name, tmp_path):
    body = copy.deepcopy(BASE[name])
    for (owner, path), value in changes:
        here: Any = body
        try:
            for key in path[:-1]:
                here = here[key]
            here[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
        assert owner in BASE
    path = tmp_path / "mutated.yaml"
    path.write_text(yaml.safe_dump(body), encoding="utf-8", errors="surrogatepass")
    began = time.process_time()
    try:
        check(read_recipe(path))
    except RecipeError as error:
        assert str(error).strip()
    assert time.process_time() - began < SECONDS


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    raw=st.one_of(
        st.binary(max_size=60),
        st.text(alphabet="ab:-[]{}&*!|>%@`\"'\n\t ,?#~<1.", max_size=60).map(lambda t: t.encode()),
    )
)
def test_any_bytes(raw, tmp_path):
    path = tmp_path / "raw.yaml"
    path.write_bytes(raw)
    with pytest.raises(RecipeError):
        read_recipe(path)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    field=st.lists(
        st.sampled_from(
            [
                "rlvr",
                "sft",
                "steps",
                "advantage",
                "0",
                "shaping",
                "tasks",
                "evaluate",
                "curate",
                "sources",
                "x",
                "",
                "kind",
            ]
        ),
        min_size=1,
        max_size=5,
    ),
    text=st.text(alphabet="ab:-[]{}&*!|>\"'\n ,?#~1.", max_size=20),
)
def test_any_override(field, text, tmp_path):
    path = tmp_path / "toy.yaml"
    if not path.exists():
        toys.recipe(tmp_path)
    try:
        read = read_recipe(path, [f"{'.'.join(field)}={text}"])
        check(read)
    except RecipeError as error:
        assert any(part in str(error) for part in (*filter(None, field), f"{'.'.join(field)}={text}"[:60])), str(error)
    else:
        assert field[0] in type(read).model_fields
