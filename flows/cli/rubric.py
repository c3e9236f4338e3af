"""`whetstone rubric RECIPE FILE`: draft a rubric from preference pairs, and say how well the judge reproduces the others by it.

With `--refine` the rubric of a judge, or each problem's own, gets criteria that tell the best answers of a problem apart.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flows.cli import labelled
from flows.cli.arguments import integer
from flows.cli.judge import connected_judge, rlvr_stage
from pipelines.base.errors import DataError, RecipeError, UserError


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("recipe", help="a YAML file of which an rlvr stage's reward is an auto_rubric with a judge")
    parser.add_argument("--stage", metavar="NAME", help="which rlvr stage's judge, where the recipe has several")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="JSONL rows {prompt, chosen, rejected}; to refine, {prompt, answers, rubric?} or a sample stage's folder",
    )
    parser.add_argument(
        "--refine",
        action="store_true",
        help="add criteria to a judge's rubric where it cannot tell the two best answers apart",
    )
    parser.add_argument(
        "--own", metavar="OUT", help="refine: each problem's rubric on its own, as JSONL {prompt, rubric}"
    )
    parser.add_argument("--term", metavar="NAME", help="refine: which judge, where the reward has several")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="a field of the recipe")
    parser.add_argument(
        "--rounds",
        type=integer(1),
        metavar="N",
        help="how often the criteria of a pair are written (default: 3; to refine, 4)",
    )
    parser.add_argument("--each", type=integer(1), default=3, metavar="N", help="criteria of a pair (default: 3)")
    parser.add_argument(
        "--most",
        type=integer(1),
        default=12,
        metavar="N",
        help="criteria that are left, or added (default: 12)",
    )


def command(arguments: argparse.Namespace) -> int:
    """Draft from the first half of the pairs, measure on the second, and print YAML for `rlvr.reward.criteria`."""
    from pipelines.contract.catalogue import bind
    from pipelines.judges import drafting
    from pipelines.judges.pairwise import PairwiseJudge
    from pipelines.recipe.read import read_recipe

    recipe = read_recipe(arguments.recipe, arguments.set)
    stage = rlvr_stage(recipe, arguments.stage)
    if arguments.refine:
        return refine(recipe, stage, arguments)
    if arguments.own or arguments.term:
        raise UserError("--own, --term", "they belong to --refine.")
    judge = getattr(bind("rlvr.reward", recipe.node(stage).settings.reward).fn, "judge", None)
    if not isinstance(judge, PairwiseJudge):
        raise RecipeError(
            f"{stage}.reward", "no judge of pairs", "Set {kind: auto_rubric, judge: {model: ..., url: ...}}."
        )
    pairs = _pairs(Path(arguments.file))
    half = (len(pairs) + 1) // 2
    draft = drafting.draft(judge, pairs[:half], rounds=arguments.rounds or 3, each=arguments.each, most=arguments.most)
    print("criteria:")
    for criterion, support in zip(draft.criteria, draft.support, strict=True):
        print(f"  - {json.dumps(criterion, ensure_ascii=False)}  # {support} of {half} pairs")
    print(f"# {draft.kept} pairs reproduced by criteria of their own, {draft.discarded} discarded")
    if len(pairs) > half:
        for name, criteria in (("without criteria", []), ("with them", draft.criteria)):
            agreed, undecided = drafting.agreement(judge, pairs[half:], criteria)
            print(f"# {name}: {agreed:.3f} of {len(pairs) - half} other pairs as labelled, {undecided:.3f} undecided")
    return 0


def refine(recipe: Any, stage: str, arguments: argparse.Namespace) -> int:
    """Refine a rubric, and print it with the share of the problems whose two best answers it tells apart, before and after.

    A shared rubric is refined on the first half of the problems and measured on the others too.
    """
    from pipelines.judges.questions import rubric_of
    from pipelines.judges.refining import Rubrics, refine

    judge = connected_judge(recipe, stage, arguments.term)
    if judge.form != "rubric":
        raise RecipeError(f"{stage}.reward.form", f"{judge.form} has no criteria to refine", "Set form: rubric.")
    candidates = _candidates(Path(arguments.file))
    shown = {"instruction": judge.instruction, "reference": judge.reference}
    own = [list(rubric_of(each.problem, judge.criteria)) for each in candidates] if arguments.own else []
    if not own and not judge.criteria:
        raise RecipeError(f"{stage}.reward.criteria", "there are none to refine", "Give a first one, or --own OUT.")
    shared = list(judge.criteria)
    limits = {"rounds": arguments.rounds or 4, "each": arguments.each, "most": arguments.most}
    half = len(candidates) if own else (len(candidates) + 1) // 2
    parts = [candidates[:half], candidates[half:]]
    rubrics = [Rubrics(judge.asker, part, own or [shared] * len(part), shown) for part in parts if part]
    before = [part.separated() for part in rubrics]
    size = len(shared)
    history = refine(rubrics[0], shared=not own, **limits)
    after = [part.separated() for part in rubrics]
    if own:
        rows = [
            {"prompt": each.problem.prompt, "rubric": [c.model_dump() for c in rubric]}
            for each, rubric in zip(candidates, own, strict=True)
        ]
        Path(arguments.own).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    else:
        print("criteria:")
        for place, criterion in enumerate(shared):
            words = json.dumps(criterion.criterion, ensure_ascii=False)
            print(f"  - {{criterion: {words}, weight: {criterion.weight:g}}}{'  # new' if place >= size else ''}")
    for name, (share, count), (then, _) in zip(("refined on", "others"), before, after, strict=False):
        print(f"# {name}: the two best answers told apart in {share:.3f} of {count} problems before, {then:.3f} after")
    print("# " + (", ".join(f"{pairs} pairs: {added} new" for pairs, added in history) or "nothing is tied"))
    return 0


def _candidates(path: Path) -> list[Any]:
    """Problems with their answers, equal ones once.

    Raises:
        DataError: names the line and the fix.
    """
    from pipelines.data import samples
    from pipelines.data.dataset import SCHEMA, from_row
    from pipelines.judges.refining import Candidates

    if not path.is_dir():
        return labelled.read(path, _candidate, "{prompt, answers} with two answers or more, answer? and rubric?")
    folder = path.parent if path.name == samples.FOLDER else path
    groups = samples.by_problem(folder, [*SCHEMA, "text", "stop"])
    candidates = [
        Candidates(from_row(rows[0]), list(dict.fromkeys(row["text"] for row in rows if row["stop"] != "error")))
        for rows in groups
    ]
    several = [each for each in candidates if len(each.answers) > 1]
    if not several:
        raise DataError(path, "no problem has two different completions", "Draw more, or at a higher temperature.")
    return several


def _candidate(number: int, row: dict[str, Any]) -> Any:
    from pipelines.data.records import Problem
    from pipelines.judges.refining import Candidates

    answers = row["answers"]
    if not isinstance(answers, list) or len(answers) < 2 or not all(isinstance(text, str) for text in answers):
        raise ValueError("answers are two texts or more")
    info = {"rubric": row["rubric"]} if row.get("rubric") is not None else {}
    problem = Problem(
        uid=str(number), prompt=labelled.conversation(row["prompt"]), answer=str(row.get("answer", "")), verifier="exact", source="file",
        licence="unknown", info=info,
    )  # fmt: skip
    return Candidates(problem, list(dict.fromkeys(answers)))


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
