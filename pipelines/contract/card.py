"""What a method says about itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipelines.base.errors import RecipeError

CHECKED = ("official code", "third-party code", "paper", "closed form", "reconstructed")
"""How a method's results were verified; "third-party code" may be followed by which in brackets."""
PROVENANCE = ("rule", "preferences", "step labels", "demonstrations", "judge", "reward model", "model", "policy")
"""What rewards are made from: a program, pairs of answers, labels of steps, somebody's solutions, a language model that is asked, a reward
model of which nothing more is known, a model's probabilities or embeddings, the policy's own answers, probabilities and states."""
DIVERGENCE = "rlvr.divergence"
TERMS = (DIVERGENCE, "rlvr.auxiliary_loss")
"""Slots whose methods are terms of a sum: there `weight` is the term's factor, elsewhere a setting like any other."""


@dataclass(frozen=True)
class Card:
    """What a method says about itself."""

    paper: str
    """arXiv id, DOI, or "folklore"."""
    title: str
    checked: str
    """One of `CHECKED`, possibly with a remark in brackets."""
    zero_gradient_at_zero_advantage: bool = False
    """For objectives: a row whose advantage is 0 everywhere gives zero gradient, so its forward may be skipped."""
    not_reinforce: str = ""
    """For objectives: why on policy its gradient is not REINFORCE's; empty where it is."""
    stops_gradient: str = ""
    """For objectives: where it stops a gradient on purpose, so that its gradient is not the derivative of its value; empty where not."""
    group_of_one: str = ""
    """Why a group of one may get something other than 0; empty where it gets 0."""
    zero_variance_groups: str = ""
    """"learns": gives groups without reward differences a signal; "drops": a filter that removes them."""
    crosses_groups: str = ""
    """Why rows of other groups may change a row's result; empty where, with the default settings, they may not."""
    couples: Literal["row", "group", "batch"] = "batch"
    """For what is called with columns: what else may change a row's result: nothing, rows of its group, or any row. Of several processes
    each has rows of its own groups; what couples a batch is called with the columns of all of them."""
    couples_batch_with: tuple[tuple[str, Any], ...] = ()
    """(setting, value) pairs with which it couples a batch all the same."""
    batch_coupled: bool = False
    """For objectives, divergences and auxiliary losses: its loss is not a sum over rows; it is computed over a whole update at once."""
    normalise_separately: bool = False
    """For objectives: teacher-forced tokens have denominators of their own. What a replay adds says so itself (`PolicyUpdate`)."""
    shapes_turns: bool = False
    """For shaping: it returns the rewards of turns [B, S] instead of rows; what it adds to a row's turns is added to the row's reward."""
    requires: tuple[tuple[str, str], ...] = ()
    """(slot, method) pairs that the recipe must have too."""
    legal_in: tuple[str, ...] = ()
    """For divergences: the placements ("loss", "reward") where its gradient is correct."""
    makes: tuple[str, ...] = ()
    """Columns that exist because of it."""
    ratio_level: str = ""
    """For objectives: whose ratio it is, "token", "turn" or "sequence"; for credits: whose ratio they correct, which a setting `level` may
    say otherwise."""
    sets_group_size: bool = False
    """For rollouts: a group may have other rows than `group_size` says."""
    forces_rows: bool = False
    """For rollouts: some rows hold no token that the policy chose in its place, so a reward cannot tell their steps apart."""
    scores_rows: bool = False
    """For rollouts: it scores its rows itself, some of them by what no verifier of the record's can see."""
    intrinsic: bool = False
    """For shaping: what it adds is a bonus for exploration, which does not depend on the reward; others may fuse it or choose it."""
    leaves_statistics: bool = False
    """For filters: a row it leaves out also leaves the statistics; others keep the row there and take it out of the loss alone."""
    reads: tuple[str, ...] = ()
    """Columns that its hooks want, beside those it is called with."""
    provenance: tuple[str, ...] = ()
    """What the rewards that it pays are made from, of `PROVENANCE`; empty where it pays none, or where its settings say it: a reward
    that names a judge, a reward model or a model to score with; any other is a rule."""
    check: Callable[[Bound, Mapping[str, Any], Any], None] | None = None
    """A rule between this part and the others of its stage, in the part's own file. It is called as `check(part, bound, node)`: the part
    with its settings; slot (without `rlvr.`) and `providers` → the stage's parts, bound; the stage in its recipe. It raises a `RecipeError`
    with the reason and the fix."""
    reduces_to: str = ""
    """What it becomes for which settings."""


@dataclass(frozen=True)
class Bound:
    """A method with its settings chosen."""

    slot: str
    name: str
    settings: dict[str, Any]
    needs: tuple[str, ...]
    takes: tuple[str, ...]
    fn: Any
    """A `Method`: the class's instance, or the function with its settings in a `FunctionMethod`."""
    card: Card
    weight: float = 1.0
    """Factor of a term in a sum (divergences, auxiliary losses); the method never sees it."""
    where: str = "loss"
    """Placement of a divergence: "loss" or "reward"."""

    @property
    def bootstraps(self) -> bool:
        """For advantages: it reads `unfinished`. An unfinished row is worth what the critic says at its end, so it trains (with
        `rlvr.window` at every window), and the critic is not fitted to it."""
        return "unfinished" in self.takes

    @property
    def sees_all(self) -> bool:
        """Whether it must see all rows of a step, because it remembers or shows something."""
        return any(self.fn.uses(hook) for hook in ("state_dict", "metrics", "lines"))

    @property
    def couples(self) -> str:
        """As its card says, or a batch where it must see all rows or a setting says so."""
        chosen = any(self.settings.get(name) == value for name, value in self.card.couples_batch_with)
        return "batch" if self.sees_all or chosen else self.card.couples

    @property
    def ratio_level(self) -> str:
        """Whose ratio it has or corrects, as its setting `level` or its card says."""
        return str(self.settings.get("level", self.card.ratio_level))

    def __call__(self, columns: Mapping[str, Any]) -> Any:
        missing = [c for c in self.needs if columns.get(c) is None]
        if missing:
            raise RecipeError(self.slot, f"{self.name} needs {', '.join(missing)}, which nothing here produces.")
        return self.fn(**{c: columns[c] for c in self.takes})
