"""Problems in shuffled passes; shared by the curricula that go through all of them."""

from __future__ import annotations

import random
from typing import Any


class Passes:
    """Each pass is a fresh permutation that depends on the seed and the pass only."""

    def __init__(self) -> None:
        self.size, self.seed, self.taken = 0, 0, 0

    def start(self, size: int, seed: int) -> None:
        """Told once how many problems there are."""
        self.size, self.seed = size, seed

    def propose(self, count: int) -> list[int]:
        """Numbers of the next problems; a call may cross the end of a pass.

        >>> u = Passes(); u.start(3, 0); sorted(u.propose(3)), len(u.propose(4))
        ([0, 1, 2], 4)
        """
        found: list[int] = []
        while len(found) < count:
            lap, at = divmod(self.taken, self.size)
            order = self._order(lap)
            part = order[at : at + count - len(found)]
            found += part
            self.taken += len(part)
        return found

    def _order(self, lap: int) -> list[int]:
        if getattr(self, "_lap", None) != lap:
            self._lap, self._cached = lap, list(range(self.size))
            random.Random(f"{self.seed} {lap}").shuffle(self._cached)
        return self._cached

    def observe(self, numbers: list[int], rates: list[float]) -> None:
        """Pass rates of problems just sampled; not used here."""

    def state_dict(self) -> dict[str, Any]:
        """What a restart needs."""
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.taken = state["taken"]
