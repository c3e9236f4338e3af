"""How likely the policy finds correct answers that it once gave: what training takes from one problem while it solves another.

No preset uses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import Monitor, StepRollouts, mean
from pipelines.contract.scorer import Passage

POLICY = 3
"""Role of a token that the policy chose."""
PREFIX = "answers"


@method(
    paper="https://github.com/mail-research/SELF-llm-interference",
    title="The Reasoning Boundary Paradox (SELF), and The Debate on RLVR Reasoning Capability Boundary",
    checked="reconstructed",
)
class answer_mass(Monitor):
    """Correct answers are stored when a problem is first solved, and their log-probability is measured again every `every` steps.

    It stores up to `answers` different correct answers to each of the first `problems` problems that have one, with the log-probability
    (nats of the whole answer, temperature 1, by the weights that begin the step) that they had then; where a step asks a problem in several
    ways (paraphrases, variants), those of the first way. Those above the median of all are the likely ones, the others the rare ones. It
    measures, as means over answers:

        answers/log_prob      log p(answer)
        answers/gain          its change since the answer was stored; answers/likely_gain and answers/rare_gain of the two kinds
        answers/fallen_share  share of problems of which all stored answers together are now less than `half` as likely
        answers/phase         1 where the likely ones have gained more since the last measurement, 2 where the rare ones have

    Phase 1 is the exploitation of the debate (mass goes to what is sampled already, the boundary shrinks), phase 2 its exploration.
    `answers/fallen_share` is SELF's interference: the probability lost to updates on other problems. A share above `above` violates the
    rule; which answers count as likely, and the limits, are ours. The log-probabilities problem by problem are lines of `monitored.jsonl`
    in the artifact: uid → [when stored, now] for each answer. Answers of several turns are left out; they have no single context.
    """

    asks_policy = True

    patience = 2
    measures = True
    reads = (f"{PREFIX}/fallen_share",)
    makes = tuple(
        f"{PREFIX}/{name}" for name in ("log_prob", "gain", "likely_gain", "rare_gain", "fallen_share", "phase")
    )

    def __init__(
        self,
        *,
        problems: Annotated[int, Field(ge=1, le=100_000)] = 64,
        answers: Annotated[int, Field(ge=1, le=1000)] = 4,
        every: Annotated[int, Field(ge=1, le=100_000)] = 5,
        half: Annotated[float, Field(gt=0, le=1)] = 0.5,
        above: Annotated[float, Field(gt=0, lt=1)] = 0.3,
    ) -> None:
        self.problems, self.answers, self.every, self.half, self.above = problems, answers, every, half, above
        self.stored: dict[str, list[dict[str, Any]]] = {}
        """Uid → its answers: `context` and `text` as token ids, `start` and `now` in nats."""
        self.steps = 0
        self.before: list[float] = []
        """Gains of the likely and of the rare answers at the last measurement."""
        self.report: list[dict[str, Any]] = []

    def measure(self, rollouts: StepRollouts) -> dict[str, float]:
        """Store what is new, and measure all where the step is one of those."""
        self.report, self.steps = [], self.steps + 1
        new = self._new(rollouts.rows)
        for answer, value in zip(new, _log_probs(new, rollouts), strict=True):
            answer["start"] = answer["now"] = value
        known = [answer for own in self.stored.values() for answer in own]
        if (self.steps - 1) % self.every or len(new) == len(known):
            return {}
        for answer, value in zip(known, _log_probs(known, rollouts), strict=True):
            answer["now"] = value
        self.report = [{"problems": {u: [[a["start"], a["now"]] for a in own] for u, own in self.stored.items()}}]
        return self._metrics(known)

    def _new(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """Correct answers that are stored from now on: those of problems that had none before."""
        first: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if not row.correct or row.uid in self.stored or (row.uid not in first and self._full(len(first))):
                continue
            begin = next((i for i, role in enumerate(row.role) if role == POLICY), 0)
            if not begin or any(role != POLICY for role in row.role[begin:]):
                continue
            own = first.setdefault(row.uid, [])
            context, text = list(row.tokens[:begin]), list(row.tokens[begin:])
            if len(own) < self.answers and all(a["context"] == context and a["text"] != text for a in own):
                own.append({"context": context, "text": text})
        self.stored |= first
        return [answer for own in first.values() for answer in own]

    def _full(self, count: int) -> bool:
        return len(self.stored) + count >= self.problems

    def _metrics(self, known: list[dict[str, Any]]) -> dict[str, float]:
        limit = median(answer["start"] for answer in known)
        gains: dict[bool, list[float]] = {True: [], False: []}
        for answer in known:
            gains[answer["start"] > limit].append(answer["now"] - answer["start"])
        changes = [_together(own, "now") - _together(own, "start") for own in self.stored.values()]
        values = {
            "log_prob": mean([answer["now"] for answer in known]),
            "gain": mean(gains[True] + gains[False]),
            "fallen_share": mean([float(change < math.log(self.half)) for change in changes]),
        }
        if gains[True] and gains[False]:
            likely, rare = mean(gains[True]), mean(gains[False])
            begun = self.before or [0.0, 0.0]
            values |= {"likely_gain": likely, "rare_gain": rare, "phase": 1.0 + (rare - begun[1] > likely - begun[0])}
            self.before = [likely, rare]
        return {f"{PREFIX}/{name}": value for name, value in values.items()}

    def judge(self, values: Mapping[str, float]) -> str | None:
        """Against the limit."""
        share = values[f"{PREFIX}/fallen_share"]
        if share <= self.above:
            return None
        changes = {uid: _together(own, "now") - _together(own, "start") for uid, own in self.stored.items()}
        worst = f"; furthest {min(changes, key=lambda uid: changes[uid])}" if changes else ""
        return (
            f"the stored correct answers of {100 * share:.0f} % of {len(self.stored)} problems are less than {self.half:g} times as likely "
            f"as when they were given{worst}. Lower rlvr.optimizer.learning_rate, or "
            "charge for the distance to the starting policy (divergence: k3)"
        )

    def lines(self) -> list[dict[str, Any]]:
        """The log-probabilities of the last measurement, problem by problem, once."""
        report, self.report = self.report, []
        return report

    def state_dict(self) -> dict[str, Any]:
        """The stored answers with their log-probabilities, steps, and the last gains."""
        return {"stored": self.stored, "steps": self.steps, "before": self.before}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.stored = {uid: [dict(answer) for answer in own] for uid, own in state["stored"].items()}
        self.steps, self.before = state["steps"], list(state["before"])


def _log_probs(answers: list[dict[str, Any]], rollouts: StepRollouts) -> list[float]:
    """Log-probability of each answer, in nats; nothing is asked where there is none."""
    if not answers:
        return []
    passages = [Passage(answer["context"], answer["text"]) for answer in answers]
    return [float(values.sum()) for values in rollouts.scorer.log_probs(passages)]


def _together(answers: Sequence[Mapping[str, Any]], when: str) -> float:
    """Log of the probability that one of the answers is given.

    >>> round(_together([{"now": math.log(0.25)}, {"now": math.log(0.5)}], "now"), 6) == round(math.log(0.75), 6)
    True
    """
    largest = max(answer[when] for answer in answers)
    return largest + math.log(sum(math.exp(answer[when] - largest) for answer in answers))
