"""Names and prose use the field's words, not the dialect that the project once had."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from scripts.lint.tree import PACKAGES, ROOT, sources

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
    "tasks/pipeline.py": {"fresh"},
    "tasks/prefect_tasks.py": {"fresh"},
    "tasks/stages.py": {"fresh"},
    "tasks/sweep/plan.py": {"fresh"},
    "pipelines/contract/model_settings.py": {"fresh"},  # the recipe's `model.fresh`
    "whetstone_rlvr/plans.py": {"fresh"},
    "whetstone_rlvr/runs.py": {"fresh"},
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
GENERATED = {"api.md", "methods.md", "systems.md", "claims.md", "columns.md", "settings.md", "CHANGELOG.md"}
GENERATED |= {f"coming-from{trainer}.md" for trainer in ("", "-trl", "-open-r1", "-verl", "-axolotl")}


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


def pages() -> Iterator[str]:
    """Pages that are written by hand, and recipes, whose headers are prose too."""
    for pattern in ("*.md", "docs/*.md", "recipes/*.yaml"):
        yield from (str(p.relative_to(ROOT)) for p in sorted(ROOT.glob(pattern)) if p.name not in GENERATED)


def dialect(text: str) -> dict[str, str]:
    """Phrases of the text that are dialect, and what to write in their place."""
    plain = re.sub(r"\s+#?\s*", " ", text)
    return {match[0]: better for phrase, better in PROSE.items() for match in re.finditer(rf"\b{phrase}", plain)}


def check() -> Iterator[str]:
    """Names in the packages, prose in the pages, exceptions that nothing needs any more, terms that the glossary has twice."""
    for path in sources(PACKAGES):
        name = str(path.relative_to(ROOT))
        source, allowed = path.read_text(), ALLOWED.get(name, set())
        yield from (f"{name}: {line}" for line in refused(source, allowed))
        if allowed:
            unused = allowed - {name.strip("_").lower() for name, _ in names(ast.parse(source))}
            yield from (f"{name}: the exception for {word!r} is not needed" for word in sorted(unused))
    yield from (f"scripts/lint/words.py: {name} is gone" for name in ALLOWED if not (ROOT / name).exists())
    for page in pages():
        for phrase, better in dialect((ROOT / page).read_text()).items():
            if phrase not in KEPT.get(page, set()):
                yield f"{page}: {phrase!r}; plain English: {better}"
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    terms = Counter(line.split("|")[1].strip().lower() for line in lines if line.startswith("| **"))
    yield from (f"docs/glossary.md: {term} stands {count} times" for term, count in terms.items() if count > 1)
