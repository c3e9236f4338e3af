"""Several rewards in one: weights, gates, factors and schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import isfinite, prod
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from pipelines.base.errors import DataError, RecipeError, did_you_mean
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import bind, method
from pipelines.contract.fields import Line, Strict, message, place
from pipelines.contract.method import Composed, Reward
from pipelines.data.records import PREFERENCE, PREFERENCES, Problem, Trajectory, by_group
from pipelines.rlvr.ops import SAME
from pipelines.rlvr.scoring import score, verify

FIELD = "rlvr.reward"
NONE: dict[str, float] = {}
"""Weights of a record that says none; not to be changed."""
PAID = ("token_reward", "turn_reward", "turn_belief")
"""Fields of a row that say what its tokens or turns are paid."""
Number = Annotated[float, Field(ge=-1e6, le=1e6)]


class Ramp(Strict):
    """A weight that moves in a straight line from one value to another."""

    start: Number
    """Weight up to step `after`."""
    end: Number
    """Weight from step `after + steps` on."""
    steps: int = Field(ge=1)
    after: int = Field(0, ge=0)

    def at(self, step: int) -> float:
        """The weight of a step, counted from 0."""
        return self.start + (self.end - self.start) * min(1.0, max(0.0, (step - self.after) / self.steps))


class Learned(Strict):
    """A weight that grows while the term points where the verdict does, and shrinks while it points elsewhere.

    After each draw `rate` times the correlation of the term's value with `correct`, inside groups, is added. That is BARFI's outer
    gradient (2310.19007), the inner product of the two policy gradients, for an inner step with the identity for a Hessian
    and rows whose score vectors are orthogonal and of one length.
    """

    learn: Annotated[float, Field(gt=0, le=1)]
    """Rate of a draw."""
    start: Number = 1.0
    low: Number = 0.0
    high: Number = 2.0

    @model_validator(mode="after")
    def _ordered(self) -> Learned:
        if not self.low <= self.start <= self.high:
            raise ValueError("start lies between low and high")
        return self


class Gate(Strict):
    """A condition on an earlier term."""

    term: str
    """Name of the term whose value is looked at."""
    at_least: Number | None = None
    at_most: Number | None = None
    otherwise: Number = 0.0
    """The term's value where the condition does not hold, or the other term has no value."""

    @model_validator(mode="after")
    def _bounded(self) -> Gate:
        if self.at_least is None and self.at_most is None:
            raise ValueError("say at_least, at_most or both")
        return self

    def holds(self, value: float | None) -> bool:
        """Whether a value of the other term opens it."""
        if value is None:
            return False
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


class TermSettings(Strict):
    """What a term says beside its reward's own settings."""

    name: str | None = Field(None, pattern=r"^[A-Za-z0-9_.+-]+$", max_length=60)
    """In gates and metrics; default: the reward's name."""
    weight: Number | Ramp | Learned | Literal["preference"] = 1.0
    """preference: what the record's `info.preferences` says that the term's name is worth."""
    operation: Literal["add", "multiply", "geometric"] = "add"
    """Whether weight x value is added to the terms before it, what they gave is multiplied by it, or both enter a geometric mean."""
    gate: Gate | None = None
    sources: Annotated[list[Line], Field(min_length=1, max_length=1000)] | None = None
    """Sources whose prompts it pays; of others it is not asked, and adds, multiplies and averages nothing. Default: all."""
    unscored: Literal["row", "zero"] = "row"
    """Where the term has no value (a timeout, an unreadable judge): the row stays unscored, or the value is 0."""

    @model_validator(mode="after")
    def _named(self) -> TermSettings:
        if self.weight == PREFERENCE and self.name is None:
            raise ValueError("weight: preference is what records say that the term's name is worth: give it a name")
        return self


@dataclass(frozen=True)
class Term:
    """One reward of the sum."""

    name: str
    settings: TermSettings
    reward: Bound

    def pays(self, source: str) -> bool:
        """Whether it pays prompts of a source."""
        return self.settings.sources is None or source in self.settings.sources

    def covers(self, other: Term) -> bool:
        """Whether it pays all prompts that another term pays."""
        own, others = self.settings.sources, other.settings.sources
        return own is None or (others is not None and set(others) <= set(own))

    def weight(self, step: int) -> float | None:
        """Its weight in a step; None where it is learned, or the record's own."""
        weight = self.settings.weight
        return weight.at(step) if isinstance(weight, Ramp) else None if isinstance(weight, Learned | str) else weight


@method(
    paper="folklore",
    title="A weighted sum of rewards, with gates and schedules",
    checked="closed form",
    makes=("reward_terms", "turn_reward_terms"),
)
class composite(Composed, Reward):
    """Sum of `weight` x value over `terms`, each a reward of this slot; `reward: [a, b]` is its short form.

    A term also takes `name`, `weight` (a number, `{start, end, steps, after}` for one on a schedule, `{learn, start, low, high}` for one
    that follows how well the term agrees with the verdict, or `preference` for the weight that the record's `info.preferences` gives the
    term, which the policy reads in its prompt: multi-objective RL with one policy for all weights), `gate` (`{term, at_least, at_most,
    otherwise}`: the value counts only where an earlier term's is within these bounds), `operation` (`add` to the result of the terms
    before it, `multiply` it, or take the `geometric` mean with it), `unscored` (what to do with a row that it cannot score: leave the
    `row` out, or count `zero`) and `sources` (it pays prompts of these sources alone; the reward of any other is that of the remaining
    terms with their weights as they are, since weights are never normalised). Successive `geometric` terms enter one mean, the Kinesthetic
    Reward Combination of Lucy-SKG (2305.15801): the root of the product of all absolute values, negative if any of them is. It is a reward
    of the whole answer: what the terms before it paid tokens or turns is dropped. A
    term's rewards for single tokens (`drlc`) or turns (`viper`, `contrasting_goals`; `verifier`: the environment's) are scaled by its
    weight, its gate and the factors of later terms; its reward for the whole answer goes to an episode's last turn. A reward that adds to
    the environment's (`matchtir`) includes it, and needs no `verifier` beside it. Where all terms are added, `terms` of a row holds each
    term's contribution, and `turn_terms` what of it was paid at each turn. A term's steps and their values (`exprl`, `process_model`)
    stay with the row. Every term's value is a component, and so a metric. `correct` remains the verdict of the problem's verifier,
    whether or not it is a term.
    """

    term_settings = TermSettings

    def __init__(self, *, terms: Annotated[list[str | dict[str, Any]], Field(min_length=1, max_length=64)]) -> None:
        self.terms: list[Term] = []
        for number, spec in enumerate(terms):
            self.terms.append(_term(number, spec, self.terms))
        self.pays_turns = any(term.reward.fn.pays_turns for term in self.terms)
        self.moves = any(isinstance(term.settings.weight, Ramp) for term in self.terms)
        """Whether a weight changes with the steps."""
        if all(term.settings.operation == "add" for term in self.terms):
            self.term_names = [term.name for term in self.terms]
        self.step = 0
        learned = {term.name: term.settings.weight for term in self.terms}
        self.learned = {name: weight.start for name, weight in learned.items() if isinstance(weight, Learned)}
        """Term → its weight, where it is learned."""
        self.preferred = [term.name for term in self.terms if term.settings.weight == PREFERENCE]
        """Terms whose weight is the record's own."""

    def parts(self) -> list[Bound]:
        """The rewards that it is made of."""
        return [term.reward for term in self.terms]

    def score(self, rows: list[Trajectory], problems: Mapping[str, Problem]) -> None:
        """Fill score, correct, status and components in place."""
        verify(rows, problems)
        values: list[dict[str, float | None]] = [{} for _ in rows]
        paid: dict[str, list[dict[str, list[float]]]] = {column: [{} for _ in rows] for column in PAID}
        components = [{k: v for k, v in row.components.items() if k != "verifier"} for row in rows]
        for term in self.terms:
            paying = {number: _copy(row) for number, row in enumerate(rows) if term.pays(row.source)}
            if paying:
                score(term.reward.fn, list(paying.values()), problems)
            for number, copied in paying.items():
                row, known, parts = rows[number], values[number], components[number]
                row.turn, row.turn_state, row.potential = copied.turn, copied.turn_state, copied.potential
                known[term.name] = copied.score
                if copied.score is not None:
                    parts[term.name] = float(copied.score)
                    row.turn_components = _named_together(row.turn_components, copied.turn_components)
                for column, by_term in paid.items():
                    own_parts = getattr(copied, column)
                    if own_parts is not None:
                        by_term[number][term.name] = [0.0] * len(own_parts) if copied.score is None else own_parts
                own = {k: v for k, v in copied.components.items() if k not in row.components}
                parts.update({f"{term.name}.{k}": v for k, v in own.items()})
        for number, (row, known, parts) in enumerate(zip(rows, values, components, strict=True)):
            own = preferences(problems[row.uid], [name for name in self.preferred if name in known])
            row.score = self.total(known, own)
            row.terms = self.added(known, own) if self.term_names and row.score is not None else None
            for column, by_term in paid.items():
                if by_term[number]:
                    setattr(row, column, self.of_parts(known, by_term[number], own))
            row.turn_terms = None
            if row.terms is not None and row.turn_reward is not None:
                row.turn_terms = self.added_to_turns(known, paid["turn_reward"][number], len(row.turn_reward), own)
            row.components = parts | {f"{name}.weight": weight for name, weight in self.learned.items()}

    def total(self, values: Mapping[str, float | None], preferred: dict[str, float] = NONE) -> float | None:
        """The reward of a row, from the values of its terms and its record's own weights; None where one that must be scored is not.

        Raises:
            KeyError: a term that pays all sources has no entry.
        """
        total = 0.0
        averaged: list[float] = []
        for term in self._paying(values):
            value = self._weighted(term, values, preferred)
            if value is None:
                return None
            if term.settings.operation == "geometric":
                averaged = [*(averaged or [total]), value]
                total = geometric_mean(averaged)
            else:
                averaged = []
                total = total * value if term.settings.operation == "multiply" else total + value
        return total

    def added(self, values: Mapping[str, float | None], preferred: dict[str, float] = NONE) -> list[float]:
        """What each term adds to the reward of a row that has one, where all are added."""
        paid = {term.name: self._weighted(term, values, preferred) or 0.0 for term in self._paying(values)}
        return [paid.get(term.name, 0.0) for term in self.terms]

    def _paying(self, values: Mapping[str, float | None]) -> list[Term]:
        """The terms that pay a row: those of its source, which have an entry, and those of all sources."""
        return [term for term in self.terms if term.settings.sources is None or term.name in values]

    def added_to_turns(
        self,
        values: Mapping[str, float | None],
        paid: Mapping[str, list[float]],
        turns: int,
        preferred: dict[str, float] = NONE,
    ) -> list[float]:
        """What each term pays each turn, turn by turn, where all terms are added; arguments as in `of_parts`."""
        nothing = [0.0] * turns
        own = [
            self.of_parts(values, {term.name: paid[term.name]}, preferred) if term.name in paid else nothing
            for term in self.terms
        ]
        return [turn for by_term in zip(*own, strict=True) for turn in by_term]

    def _weighted(self, term: Term, values: Mapping[str, float | None], preferred: dict[str, float]) -> float | None:
        """A term's gated value, times its weight; None where it must be scored and is not."""
        value, gate = values[term.name], term.settings.gate
        if gate is not None and not gate.holds(values[gate.term]):
            value = gate.otherwise
        elif value is None:
            if term.settings.unscored == "row":
                return None
            value = 0.0
        return value * self._weight(term, preferred)

    def of_parts(
        self,
        values: Mapping[str, float | None],
        paid: Mapping[str, list[float]],
        preferred: dict[str, float] = NONE,
    ) -> list[float]:
        """What the terms pay each token or turn, as `total` adds up rows: a closed gate pays none, a factor holds for each too.

        A geometric mean is of the whole answer, so that nothing of what was paid before it remains.

        Args:
            values: term → its value.
            paid: term → what it pays each token, or each turn, of those that do.
            preferred: term → its weight, where it is the record's own.
        """
        total = [0.0] * max(map(len, paid.values()))
        for term in self._paying(values):
            gate, value, weight = term.settings.gate, values[term.name], self._weight(term, preferred)
            opened = gate is None or gate.holds(values[gate.term])
            if term.settings.operation == "multiply":
                factor = ((value or 0.0) if opened or gate is None else gate.otherwise) * weight
                total = [factor * part for part in total]
            elif term.settings.operation == "geometric":
                total = [0.0] * len(total)
            elif opened and term.name in paid:
                total = [sum_so_far + weight * part for sum_so_far, part in zip(total, paid[term.name], strict=True)]
        return total

    def _weight(self, term: Term, preferred: dict[str, float]) -> float:
        """The weight of a term in this step."""
        weight = term.weight(self.step)
        return (preferred | self.learned)[term.name] if weight is None else weight

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """Learn the weights from the draw, and pass on to the terms."""
        for term in self.terms:
            about = term.settings.weight
            if isinstance(about, Learned):
                moved = self.learned[term.name] + about.learn * agreement(rows, term.name)
                self.learned[term.name] = min(about.high, max(about.low, moved))
        return super().on_rollouts(rows)

    def uses(self, hook: str) -> bool:
        """Whether a term uses the hook; `on_batch` also where a weight moves with the steps, `on_rollouts` where one is learned."""
        own = {"on_batch": self.moves, "on_rollouts": bool(self.learned)}
        return own.get(hook, False) or super().uses(hook)

    def on_batch(self, columns: Mapping[str, Any]) -> None:
        """The step's weights have been used. Steps are counted where a weight moves."""
        super().on_batch(columns)
        self.step += self.moves

    def state_dict(self) -> dict[str, Any]:
        """The step, and what the terms remember."""
        return {
            "step": self.step,
            "learned": dict(self.learned),
            "terms": {term.name: term.reward.fn.state_dict() for term in self.terms},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.step = state["step"]
        self.learned |= state["learned"]
        for term in self.terms:
            term.reward.fn.load_state_dict(state["terms"][term.name])


def preferences(problem: Problem, names: Sequence[str]) -> dict[str, float]:
    """What a record says that these terms are worth.

    Raises:
        DataError: it says nothing of one of them, or no number.
    """
    asked = problem.info.get(PREFERENCES)
    weights: dict[str, Any] = {name: asked.get(name) if isinstance(asked, dict) else None for name in names}
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not isfinite(weight):
            raise DataError(
                FIELD,
                f"the weight of {name} is what each record says, and {problem.uid} has no number in info.{PREFERENCES}.{name}",
                "Give its source `preferences` with the names of all such terms.",
            )
    return weights


def geometric_mean(values: Sequence[float]) -> float:
    """The root of the product of absolute values, negative if a value is: good only where all are good, bad if one is.

    >>> geometric_mean([0.9, 0.4]), geometric_mean([-0.9, -0.4]), geometric_mean([8.0, 1.0, 1.0]), geometric_mean([5.0, 0.0])
    (0.6, -0.6, 2.0, 0.0)
    """
    size = prod(abs(value) ** (1 / len(values)) for value in values)
    return -size if min(values) < 0 else size


def agreement(rows: list[Trajectory], name: str) -> float:
    """Correlation of a term's value with `correct`, both less their group's mean, from -1 to 1; 0 where one of them does not vary."""
    values: list[tuple[float, float]] = []
    for members in by_group(rows).values():
        known = [
            (row.components[name], float(row.correct))
            for row in members
            if name in row.components and row.correct is not None
        ]
        means = [sum(column) / len(known) for column in zip(*known, strict=True)]
        values += [(value - means[0], verdict - means[1]) for value, verdict in known]
    both = sum(a * b for a, b in values)
    own, verdicts = (sum(pair[i] ** 2 for pair in values) for i in range(2))
    return both / (own * verdicts) ** 0.5 if own > SAME and verdicts > SAME else 0.0


def _copy(row: Trajectory) -> Trajectory:
    """A copy that a term may score; what it shares with the row is only read."""
    copied = copy(row)
    copied.components = dict(row.components)
    return copied


def _named_together(
    parts: list[dict[str, float]] | None, others: list[dict[str, float]] | None
) -> list[dict[str, float]] | None:
    """The named parts of each turn's reward, with those of a term that are not among them.

    >>> _named_together([{"a": 1.0}, {}], [{"a": 2.0, "b": 3.0}, {"b": 4.0}]), _named_together(None, None)
    ([{'a': 1.0, 'b': 3.0}, {'b': 4.0}], None)
    """
    if parts is None or others is None:
        return parts or others
    return [{**new, **old} for old, new in zip(parts, others, strict=True)]


def _term(number: int, spec: str | Mapping[str, Any], terms: Sequence[Term]) -> Term:
    """A term of the list, after these.

    Raises:
        RecipeError: names the field and the fix.
    """
    where, before = f"{FIELD}.terms.{number}", [term.name for term in terms]
    spec = {"kind": spec} if isinstance(spec, str) else dict(spec)
    own = {name: spec.pop(name) for name in TermSettings.model_fields if name in spec}
    try:
        about = TermSettings(**own)
    except ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(f"{where}.{'.'.join(place(first))}", f"{message(first)}.") from None
    if spec.get("kind") == "composite":
        raise RecipeError(where, "a composite reward cannot be a term of another one", "List its terms here.")
    try:
        reward = bind(FIELD, spec)
    except RecipeError as error:
        raise error.moved(FIELD, where) from None
    name = about.name or reward.fn.label or reward.name
    if name in before:
        raise RecipeError(where, f"a term called {name} stands before it", "Give one of them another `name`.")
    if about.gate is not None and about.gate.term not in before:
        raise RecipeError(
            f"{where}.gate.term",
            f"no term before this one is called {about.gate.term!r}",
            did_you_mean(about.gate.term, before),
        )
    if about.operation == "multiply" and not before:
        raise RecipeError(f"{where}.operation", "the first term has nothing to multiply", "Use add.")
    if about.operation == "geometric" and not before:
        raise RecipeError(f"{where}.operation", "the first term has nothing to take a mean with", "Use add.")
    term = Term(name, about, reward)
    _check_sources(where, term, terms)
    return term


def _check_sources(where: str, term: Term, terms: Sequence[Term]) -> None:
    """What a term goes by is there for all prompts that it pays: the term of its gate, and what it multiplies.

    Raises:
        RecipeError: some source has it not.
    """
    about, field = term.settings, f"{where}.sources"
    gate = next((each for each in terms if about.gate is not None and each.name == about.gate.term), None)
    if gate is not None and not gate.covers(term):
        problem = f"the gate goes by {gate.name}, which pays fewer sources"
        raise RecipeError(field, problem, f"Give {term.name} no source that {gate.name} does not have.")
    earlier = {source for each in terms for source in each.settings.sources or []}
    goes_by = any(each.covers(term) for each in terms) or earlier.issuperset(about.sources or [""])
    if about.operation != "add" and not goes_by:
        raise RecipeError(
            field,
            f"operation: {about.operation} goes by the terms before it, and some prompts that {term.name} pays have none",
            "Put terms before it that have at least these sources.",
        )
