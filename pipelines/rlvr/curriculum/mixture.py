"""Problems of several sources by shares, whatever the sources' sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import bind, method
from pipelines.contract.method import Curriculum
from pipelines.contract.rollout import Allocation, GroupOutcome
from pipelines.recipe.stage_checks import feeding
from pipelines.rlvr.common.source_labels import source_labels

if TYPE_CHECKING:
    from pipelines.contract.rollout import SetupContext
    from pipelines.contract.scorer import Scorer
    from pipelines.data.records import Trajectory

FIELD = "rlvr.curriculum"
OF_ALL_ROWS = ("on_rollouts", "on_batch")
"""Hooks that are called with the rows of all sources together."""
Share = Annotated[float, Field(ge=0, le=1e6)]


def _sources_and_part(part: Bound, bound: Mapping[str, Any], node: Any) -> None:
    """The curriculum inside keeps to one source, and the shares name sources of the split as far as these are known before the data."""
    inner = part.fn.parts()[0]
    if inner.fn.tries_out:
        raise RecipeError(
            f"{FIELD}.within",
            f"{inner.name} leaves out problems that it has tried, so that no shares would hold",
            "Use uniform, or filter by curate.difficulty.",
        )
    if isinstance(inner.fn, mixture) or inner.card.reads or any(inner.fn.uses(hook) for hook in OF_ALL_ROWS):
        raise RecipeError(
            f"{FIELD}.within",
            f"{inner.name} goes by the rows of whole steps, and these are of all sources",
            "Use one that goes by the outcomes of its own problems, such as uniform, vade or inverse_gap.",
        )
    sources = [source for _, source in feeding(node, node.settings.split)]
    if sources and all(source.task is not None for source in sources):
        _check_names(part.settings["shares"], {str(source.task) for source in sources}, node.settings.split)


def _check_names(shares: Mapping[str, float], there: set[str], split: str) -> None:
    """The shares name sources that the split has, and all of them.

    Raises:
        RecipeError: they do not.
    """
    if unknown := set(shares) - there:
        hint = did_you_mean(min(unknown), there)
        raise RecipeError(f"{FIELD}.shares", f"{split} has no record of the source {min(unknown)!r}", hint)
    if left_out := there - set(shares):
        problem = f"{split} has records of the source {min(left_out)!r} too"
        raise RecipeError(f"{FIELD}.shares", problem, "Give it a share; 0 leaves it out.")


@method(paper="folklore", title="Sources mixed by shares", checked="closed form", check=_sources_and_part)
class mixture(Curriculum):
    """Each next problem is of the source that is furthest behind its share of all problems drawn so far.

        next source = argmax_s  w_s (n + 1) - n_s,   n_s problems drawn of source s, n of all, w_s its share, sum of w_s = 1

    So after any number of draws a source is less than one problem ahead of its share, and less than `sources` problems behind it. Which
    of its problems comes next is up to a curriculum of its own, of the kind `within`: `uniform` passes over each source by itself, every
    problem once a pass, so that a small one starts again while a large one is still in its first pass. A source is called by what its
    records name: the column `data_source`, or the `task` or `path` of the recipe's source. Shares are relative to their sum; 0 leaves a
    source out. A propensity that `within` tells is the one among the problems of its source.

    Metrics: `share/SOURCE` of the step's problems, and `score/SOURCE`, the mean score of its rows, by the end of the source's name.

    >>> part = mixture(shares={"sums": 3, "words": 1})
    >>> part.sources = ["sums"] * 2 + ["words"] * 9
    >>> part.start(11, 0)
    >>> ["sums" if a.problem < 2 else "words" for a in part.propose(8, 4)]
    ['sums', 'sums', 'words', 'sums', 'sums', 'sums', 'words', 'sums']
    """

    def __init__(
        self,
        *,
        shares: Annotated[dict[str, Share], Field(min_length=1, max_length=1000)],
        within: str | dict[str, Any] = "uniform",
    ) -> None:
        total = sum(shares.values())
        if not total:
            raise RecipeError(f"{FIELD}.shares", "all are 0", "Give a source a share above 0.")
        self.named = dict(shares)
        self.shares = {name: share / total for name, share in sorted(shares.items()) if share}
        self.within = {name: bind("rlvr.curriculum", within, f"{FIELD}.within") for name in self.shares}
        self.drawn = dict.fromkeys(self.shares, 0)
        """Source → problems drawn so far."""
        self.members: dict[str, list[int]] = {}
        """Source → its problems, by index in the split."""
        self.step: list[tuple[str, int, float | None]] = []
        """Source, group and score of the step's rows."""
        self.labels = source_labels(self.shares)

    def parts(self) -> Sequence[Bound]:
        """The curricula of the sources."""
        return list(self.within.values())

    def connect(self, scorer: Scorer) -> None:
        """Pass on to the curricula of the sources."""
        for part in self.within.values():
            part.fn.connect(scorer)

    def setup(self, context: SetupContext) -> None:
        """Set up the curriculum of each source with what is said of its own problems."""
        super().setup(context)
        for name, part in self.within.items():
            part.fn.setup(_of_source(context, self.members[name]))

    def start(self, size: int, seed: int) -> None:
        """Divide the problems by their source."""
        super().start(size, seed)
        _check_names(self.named, set(self.sources), "the split")
        self.members = {name: [] for name in self.shares}
        for problem, name in enumerate(self.sources):
            if name in self.members:
                self.members[name].append(problem)
        for name, part in self.within.items():
            part.fn.start(len(self.members[name]), seed)

    def propose(self, count: int, rollouts: int) -> list[Allocation]:
        """The next problems, source by source as the shares are due."""
        order = [self._next_source() for _ in range(count)]
        proposed = {
            name: iter(self.within[name].fn.propose(wanted, rollouts))
            for name, wanted in sorted(Counter(order).items())
        }
        allocations = [(name, next(proposed[name])) for name in order]
        return [replace(each, problem=self.members[name][each.problem]) for name, each in allocations]

    def _next_source(self) -> str:
        place = sum(self.drawn.values()) + 1
        name = max(self.shares, key=lambda name: self.shares[name] * place - self.drawn[name])
        self.drawn[name] += 1
        return name

    def observe(self, outcomes: list[GroupOutcome]) -> None:
        """Tell the curriculum of each source what came of its own problems."""
        for name, part in self.within.items():
            place = {problem: own for own, problem in enumerate(self.members[name])}
            own = [replace(each, problem=place[each.problem]) for each in outcomes if each.problem in place]
            if own:
                part.fn.observe(own)

    def on_rollouts(self, rows: list[Trajectory]) -> list[Trajectory]:
        """Note the rows for the step's metrics."""
        self.step += [(row.source, row.group, row.score) for row in rows if row.source in self.shares]
        return rows

    def metrics(self) -> dict[str, float]:
        """Of each source its share of the step's groups, and the mean score of its rows that have one."""
        shown: dict[str, float] = {}
        groups = {(name, group) for name, group, _ in self.step}
        for name, label in self.labels.items():
            shown[f"share/{label}"] = sum(each == name for each, _ in groups) / max(1, len(groups))
            scores = [score for each, _, score in self.step if each == name and score is not None]
            if scores:
                shown[f"score/{label}"] = sum(scores) / len(scores)
        self.step = []
        return shown

    def state_dict(self) -> dict[str, Any]:
        """What was drawn, and what the curricula of the sources remember."""
        own = {name: part.fn.state_dict() for name, part in self.within.items()}
        return super().state_dict() | {"sources": list(self.sources), "drawn": dict(self.drawn), "within": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.sources = state["sources"]
        super().load_state_dict(state)
        self.drawn = dict(state["drawn"])
        for name, part in self.within.items():
            part.fn.load_state_dict(state["within"][name])


def _of_source(context: SetupContext, members: list[int]) -> SetupContext:
    """What a method may ask of the run, of the problems of one source."""

    def prompts() -> list[list[int]]:
        rendered = context.prompts()
        return [rendered[problem] for problem in members]

    def rollouts(problems: list[int], count: int) -> list[Trajectory]:
        return context.rollouts([members[problem] for problem in problems], count)

    sources = [context.sources[problem] for problem in members]
    return replace(context, problems=len(members), sources=sources, prompts=prompts, rollouts=rollouts)
