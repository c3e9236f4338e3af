"""Records out of the completions of a sample stage: the source `kind: stage`."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from pipelines import verifiers
from pipelines.base.errors import DataError
from pipelines.curate import labelled, preferred, ranked, segments
from pipelines.curate.cells import DIVIDED, ORIGIN, text_key
from pipelines.data import chat, dataset, pairs, samples, steps
from pipelines.data.records import EFFORT, Problem
from pipelines.recipe.selection import Selection

Completion = dict[str, Any]
"""A row of the samples."""
COLUMNS = (*dataset.SCHEMA, "sample", "text", "score", "correct", "stop", "completion_ids")
VOTING = ("math", "number", "choice", "exact")
"""Verifiers that compare an extracted answer with the record's, so that a vote can stand in its place."""


def problems(folder: Path, select: Selection, seed: int) -> Iterator[Problem]:
    """Records of the selection, a problem's completions in memory at a time.

    Args:
        folder: the artifact of a sample stage.
        seed: of random pairs; a pair depends on it and on the problem only.

    Returns:
        records whose `info` has `pass_rate`, `sampled_from`, and `solution` and `sample_score`, or `chosen`, `rejected` and their scores.
        Their uid depends on the problem and the texts; `select.kind: pass_rate` gives the problem with its own uid.

    Raises:
        DataError: there are no samples, or a majority is asked of a verifier that compares no answers.
    """
    if select.nearest is not None or select.kind == "prompts":
        if select.kind == "prompts":
            from pipelines.curate import written

            yield from written.problems(folder, select)
        else:
            yield from _nearest(folder, select)
        return
    names = {select.by, *(factor.name for factor in select.factors)} - set(ranked.OF_ROWS)
    columns = [*(["components"] if names or select.kind == "checked" else []), *_more_columns(folder, select)]
    for rows in samples.by_problem(folder, [*COLUMNS, *columns]):
        scored = [row for row in rows if row["score"] is not None and row["correct"] is not None]
        rate = _rate(scored, select)
        if rate is None:
            continue
        problem = dataset.from_row(rows[0])
        problem.info["pass_rate"] = rate
        if select.kind == "pass_rate":
            yield problem
        elif select.kind == "pairs":
            yield from _pairs(problem, _distinct(scored), select, seed)
        elif select.kind == "preferred":
            yield from _preferred(problem, rows, select, seed)
        elif select.kind == "segments":
            yield from _segments(problem, scored, select, seed)
        elif select.kind == "steps":
            yield from _steps(problem, scored, select, seed)
        elif select.kind in ("graded", "compared", "checked"):
            yield from _judged(problem, _distinct(scored), select, seed)
        elif select.kind == "majority":
            yield from _majority(problem, rows, select)
        else:
            for row in _chosen(_distinct(scored), select, rate)[: select.per_problem]:
                recorded = _records if row.get(samples.EPISODE) is None else _conversation
                yield from recorded(problem, row, select)


def _rate(scored: list[Completion], select: Selection) -> float | None:
    """Share of correct completions; None where there is none, or it is outside of the band."""
    if not scored:
        return None
    rate = sum(row["correct"] for row in scored) / len(scored)
    if (select.low is not None and rate <= select.low) or (select.high is not None and rate >= select.high):
        return None
    return rate


def _nearest(folder: Path, select: Selection) -> Iterator[Problem]:
    """The problems whose pass rate is nearest to the wanted one, nearest first; so many of them are in memory at a time."""
    nearest = select.nearest
    assert nearest is not None and select.problems is not None

    def ranked_problems() -> Iterator[tuple[tuple[float, int, float, str], Problem]]:
        for rows in samples.by_problem(folder, COLUMNS):
            scored = [row for row in rows if row["score"] is not None and row["correct"] is not None]
            rate = _rate(scored, select)
            if rate is not None:
                problem = dataset.from_row(rows[0])
                problem.info["pass_rate"] = rate
                cut = sum(row["stop"] == "length" for row in scored)
                length = sum(len(row["completion_ids"]) for row in scored) / len(scored)
                yield (round(abs(rate - nearest), 9), cut, length, problem.uid), problem

    for _, problem in heapq.nsmallest(select.problems, ranked_problems(), key=lambda pair: pair[0]):
        yield problem


def _segments(problem: Problem, rows: list[Completion], select: Selection, seed: int) -> Iterator[Problem]:
    """Pairs of parts of the problem's episodes; they name no environment, since they do not begin where it would."""
    for prompt, pair in islice(segments.couples(problem, rows, select, seed), select.per_problem):
        yield _with(replace(problem, prompt=prompt, info=_of_part(problem)), pair)


def _of_part(problem: Problem) -> dict[str, Any]:
    """What a part of an episode keeps of its problem's info: nothing that would begin an environment."""
    return {name: problem.info[name] for name in ("pass_rate", "tools", DIVIDED) if name in problem.info}


def _preferred(problem: Problem, rows: list[Completion], select: Selection, seed: int) -> Iterator[Problem]:
    """Pairs of completions, of whole episodes, or of states of episodes, that a judge decided."""
    of_episodes = any(row.get(samples.EPISODE) is not None for row in rows)
    asked = replace(problem, info=_of_part(problem)) if of_episodes else problem
    for prompt, pair in preferred.couples(problem, rows, select, seed):
        yield _with(replace(asked, prompt=prompt), pair)


def _more_columns(folder: Path, select: Selection) -> list[str]:
    """What the selection reads beside `COLUMNS`: episodes, or labelled steps or comparisons where the stage has them.

    Raises:
        DataError: nothing was compared.
    """
    if select.kind == "segments":
        return [samples.EPISODE]
    wanted = {
        "pass_rate": [],
        "steps": [samples.EPISODE, samples.STEPS],
        "preferred": [samples.EPISODE, samples.COMPARISONS],
    }
    columns = [name for name in wanted.get(select.kind, [samples.EPISODE]) if samples.has_column(folder, name)]
    if select.kind == "preferred" and samples.COMPARISONS not in columns:
        raise DataError(
            "curate.sources.select",
            "preferred reads comparisons, and the stage made none",
            "Name a sample stage with `comparisons`.",
        )
    return columns


def _steps(problem: Problem, rows: list[Completion], select: Selection, seed: int) -> Iterator[Problem]:
    """Completions with a label for each step, or turns of the problem's episodes; these name no environment, as parts of episodes."""
    if any(row.get(samples.EPISODE) is not None for row in rows):
        for prompt, turn in islice(labelled.turns(problem, rows, select, seed), select.per_problem):
            yield _with(replace(problem, prompt=prompt, info=_of_part(problem)), turn)
        return
    for row in islice((row for row in _distinct(rows) if row.get(samples.STEPS)), select.per_problem):
        cut = {steps.CUT: True} if row["stop"] == "length" else {}
        yield _with(problem, labelled.of_completion(json.loads(row[samples.STEPS])) | cut)


def _conversation(problem: Problem, row: Completion, select: Selection) -> Iterator[Problem]:
    """A whole episode, end to end: its last message is the solution, those before it are in the prompt. It names no environment."""
    last = segments.segments_of(problem.prompt, segments.episode_of(row), 1)[-1]
    yield _record(replace(problem, prompt=last.prompt, info=_of_part(problem)), {**row, "text": last.text}, select)


def _judged(problem: Problem, rows: list[Completion], select: Selection, seed: int) -> Iterator[Problem]:
    """Questions for a judge; their uids depend on the problem and on the judged texts."""
    from pipelines.curate import judged

    build = {"graded": judged.graded, "compared": judged.compared, "checked": judged.checked}[select.kind]
    for record in build(problem, rows, select, seed):
        own = _with(problem, {name: record.info[name] for name in ("judged", "solution")})
        yield replace(record, uid=own.uid, info=record.info | {ORIGIN: problem.uid})


def _distinct(rows: list[Completion]) -> list[Completion]:
    first: dict[str, Completion] = {}
    for row in rows:
        first.setdefault(row["text"], row)
    return list(first.values())


def _chosen(rows: list[Completion], select: Selection, rate: float) -> list[Completion]:
    if select.kind == "best":
        candidates = [row for row in rows if select.min_score is None or row["score"] >= select.min_score]
        return sorted(ranked.with_values(candidates, select.by), key=lambda row: -row["rank"])
    correct = [row for row in rows if row["correct"]]
    if select.kind == "correct":
        return correct
    if select.kind == "shortest_correct" or not correct:
        return sorted(correct, key=_length)
    wanted = wanted_length(rate, select.lengths or (min(map(_length, correct)), max(map(_length, correct))))
    return sorted(correct, key=lambda row: (abs(_length(row) - wanted), _length(row)))


def _length(row: Completion) -> int:
    return len(row["completion_ids"])


def wanted_length(rate: float, lengths: tuple[int, int]) -> float:
    """Tokens in proportion to how hard a problem is (ARES, 2510.08457: reasoning traces of length proportional to difficulty).

    RECONSTRUCTED from the abstract: difficulty is the share of incorrect completions, the proportion linear between two lengths.

    >>> wanted_length(1.0, (10, 50)), wanted_length(0.25, (10, 50))
    (10.0, 40.0)
    """
    return lengths[0] + (1 - rate) * (lengths[1] - lengths[0])


def _records(problem: Problem, row: Completion, select: Selection) -> Iterator[Problem]:
    """The completion as a record; with `efforts` as one for each of them."""
    if not select.efforts:
        yield _record(problem, row, select)
    for effort, share in select.efforts.items():
        shown = {"solution": shortened(row["text"], share), "sample_score": row["score"], EFFORT: effort}
        yield _with(replace(problem, prompt=chat.with_effort(problem.prompt, effort)), shown)


def shortened(text: str, share: float) -> str:
    """A completion with the first part of its reasoning only (ThinkDial, 2508.18773: SFT targets for a budget).

    RECONSTRUCTED from the abstract: the reasoning is cut to a share of its characters and the answer after it stays as it was.

    >>> shortened("<think>two and two is four</think>4", 0.5), shortened("4", 0.5)
    ('<think>two and</think>4', '4')
    """
    thoughts, end, rest = text.partition(chat.THINK_END)
    if not end or share == 1:
        return text
    begin = chat.THINK_START if thoughts.startswith(chat.THINK_START) else ""
    return begin + prefix(thoughts.removeprefix(begin), share) + end + rest


def _record(problem: Problem, row: Completion, select: Selection, **about: Any) -> Problem:
    text = row["text"] if select.truncate is None else prefix(row["text"], select.truncate)
    return _with(problem, {"solution": text, "sample_score": row["score"], **about})


def _with(problem: Problem, about: dict[str, Any], answer: str | None = None) -> Problem:
    record = replace(problem, info={**problem.info, ORIGIN: problem.uid, **about})
    uid = hashlib.sha256(f"{problem.uid}\0{text_key(record)}".encode()).hexdigest()[:32]
    return replace(record, uid=uid, answer=problem.answer if answer is None else answer)


def prefix(text: str, share: float) -> str:
    """The first part of a text, cut back to white space where there is some.

    >>> prefix("two times three is six", 0.5), prefix("abcdef", 0.5)
    ('two times', 'abc')
    """
    part = text[: math.ceil(len(text) * share)]
    if len(part) < len(text) and not (text[len(part)].isspace() or part[-1].isspace()):
        words = part.rsplit(maxsplit=1)
        part = words[0] if len(words) > 1 else part
    return part.rstrip()


def _majority(problem: Problem, rows: list[Completion], select: Selection) -> Iterator[Problem]:
    if problem.verifier not in VOTING:
        raise DataError(
            "curate.sources.select",
            f"a majority needs records whose verifier compares answers ({', '.join(VOTING)}), and {problem.uid} has {problem.verifier}",
            "Choose another selection.",
        )
    answers = verifiers.extract_answers([(problem.verifier, row["text"]) for row in rows])
    votes = Counter(answer for answer in answers if answer)
    if not votes:
        return
    label, count = votes.most_common(1)[0]  # of equally frequent answers the first that was given
    share = count / len(rows)
    if share < select.min_share:
        return
    row = rows[answers.index(label)]
    record = _record(problem, row, select, majority_share=share)
    # The pass rate and the score compare with the label that the vote replaces.
    info = {k: v for k, v in record.info.items() if k not in ("pass_rate", "sample_score")}
    yield replace(record, answer=label, info=info)


def _pairs(problem: Problem, rows: list[Completion], select: Selection, seed: int) -> Iterator[Problem]:
    if select.pair == "demonstration":
        yield from _demonstrated(problem, rows, select, seed)
        return
    if select.pair == "random":
        draw = random.Random(f"{seed} {problem.uid}")
        chosen, rejected = ([row for row in rows if row["correct"] is wanted] for wanted in (True, False))
        draw.shuffle(chosen)
        draw.shuffle(rejected)
        couples = [(b, w) for b, w in zip(chosen, rejected, strict=False) if b["score"] - w["score"] > select.margin]
    elif select.pair == "ranked":
        couples = _ranked(problem, rows, select, seed)
    else:
        valued = sorted(ranked.with_values(rows, select.by), key=lambda row: -row["rank"])
        worst_first = sorted(valued, key=lambda row: row["rank"])
        couples = [(b, w) for b, w in zip(valued, worst_first, strict=True) if b["rank"] - w["rank"] > select.margin]
    for better, worse in couples[: select.per_problem]:
        scores = {"chosen_score": better["score"], "rejected_score": worse["score"]}
        cut = {name: True for name, row in zip(pairs.CUT, (better, worse), strict=True) if row["stop"] == "length"}
        yield _with(problem, {"chosen": better["text"], "rejected": worse["text"], **scores, **cut})


def _demonstrated(problem: Problem, rows: list[Completion], select: Selection, seed: int) -> Iterator[Problem]:
    """Pairs of the record's solution with completions of another text, in an order drawn by seed and problem; without scores."""
    solution = str(problem.info.get("solution") or problem.answer).strip()
    others = [
        row
        for row in rows
        if row["text"].strip() != solution and select.against in ("all", "correct" if row["correct"] else "incorrect")
    ]
    random.Random(f"{seed} {problem.uid}").shuffle(others)
    for row in others[: select.per_problem] if solution else ():
        cut = {pairs.CUT[1]: True} if row["stop"] == "length" else {}
        yield _with(problem, {"chosen": solution, "rejected": row["text"], **cut})


def _ranked(
    problem: Problem, rows: list[Completion], select: Selection, seed: int
) -> list[tuple[Completion, Completion]]:
    """(better, worse) of the pairs that the ranked factors decide, in an order drawn by seed and problem."""
    for factor in select.factors:
        rows = ranked.with_values(rows, factor.name)
    values = [[ranked.value_of(row, factor.name) or 0.0 for factor in select.factors] for row in rows]
    decided = ranked.preferences(values, [factor.margin for factor in select.factors])
    random.Random(f"{seed} {problem.uid}").shuffle(decided)
    return [(rows[winner], rows[loser]) for winner, loser in decided]
