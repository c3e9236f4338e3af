"""`whetstone rubric RECIPE FILE`: draft a rubric from preference pairs, and say how well the judge reproduces the others by it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flows import labelled
from flows.judge import rlvr_stage
from pipelines.errors import RecipeError


def add(commands: Any) -> None:
    """The command's options."""
    text = (
        "draft a rubric from preference pairs with the judge of a recipe, and measure it on pairs that it has not seen"
    )
    rubric = commands.add_parser("rubric", help=text, description=text)
    rubric.add_argument("recipe", help="a YAML file of which an rlvr stage's reward is an auto_rubric with a judge")
    rubric.add_argument("--stage", metavar="NAME", help="which rlvr stage's judge, where the recipe has several")
    rubric.add_argument("file", metavar="FILE", help="JSONL rows {prompt, chosen, rejected}")
    rubric.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="a field of the recipe")
    rubric.add_argument(
        "--rounds", type=int, default=3, help="how often the criteria of a pair are written (default: 3)"
    )
    rubric.add_argument("--each", type=int, default=3, help="criteria of a pair (default: 3)")
    rubric.add_argument("--most", type=int, default=12, help="criteria that are left (default: 12)")


def command(arguments: argparse.Namespace) -> int:
    """Draft from the first half of the pairs, measure on the second, and print YAML for `rlvr.reward.criteria`."""
    from pipelines.contract.catalogue import bind
    from pipelines.judges import drafting
    from pipelines.judges.pairwise import PairwiseJudge
    from pipelines.recipe.read import read_recipe

    recipe = read_recipe(arguments.recipe, arguments.set)
    stage = rlvr_stage(recipe, arguments.stage)
    judge = getattr(bind("rlvr.reward", recipe.node(stage).settings.reward).fn, "judge", None)
    if not isinstance(judge, PairwiseJudge):
        raise RecipeError(
            f"{stage}.reward: no judge of pairs. Set {{kind: auto_rubric, judge: {{model: ..., url: ...}}}}."
        )
    pairs = _pairs(Path(arguments.file))
    half = (len(pairs) + 1) // 2
    draft = drafting.draft(judge, pairs[:half], rounds=arguments.rounds, each=arguments.each, most=arguments.most)
    print("criteria:")
    for criterion, support in zip(draft.criteria, draft.support, strict=True):
        print(f"  - {json.dumps(criterion, ensure_ascii=False)}  # {support} of {half} pairs")
    print(f"# {draft.kept} pairs reproduced by criteria of their own, {draft.discarded} discarded")
    if len(pairs) > half:
        for name, criteria in (("without criteria", []), ("with them", draft.criteria)):
            agreed, undecided = drafting.agreement(judge, pairs[half:], criteria)
            print(f"# {name}: {agreed:.3f} of {len(pairs) - half} other pairs as labelled, {undecided:.3f} undecided")
    return 0


def _pairs(path: Path) -> list[Any]:
    return labelled.read(path, _pair, "{prompt, chosen, rejected}")


def _pair(number: int, row: dict[str, Any]) -> Any:
    from pipelines.data.records import Problem

    texts = [row["chosen"], row["rejected"]]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("chosen and rejected are texts")
    prompt = labelled.conversation(row["prompt"])
    problem = Problem(uid=str(number), prompt=prompt, answer="", verifier="exact", source="file", licence="unknown")
    return problem, *texts
