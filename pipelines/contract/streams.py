"""Random streams keyed by group: what a group draws is the same whichever rank samples it, and however many ranks there are."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Streams:
    """The random streams of a draw's groups.

    A stream depends on the key, the group and what the group itself has asked for so far, and on no other group. Ranks share a draw by
    whole groups, so a draw is the same for any number of them.

    Args:
        key: seed, step and whatever else tells this draw from others.
    """

    def __init__(self, *key: int | str) -> None:
        self.key = key
        self._asked: Counter[int] = Counter()
        self._generators: dict[int, torch.Generator] = {}

    def new(self, group: int) -> int:
        """RNG stream id for the tokens of the group's next row, int64.

        >>> one, two = Streams("seed", 3), Streams("seed", 3)
        >>> of_others = [two.new(8) for _ in range(5)]
        >>> [one.new(7), one.new(7)] == [two.new(7), two.new(7)], len({*of_others, one.new(7), two.new(8)})
        (True, 7)
        """
        self._asked[group] += 1
        return stream_id("row", *self.key, group, self._asked[group])

    def generator(self, group: int) -> torch.Generator:
        """The group's generator, on the CPU, for everything that is not a row's tokens; the same one whenever it is asked for."""
        import torch  # not above: reading a recipe imports this module

        if group not in self._generators:
            self._generators[group] = torch.Generator().manual_seed(seed_of("group", *self.key, group))
        return self._generators[group]

    def integer(self, group: int) -> int:
        """A number of the group from 0 to 2**62 - 1, a seed for others' generators."""
        import torch

        return int(torch.randint(2**62, (), generator=self.generator(group)))

    def uniform(self, group: int) -> float:
        """A number of the group in [0, 1)."""
        import torch

        return float(torch.rand((), generator=self.generator(group)))


def stream_id(*parts: Any) -> int:
    """RNG stream id that depends on the parts only, int64."""
    hashed = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(hashed[:8], "little", signed=True)


def stream_ids(count: int, *parts: Any) -> list[int]:
    """`stream_id(*parts, index)` for each index below `count`; what is common to them is hashed once.

    >>> stream_ids(2, "sample", 5) == [stream_id("sample", 5, 0), stream_id("sample", 5, 1)]
    True
    """
    common = hashlib.sha256((repr((*parts, 0)).removesuffix("0)")).encode())
    ids = []
    for index in range(count):
        hashed = common.copy()
        hashed.update(b"%d)" % index)
        ids.append(int.from_bytes(hashed.digest()[:8], "little", signed=True))
    return ids


def seed_of(*parts: Any) -> int:
    """As `stream_id`, from 0 to 2**63 - 1, for generators, of which some take no negative seed."""
    return stream_id(*parts) & (2**63 - 1)
