"""Episodes that do not wait for each other: each asks for its next turn as soon as its environment has answered.

The sampler is asked for every episode that waits for the policy at that moment, while the environments of the others step in threads.
A sampler that says `concurrent` (a server, which batches by itself) is sent each turn at once, another one decodes what waits as one
batch. All else happens in the caller's thread.

Which episodes decode together depends on the time that environments take, their random numbers do not: every token is drawn from its
episode's own RNG stream, at its place among the episode's tokens. (In lockstep a turn's stream is the next one of its group, so it depends
on which of the group's episodes have ended.) Rows that are decoded together still change each other by rounding.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.contract.episode import drawn, give_up, hear, in_order, message_of, seated, speak, waiting
from pipelines.contract.played import Episode
from pipelines.data.records import Role
from pipelines.environments import _stepping

if TYPE_CHECKING:
    from pipelines.contract.rollout import Completion, RolloutContext, RolloutRequest
    from pipelines.contract.turn_budget import TurnBudget

TIMED_OUT = "episode_timed_out"
"""Status of an episode that was cut at its time limit."""


class Asynchronous:
    """A scheduler of episodes.

    Args:
        max_concurrent: episodes under way at once; the next one begins when one has ended.
        time_limit_s: wall time of an episode from its beginning, after which it is cut and unscored; None for no limit.
        batch_invariant: a sampler in this process decodes each turn by itself, so that the other episodes change no bit of it.
    """

    def __init__(self, max_concurrent: int, time_limit_s: float | None = None, batch_invariant: bool = False) -> None:
        self.max_concurrent, self.batch_invariant = max_concurrent, batch_invariant
        self.limit_s = math.inf if time_limit_s is None else time_limit_s
        self.seconds = self.decoding_s = 0.0
        """Spent on playing, and with something to decode, since they were last taken."""

    def play_out(
        self, requests: list[RolloutRequest], context: RolloutContext, budget: TurnBudget, *, restarts: bool = False
    ) -> list[Episode]:
        """As `pipelines.contract.episode.play_out`, in its order too."""
        began = time.monotonic()
        play = _Play(self, requests, context, budget, restarts)
        play.run()
        self.seconds += time.monotonic() - began
        self.decoding_s += play.decoding_s
        return [episode for episode in play.episodes() if episode.tokens or not episode.others]

    def take_idle_share(self) -> float | None:
        """Share of the time since the last call in which the sampler had nothing to decode; None where nothing was played."""
        share = max(0.0, 1 - self.decoding_s / self.seconds) if self.seconds else None
        self.seconds = self.decoding_s = 0.0
        return share


@dataclass(eq=False)
class _Game:
    """An episode, or those of all seats of a game, of which one is waited for at a time."""

    number: int
    seats: list[Episode]
    streams: list[int]
    """RNG stream of each seat's tokens."""
    until: float
    """When it is cut, by the monotonic clock."""

    def place(self, episode: Episode) -> tuple[int, int]:
        """The stream of a seat's tokens, and how many have been drawn from it."""
        seat = next(number for number, each in enumerate(self.seats) if each is episode)
        return self.streams[seat], episode.role.count(int(Role.POLICY))


@dataclass(eq=False)
class _Job:
    """What a thread does for a game: a step of its environment, or a turn of the policy."""

    game: _Game
    episode: Episode
    decodes: bool
    until: float
    """When it is given up."""
    result: Any = None
    error: BaseException | None = None


@dataclass
class _Play:
    """One call of `Asynchronous.play_out`."""

    rules: Asynchronous
    requests: list[RolloutRequest]
    context: RolloutContext
    budget: TurnBudget
    restarts: bool
    later: deque[RolloutRequest] = field(default_factory=deque)
    """Of every game that has not begun, its request."""
    games: list[_Game] = field(default_factory=list)
    """Those that have begun."""
    live: int = 0
    """Of them, those that have not ended."""
    ready: list[tuple[_Game, Episode]] = field(default_factory=list)
    """What waits for the policy."""
    under_way: set[_Job] = field(default_factory=set)
    done: queue.SimpleQueue[_Job] = field(default_factory=queue.SimpleQueue)
    decoding_s: float = 0.0
    decoding_since: float = 0.0
    """When the first of the present turns was sent, where the sampler is concurrent."""

    def run(self) -> None:
        """Play all episodes to their ends.

        Raises:
            Exception: what a world raised beside `Unavailable`, or the sampler.
        """
        self.later += [request for request in self.requests for _ in range(request.rollouts)]
        while self.later or self.live:
            while self._may_begin():
                self._begin(self.later.popleft())
            self._take_answers()  # first: what came while the sampler decoded is not late
            self._cut()
            self._decode()

    def _may_begin(self) -> bool:
        return bool(self.later) and self.live < self.rules.max_concurrent

    def _begin(self, request: RolloutRequest) -> None:
        seats = seated(request, self.context)
        streams = [self.context.streams.new(seat.request.group) for seat in seats]
        self.games.append(_Game(len(self.games), seats, streams, time.monotonic() + self.rules.limit_s))
        self.live += 1
        self._go_on(self.games[-1])

    def episodes(self) -> list[Episode]:
        """All of them, in the order of the requests."""
        seats = iter(game.seats for game in self.games)
        return in_order([[next(seats) for _ in range(request.rollouts)] for request in self.requests])

    def _go_on(self, game: _Game) -> None:
        """Have the seat whose turn it is wait for the policy, where the game has not ended."""
        active = waiting(game.seats, self.budget)
        self.ready += [(game, episode) for episode in active]
        self.live -= not active

    def _cut(self) -> None:
        """End what is late: games at their time limit, and those whose environment is at that of a step."""
        now = time.monotonic()
        for game, episode in [each for each in self.ready if each[0].until <= now]:
            self.ready.remove((game, episode))
            give_up(episode, TIMED_OUT)
            self.live -= 1
        for job in [each for each in self.under_way if each.until <= now]:
            self._leave(job)
            give_up(job.episode, TIMED_OUT if job.game.until <= now else _stepping.LATE)
            self.live -= 1

    def _decode(self) -> None:
        """The next turn of every episode that waits for the policy."""
        ready, self.ready = sorted(self.ready, key=lambda each: each[0].number), []
        if getattr(self.context.sampler, "concurrent", False):
            for game, episode in ready:
                self._send(game, episode, self._turn_of(game, episode), decodes=True)
            return
        size = 1 if self.rules.batch_invariant else max(1, len(ready))
        for batch in (ready[start : start + size] for start in range(0, len(ready), size)):
            began = time.monotonic()
            completions = self._drawn(batch)
            self.decoding_s += time.monotonic() - began
            self._spoken(batch, completions)

    def _drawn(self, batch: Sequence[tuple[_Game, Episode]]) -> list[Completion]:
        """The next turn of each episode."""
        episodes = [episode for _, episode in batch]
        streams = [game.place(episode) for game, episode in batch]
        return drawn(episodes, self.context, streams)

    def _turn_of(self, game: _Game, episode: Episode) -> Callable[[], Completion]:
        """What draws an episode's next turn, in any thread."""
        return lambda: self._drawn([(game, episode)])[0]

    def _spoken(self, turns: Sequence[tuple[_Game, Episode]], completions: Sequence[Completion]) -> None:
        """Give the policy's turns to their environments; those that wait for nothing answer at once, when the others have begun."""
        quick = []
        for (game, episode), completion in zip(turns, completions, strict=True):
            if not speak(episode, completion, self.context):
                self._go_on(game)
            elif episode.world.waits:
                self._send(game, episode, self._step_of(episode), decodes=False)
            else:
                quick.append((game, episode))
        for game, episode in quick:
            self._heard(game, episode, self._step_of(episode)())

    def _step_of(self, episode: Episode) -> Callable[[], Any]:
        world, message = episode.world, message_of(episode)
        return lambda: _stepping.step_one(world, message)

    def _heard(self, game: _Game, episode: Episode, step: Any) -> None:
        hear(episode, step, self.context, self.budget, restarts=self.restarts)
        self._go_on(game)

    def _send(self, game: _Game, episode: Episode, work: Callable[[], Any], *, decodes: bool) -> None:
        """Begin a job in a thread, which nothing waits for when the job is given up."""
        until = game.until if decodes else min(game.until, time.monotonic() + _stepping.STEP_S)
        job = _Job(game, episode, decodes, until)

        def run() -> None:
            try:
                job.result = work()
            except BaseException as error:  # raised again in the caller's thread
                job.error = error
            self.done.put(job)

        if decodes and not self._decodes():
            self.decoding_since = time.monotonic()
        self.under_way.add(job)
        threading.Thread(target=run, daemon=True, name="episode").start()

    def _decodes(self) -> bool:
        return any(job.decodes for job in self.under_way)

    def _leave(self, job: _Job) -> None:
        """A job is done, or given up."""
        self.under_way.remove(job)
        if job.decodes and not self._decodes():
            self.decoding_s += time.monotonic() - self.decoding_since

    def _take_answers(self) -> None:
        """Everything that threads have done; waits for something where there is nothing else to do."""
        block = bool(self.under_way) and not self.ready and not self._may_begin()
        while True:
            until = min((job.until for job in self.under_way), default=math.inf)
            limit = max(0.0, until - time.monotonic()) if until < math.inf else None
            try:
                job = self.done.get(block=block, timeout=limit if block else None)
            except queue.Empty:
                return
            if job not in self.under_way:
                continue  # it was late
            block = False
            self._leave(job)
            if job.error is not None:
                raise job.error
            if job.decodes:
                self._spoken([(job.game, job.episode)], [job.result])
            else:
                self._heard(job.game, job.episode, job.result)
