"""Processes that share what a stage asks models: the first one runs the stage, and hands parts of its questions to all of them.

The first process alone reads data, scores and writes. Each other one loads the models that the first one loads, and does its share of every
list of parts. A part must not depend on the others, and is the same for any number of processes; so are then the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

from pipelines.engine.parallel import World

Loaded = TypeVar("Loaded")
Part = TypeVar("Part")
Result = TypeVar("Result")
P = ParamSpec("P")


class Ranks:
    """The processes of a stage, as the first one sees them. The others call `serve` and nothing else.

    What is handed to the others is pickled: functions are those of modules.

    Args:
        world: default: this process alone.
    """

    def __init__(self, world: World | None = None) -> None:
        self.world = World() if world is None else world
        self.first = self.world.rank == 0

    @classmethod
    def join(cls) -> Ranks:
        """The processes that `pipelines.stage.launch` has started for the stage."""
        return cls(World.join(tensors=False))

    def load(self, load: Callable[P, Loaded], *args: P.args, **options: P.kwargs) -> Loaded:
        """What `load` returns here; each other process loads its own, in place of what it had."""
        self.world.gather((load, args, options, None))
        return load(*args, **options)

    def divide(
        self,
        loaded: Loaded,
        work: Callable[[Loaded, Sequence[Part]], Iterable[Result]],
        parts: Sequence[Part],
        done: Callable[[int], object] | None = None,
    ) -> list[Result]:
        """The result of each part, in order.

        Args:
            loaded: what `load` returned last.
            work: the results of some of the parts, one by one.
            done: called with how many parts are, if all processes are as far as this one.
        """
        self.world.gather((work, (), {}, parts))
        own: list[Result] = []
        for result in work(loaded, self.world.share(parts)):
            own.append(result)
            if done is not None:
                done(min(len(parts), len(own) * self.world.size))
        return self.world.joined(own)

    def end(self) -> None:
        """Let the others end."""
        self.world.gather(None)

    def serve(self) -> None:
        """Do what the first process asks for, until it ends."""
        loaded: Any = None
        while (order := self.world.gather(None)[0]) is not None:
            function, args, options, parts = order
            if parts is None:
                loaded = None  # two models at once may not fit
                loaded = function(*args, **options)
            else:
                self.world.joined(list(function(loaded, self.world.share(parts))))
