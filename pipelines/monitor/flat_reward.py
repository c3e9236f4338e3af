"""No answer is told from another: the rewards of a group are equal, or nothing is scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from pipelines.contract.catalogue import method
from pipelines.contract.monitor import Monitor, mean


@method(paper="2503.14476", title="Groups without variance (DAPO)", checked="closed form")
class flat_reward(Monitor):
    """Nearly all rollouts are in groups whose rewards are equal, so that their advantage is 0 and nothing is learned.

    The rule is violated where, over the last `window` steps, the mean of `reward/equal_share` is at least `above`, or that of
    `reward/unscored_share` is; a step without a scored rollout counts as equal. A run that has told answers apart before and now
    solves at least `solved` of its problems has learned what there was, and is left alone. So is a step in which a shaping or credit part
    paid something beside the reward (`signal/changed_share`): a teacher's signal needs no reward.
    """

    reads = ("reward/equal_share", "reward/mean", "reward/correct", "reward/unscored_share")
    may_read = ("signal/changed_share",)

    def __init__(
        self,
        *,
        above: Annotated[float, Field(gt=0, le=1)] = 0.95,
        solved: Annotated[float, Field(gt=0, le=1)] = 0.9,
        window: Annotated[int, Field(ge=1, le=10_000)] = 10,
    ) -> None:
        self.above, self.solved, self.window = above, solved, window
        self.last: list[list[float]] = []
        self.told_apart = False

    def judge(self, values: Mapping[str, float]) -> str | None:
        """Over the last window."""
        self.last = [
            *self.last,
            [*(float(values[name]) for name in self.reads), values.get("signal/changed_share", 0.0)],
        ]
        self.last = self.last[-self.window :]
        if len(self.last) < self.window:
            return None
        equal, reward, correct, unscored, changed = (mean(column) for column in zip(*self.last, strict=True))
        if unscored >= self.above:
            return (
                f"{100 * unscored:.0f} % of the rollouts have had no score for {self.window} steps, so nothing is learned. Look at their "
                "status in rollouts.jsonl: the verifier, the reward function or the environment fails on them"
            )
        if equal < self.above or changed > 0:
            self.told_apart |= equal < self.above
            return None
        if self.told_apart and correct >= self.solved:
            return None
        return (
            f"{100 * equal:.0f} % of the rollouts of {self.window} steps are in groups with equal rewards (mean reward {reward:.3g}, "
            f"{100 * correct:.0f} % correct), so nothing is learned. {self._advice(reward, correct)}"
        )

    def _advice(self, reward: float, correct: float) -> str:
        if correct >= self.solved:
            return "The problems are solved already: take harder ones"
        if reward > 0:
            return "Every answer is paid the same: look at what the reward pays for (rollouts.jsonl), and let it tell answers apart"
        return (
            "No answer is paid: read some in rollouts.jsonl. If they are right, the verifier or the form of the gold answers is wrong "
            "(whetstone verify); if they are wrong, take easier problems, more SFT before, or larger groups (rlvr.group_size)"
        )

    def state_dict(self) -> dict[str, Any]:
        """The last values, and whether answers were told apart."""
        return {"last": self.last, "told_apart": self.told_apart}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.last, self.told_apart = [list(row) for row in state["last"]], state["told_apart"]
