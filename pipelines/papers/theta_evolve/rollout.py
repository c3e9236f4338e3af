"""A search for better programs: the policy edits programs of a database, and is trained on how good they become.

Presets: theta_evolve.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from pipelines import verifiers
from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.catalogue import method
from pipelines.contract.method import Rollout
from pipelines.data import chat
from pipelines.data.records import Problem, Stop, Trajectory
from pipelines.papers.theta_evolve.edits import MIDDLE, REPLACE, SEARCH, edited, edits, essence
from pipelines.papers.theta_evolve.programs import Program, Programs
from pipelines.rlvr.common.answers import answers

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest
    from pipelines.verifiers import Verdict

EDITS = (
    "{task}\n\nThis is the current program. Its score is {score}.\n\n```python\n{program}\n```\n\n"
    f"Change it so that its score becomes larger. Write each change as a block:\n\n{SEARCH}lines of the program, exactly as they are\n"
    f"{MIDDLE}what stands in their place\n{REPLACE}"
)
PROGRAM = (
    "{task}\n\nThis is the current program. Its score is {score}.\n\n```python\n{program}\n```\n\n"
    "Write a program whose score is larger, all of it, between ```python and ```."
)
NO_ANSWER, UNCHANGED, FAILED, INVALID = -0.4, -0.3, -0.2, -0.1
"""What is paid for an answer without a program, for the program as it was, for one that does not run, for one that breaks a rule."""
BETTER = 1e-6
"""A child is better than its parent by more than this."""
_PLACES = re.compile(r"\{(task|program|score)\}")

Share = Annotated[float, Field(ge=0, le=1)]


@method(
    paper="2511.23473",
    title="ThetaEvolve: Test-time Learning on Open Problems",
    checked="official code (read; the prompt's wording is ours, and programs that break a rule are not stored)",
    requires=(("prompting", "plain"), ("reward", "verifier")),
    scores_rows=True,
)
class theta_evolve(Rollout):
    """Each request shows a parent from the problem's database (`programs.py`) and its score; each answer makes a child of it.

    The record's `info.program` is what the search starts from; its verifier scores programs, larger is better, 0 is a program that does not
    run or breaks a rule (`construction`, `python` with `graded`). An answer is a list of edit blocks (`answer: edits`; a block whose lines
    are not in the parent changes nothing) or a whole program between `opening` and `closing`, after any reasoning. Children with a score
    join the database when all answers of the draw are scored, so no parent of a draw is a child of the same draw. The reward of a child
    with score s is

        pays: score      s
        pays: scaled     factor * ((min(max(s, low), high) - low) / (high - low)) ** power     [low, high] = range
        pays: improved   1 if s > its parent's + 1e-6, else 0

    and of one without a score -0.4 (the answer has no program), -0.3 (`repeats`: it equals its parent, or a program in the database, up to
    blank lines and comments), -0.2 (it does not run, or not in time), -0.1 (it breaks a rule). Defaults are those of the released code for
    circle packing, with `score` as its runs have it. The database is in every commit.

    Components: `program` (the score of a child that has one), `improved`, `changed`. Metrics: `method/theta_evolve/best` (mean over the
    problems met), `programs`. The artifact's `methods.jsonl` has each program that was the best so far of its problem (`uid`, `score`,
    `program`). With one problem in the split every prompt of a step is a parent of it.
    """

    info_fields = ("start",)

    def __init__(
        self,
        *,
        start: Annotated[str, Field(min_length=1)] = "program",
        answer: Literal["edits", "program"] = "edits",
        template: Annotated[str | None, Field(min_length=1, max_length=8000)] = None,
        opening: Annotated[str, Field(min_length=1, max_length=100)] = "```python",
        closing: Annotated[str, Field(min_length=1, max_length=100)] = "```",
        pays: Literal["score", "scaled", "improved"] = "score",
        range: Annotated[list[float], Field(min_length=2, max_length=2)] = [0.0, 1.0],  # noqa: B006
        power: Annotated[float, Field(gt=0, le=100)] = 3.0,
        factor: Annotated[float, Field(gt=0, le=1000)] = 5.0,
        repeats: Literal["parent", "database"] = "parent",
        islands: Annotated[int, Field(ge=1, le=1000)] = 10,
        capacity: Annotated[int, Field(ge=2, le=1_000_000)] = 10_000,
        archived: Annotated[int, Field(ge=1, le=1_000_000)] = 1000,
        explore: Share = 0.2,
        exploit: Share = 0.6,
        migrate_every: Annotated[int, Field(ge=1)] = 50,
        migrants: Share = 0.1,
    ) -> None:
        self.template = template or (EDITS if answer == "edits" else PROGRAM)
        for position in ("{task}", "{program}"):
            if position not in self.template:
                raise RecipeError(
                    "rlvr.rollout.template", f"it has no {position}, so the policy would not see it", f"Add {position}."
                )
        if range[0] >= range[1]:
            raise RecipeError("rlvr.rollout.range", f"the smaller score comes first (got {range[0]:g}, {range[1]:g}).")
        if explore + exploit > 1:
            raise RecipeError(
                "rlvr.rollout", f"explore and exploit are chances, at most 1 together (got {explore + exploit:g})."
            )
        self.start, self.answer, self.opening, self.closing = start, answer, opening, closing
        self.pays, self.range, self.power, self.factor, self.repeats = pays, range, power, factor, repeats
        self.settings: dict[str, Any] = {
            "islands": islands, "capacity": capacity, "archived": archived, "explore": explore, "exploit": exploit,
            "migrate_every": migrate_every, "migrants": migrants,
        }  # fmt: skip
        self.databases: dict[str, Programs] = {}
        """uid → its programs."""
        self._news: list[dict[str, Any]] = []
        """The best programs of the step so far, for `lines`."""

    def run(self, requests: list[RolloutRequest], context: RolloutContext) -> list[Trajectory]:
        """Answers to parents, as children that are scored."""
        problems = {request.problem.uid: request.problem for request in requests}
        first = self._first(problems)
        parents = {
            request.group: first.get(request.problem.uid)
            or self.databases[request.problem.uid].parent(random.Random(context.streams.integer(request.group)))
            for request in requests
        }
        conversations = [self._shown(request.problem, parents[request.group]) for request in requests]
        prompts = context.render(conversations, [request.problem.tools for request in requests])
        asked = [replace(request, prompt=prompt) for request, prompt in zip(requests, prompts, strict=True)]
        rows = answers(asked, context)
        shown = {request.group: messages for request, messages in zip(requests, conversations, strict=True)}
        for row in rows:
            row.prompt = shown[row.group]
        self._score(rows, parents, problems, context)
        return rows

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """Store the children, in the order of the rows, on every process alike."""
        for row in rows:
            if "parent" not in row.extras:
                continue
            parent, child = row.extras["parent"], row.extras["child"]
            if row.uid not in self.databases:
                self.databases[row.uid] = Programs(**self.settings)
                self.databases[row.uid].start(*parent)
                self._tell(row.uid)
            if child is not None:
                before = self.databases[row.uid].best
                self.databases[row.uid].add(*child)
                if self.databases[row.uid].best != before:
                    self._tell(row.uid)
        return rows

    def metrics(self) -> dict[str, float]:
        """The best score, mean over problems, and how many programs there are."""
        known = list(self.databases.values())
        if not known:
            return {}
        best = sum(programs.programs[programs.best].score for programs in known) / len(known)
        return {"best": best, "programs": float(sum(len(programs.programs) for programs in known))}

    def lines(self) -> list[dict[str, Any]]:
        """Programs that became the best of their problem."""
        news, self._news = self._news, []
        return news

    def state_dict(self) -> dict[str, Any]:
        """The databases."""
        return {"databases": {uid: programs.state_dict() for uid, programs in self.databases.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.databases, self._news = {}, []
        for uid, programs in state["databases"].items():
            self.databases[uid] = Programs(**self.settings)
            self.databases[uid].load_state_dict(programs)

    def _tell(self, uid: str) -> None:
        best = self.databases[uid].programs[self.databases[uid].best]
        self._news.append({"uid": uid, "score": best.score, "program": best.text})

    def _first(self, problems: Mapping[str, Problem]) -> dict[str, Program]:
        """What the search starts from, of problems that have no database yet.

        Raises:
            DataError: a record has no program, or one without a score.
        """
        new = [problem for uid, problem in problems.items() if uid not in self.databases]
        texts = [str(problem.info.get(self.start) or "") for problem in new]
        first = {}
        for problem, text, verdict in zip(new, texts, _verdicts(new, texts), strict=True):
            if not verdict.score:
                raise DataError(
                    "rlvr.rollout",
                    f"the program of {problem.uid} that the search would start from (info.{self.start}) has no score: it is "
                    f"{verdict.status}",
                    "Give each record a program that runs and fulfils the rules.",
                )
            first[problem.uid] = Program(text, verdict.score, 0)
        return first

    def _shown(self, problem: Problem, parent: Program) -> list[dict[str, str]]:
        *before, last = problem.prompt
        positions = {"task": last["content"], "program": parent.text, "score": f"{parent.score:.6g}"}
        return [*before, {**last, "content": _PLACES.sub(lambda match: positions[match[1]], self.template)}]

    def _score(
        self,
        rows: Sequence[Trajectory],
        parents: Mapping[int, Program],
        problems: Mapping[str, Problem],
        context: RolloutContext,
    ) -> None:
        """Fill score, correct, status, components and extras, in place."""
        known = {
            uid: self.databases[uid].essences()
            for uid in problems
            if self.repeats == "database" and uid in self.databases
        }
        children: list[tuple[Trajectory, str]] = []
        for row in rows:
            if row.stop == Stop.ERROR:
                continue
            parent = parents[row.group]
            row.extras = {"parent": [parent.text, parent.score], "child": None}
            child = self._child(row.text, parent.text)
            same = child is not None and essence(child) in {essence(parent.text)} | known.get(row.uid, set())
            row.components = {"improved": 0.0, "changed": float(child is not None and not same)}
            if child is None or same:
                row.score, row.correct = UNCHANGED if same else NO_ANSWER, False
                row.status = "incorrect" if same else "unparsable"
            else:
                children.append((row, child))
        verdicts = _verdicts([problems[row.uid] for row, _ in children], [child for _, child in children])
        for (row, child), verdict in zip(children, verdicts, strict=True):
            row.logged = {**row.logged, "program": child}
            self._pay(row, child, verdict, parents[row.group], context)

    def _pay(self, row: Trajectory, child: str, verdict: Verdict, parent: Program, context: RolloutContext) -> None:
        row.status, row.correct = verdict.status, verdict.correct
        if verdict.score is None or (verdict.status == "timed_out" and context.on_timeout == "unscored"):
            row.correct = None
        elif not verdict.score:
            row.score = FAILED if verdict.status in ("timed_out", "unparsable") else INVALID
        else:
            row.extras["child"] = [child, verdict.score]
            improved = float(verdict.score > parent.score + BETTER)
            row.score = improved if self.pays == "improved" else self.paid(verdict.score)
            row.components |= {"improved": improved, "program": verdict.score}

    def paid(self, score: float) -> float:
        """What a program's score is worth, whatever its parent's is.

        >>> from pipelines.contract.catalogue import bind
        >>> bind("rlvr.rollout", {"kind": "theta_evolve", "pays": "scaled", "range": [0, 2]}).fn.paid(1.0)
        0.625
        """
        if self.pays == "score":
            return score
        low, high = self.range
        return self.factor * ((min(max(score, low), high) - low) / (high - low)) ** self.power

    def _child(self, text: str, parent: str) -> str | None:
        """The program that an answer makes of its parent; None where it has none."""
        if self.answer == "program":
            return chat.between(text, self.opening, self.closing)
        blocks = edits(chat.after_thinking(text))
        return edited(parent, blocks) if blocks else None


def _verdicts(problems: Sequence[Problem], texts: Sequence[str]) -> list[Verdict]:
    """Of programs, by their problems' verifiers."""
    rows = [(p.verifier, text, p.answer, p.info) for p, text in zip(problems, texts, strict=True)]
    return verifiers.verify_many(rows)
