"""Who fills the columns that a forward pass or a model of its own gives.

Reference policy, critic, teacher, hidden-state statistics, process reward model: each is one file in
pipelines/rlvr/providers, chosen in `rlvr.providers` by its name, or by itself where its column says `automatic`. The learner
holds them in one list, knows them by what their card says they make, and commits them with itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

    from pipelines.contract.model_settings import Model
    from pipelines.contract.scorer import Scorer
    from pipelines.data.records import Problem


@dataclass(frozen=True)
class ProviderContext:
    """The learner's side of things, as a provider sees it."""

    policy: Any
    """The policy that is trained (`pipelines.engine.policy.Policy`)."""
    passes: Any
    """Forward passes over a step's rows (`pipelines.rlvr.passes.ForwardPasses`)."""
    rlvr: Any
    """The recipe's section `rlvr` (`pipelines.recipe.settings.Rlvr`)."""
    model: Model
    start: str
    """Model folder that the run started from."""
    seed: int
    outcome_tokens: Callable[[dict[str, Any]], Tensor]
    """The step's columns → bool [B, T], the trained tokens of rows whose outcome is known: what values are fitted to."""
    scorer: Scorer
    """How likely the policy, as it is before the step's updates, or another model finds a text. All processes ask the same."""
    problems: Mapping[int, Problem]
    """The column `problem` → the problem."""
    options: dict[str, Any]
    """Column → how it is to be made, as the methods that read it ask (`Method.column_options`)."""
    reward_terms: Sequence[str] = ()
    """Names of the terms that the reward is a sum of, in the order of the column `reward_terms`."""


class Provider:
    """Fills columns before credit is assigned; may learn something of its own after the policy's updates."""

    model_paths: ClassVar[tuple[str, ...]] = ()
    """As a `Method`'s."""
    reward_models: ClassVar[tuple[str, ...]] = ()
    """As a `Method`'s."""
    info_fields: ClassVar[tuple[str, ...]] = ()
    """As a `Method`'s."""
    asks_policy: bool = False
    """As a `Method`'s."""
    reads_all_rows: ClassVar[bool] = True
    """Whether every process must have every row of a step for it; otherwise each fills the columns of its own rows, by `passes` alone, and
    nothing is learned from them."""
    reads_network: bool = False
    """As a `Method`'s."""
    reads: Sequence[str] = ()
    """Columns that it cannot do without: those that a rollout or a reward must make, and rewards where it alone reads them."""
    reward_terms: Sequence[str] = ()
    """Terms of the reward that it asks for by their names."""
    warm_up: int = 0
    """First steps of the run in which it is fitted while the policy stands still."""
    fitted_to: Mapping[str, Any] | None = None
    """What the values it makes are fitted to: `at` (tokens or turns) and the settings of the returns; None where they are not fitted."""

    def setup(self, context: ProviderContext) -> None:
        """Once per process, before the first step and before a restart's `load_state_dict`: load or build what is needed."""

    def fill(self, tokens: Tensor, columns: dict[str, Any]) -> None:
        """Put the columns it makes into `columns`, in place, without gradient.

        Args:
            tokens: int64 [B, T], padded on the right.
            columns: the step's columns, on the CPU.
        """

    def update(self, tokens: Tensor, columns: dict[str, Any]) -> dict[str, float]:
        """After the policy's updates of a step: fit what is learned. Returns metrics by name."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs beyond `setup`; part of every commit. Every process calls it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
