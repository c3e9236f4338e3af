"""The code speaks the field's words: identifiers of our old dialect are refused, room by room."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import toys

DIALECT = {
    "flat": "zero_variance", "silent": "zero_advantage", "fresh": "on_policy", "counted": "scored",
    "given": "teacher_forced", "said": "completion, log_prob or extract_answer", "slopes": "cached gradients",
    "tempers": "adaptive_temperature", "nature": "normalised_entropy", "allot": "allocate", "notice": "on_rollouts",
    "mix": "inject", "apart": "normalise_separately", "prior": "system_prompt", "dealt": "sharded", "deal": "shard",
    "debt": "outbox", "owed": "pending", "settle": "flush", "deliver": "checkpoint_selection", "mend": "fix or hint",
    "keep": "filter", "compose": "replay", "bonus": "auxiliary_loss", "reduce": "loss_aggregation",
    "right": "correct", "wrong": "incorrect", "lake": "frozen_lake or env", "beginning": "shared_prefix", "behind": "after, given",
}  # fmt: skip
"""word → the field's word; names of functions, classes, arguments, attributes and variables."""
VAGUE = ("one", "made", "found", "mine", "more", "seen", "theirs", "ours", "whole", "numbers", "purpose", "further")
"""Names that do not say what they hold."""
ALLOWED = {
    "flows/post_training.py": {"fresh"},  # the parameter behind `--fresh`
    "flows/stages.py": {"fresh"},
    "flows/sweep_flow.py": {"fresh"},
    "tasks/prefect_tasks.py": {"fresh"},
    "tasks/stages.py": {"fresh"},
    "tasks/sweep/plan.py": {"fresh"},
    "pipelines/recipe/settings.py": {"fresh"},  # the recipe's `model.fresh`
    # settings that recipes and golden files name
    "pipelines/papers/w_reinforce.py": {"right", "wrong"},
    "pipelines/papers/reason_maxxer.py": {"right", "wrong"},
    "pipelines/papers/v0_budget.py": {"prior"},
    "pipelines/papers/vade.py": {"keep"},
    "pipelines/papers/cosine_length.py": {"right", "wrong"},
    "pipelines/papers/laser.py": {"bonus"},
}
"""file → words that are right there."""
PROSE = {
    r"as ever\b": "as usual", r"anew\b": "again", r"goes on\b": "continues", r"held against": "compared with",
    r"stands? over": "overrides", r"by the (processor|clock)": "in CPU time, in wall-clock time", r"is told\b": "gets",
    r"nothing else at work": "nothing else running", r"in front of (the|a|an) (model|policy|action|turn)": "before",
    r"lets? expect": "expected", r"shortest ways": "shortest paths", r"\bmade anew": "made again", r"the lake\b": "FrozenLake",
}  # fmt: skip
"""phrase of our dialect → plain English; in the pages that are written by hand and in the headers of recipes."""
KEPT = {"recipes/process_model.yaml": {"goes on"}}
GENERATED = {"methods.md", "systems.md", "columns.md", "settings.md", "CHANGELOG.md"}
PAGES = [
    str(p.relative_to(toys.ROOT))
    for pattern in ("*.md", "docs/*.md", "recipes/*.yaml")
    for p in sorted(toys.ROOT.glob(pattern))
    if p.name not in GENERATED
]
ROOMS = ("flows", "tasks", "evaluation", "pipelines")
FILES = [str(p.relative_to(toys.ROOT)) for room in ROOMS for p in sorted((toys.ROOT / room).rglob("*.py"))]


def names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every name that the module gives to something, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def refused(source: str, allowed: set[str]) -> list[str]:
    """Lines that say what is wrong, one a name."""
    lines = []
    for name, line in names(ast.parse(source)):
        word = name.strip("_").lower()
        if word in allowed:
            continue
        if word in DIALECT:
            lines.append(f"line {line}: {name} is dialect for {DIALECT[word]}")
        elif word in VAGUE:
            lines.append(f"line {line}: {name} does not say what it holds")
    return lines


@pytest.mark.parametrize("path", FILES)
def test_names_are_the_field_s(path):
    assert refused((toys.ROOT / path).read_text(), ALLOWED.get(path, set())) == []


def test_the_check_sees_every_kind_of_name():
    source = "def _said(given, *more):\n    mine: int = 1\n    self.owed, x = 1, 2\n    return [one for one in x]\nclass Mix: pass\n"
    assert {line.split()[2] for line in refused(source, set())} == {
        "_said",
        "given",
        "more",
        "mine",
        "owed",
        "one",
        "Mix",
    }
    assert refused(source, {"said", "given", "more", "mine", "owed", "one", "mix"}) == []


def test_exceptions_are_still_needed():
    for path, words in ALLOWED.items():
        used = {name.strip("_").lower() for name, _ in names(ast.parse((toys.ROOT / path).read_text()))}
        assert words <= used, f"{path} needs no exception any more for {words - used}"


@pytest.mark.parametrize("path", PAGES)
def test_prose_is_plain(path):
    text = re.sub(r"\s+#?\s*", " ", (toys.ROOT / path).read_text())
    dialect = {match[0]: plain for phrase, plain in PROSE.items() for match in re.finditer(rf"\b{phrase}", text)}
    assert dialect.keys() <= KEPT.get(path, set())


def test_every_word_of_the_glossary_stands_once():
    lines = (Path(toys.ROOT) / "docs" / "glossary.md").read_text().splitlines()
    terms = [line.split("|")[1].strip().lower() for line in lines if line.startswith("| **")]
    assert len(terms) > 40 and len(terms) == len(set(terms))
