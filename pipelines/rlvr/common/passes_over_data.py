"""Problems in shuffled passes; shared by the curricula that go through all of them."""

from __future__ import annotations

import random
from typing import Any

from pipelines.contract.method import Curriculum
from pipelines.contract.rollout import Allocation


class Passes(Curriculum):
    """Each pass is a new permutation that depends on the seed and the pass only."""

    def __init__(self) -> None:
        self.taken = 0
        self._order: tuple[int, list[int]] | None = None

    def propose(self, count: int, rollouts: int) -> list[Allocation]:
        """The next problems, with as many rollouts each; a call may cross the end of a pass."""
        return [Allocation(problem, rollouts) for problem in self.next_problems(count)]

    def next_problems(self, count: int) -> list[int]:
        """Indices of the next problems.

        >>> passes = Passes(); passes.start(3, 0); sorted(passes.next_problems(3)), len(passes.next_problems(4))
        ([0, 1, 2], 4)
        """
        problems: list[int] = []
        while len(problems) < count:
            pass_index, position = divmod(self.taken, self.size)
            chunk = self._permutation(pass_index)[position : position + count - len(problems)]
            problems += chunk
            self.taken += len(chunk)
        return problems

    def _permutation(self, pass_index: int) -> list[int]:
        if self._order is None or self._order[0] != pass_index:
            order = list(range(self.size))
            random.Random(f"{self.seed} {pass_index}").shuffle(order)
            self._order = pass_index, order
        return self._order[1]

    def state_dict(self) -> dict[str, Any]:
        """Problems proposed so far."""
        return super().state_dict() | {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        super().load_state_dict(state)
        self.taken = state["taken"]
