"""One conversation with an environment, token by token; shared by rollouts with turns and by evaluation."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.contract.played import Episode, conversations, restart
from pipelines.contract.turn_budget import SUMMARIES, TurnBudget
from pipelines.data import chat
from pipelines.data.records import Role, Stop, Trajectory
from pipelines.environments._stepping import step_all

if TYPE_CHECKING:
    from pipelines.contract.rollout import Completion, RolloutContext, RolloutRequest
    from pipelines.environments._forms import Asking, Game


def play(
    requests: list[RolloutRequest],
    context: RolloutContext,
    budget: TurnBudget,
    *,
    split: bool = False,
    scheduler: Callable[..., list[Episode]] | None = None,
) -> list[Trajectory]:
    """All episodes of the requests side by side, within their turn budget.

    Args:
        scheduler: plays them out in another order than `play_out`, called as that is.
        split: a row for each conversation of an episode in which new ones begin, for training; else one row for the whole episode,
            in which they lie one behind the other.
    """
    episodes = (scheduler or play_out)(requests, context, budget, restarts=True)
    rows: list[Trajectory] = []
    begun = Counter[int]()  # episodes of each group that have their rows
    for episode in episodes:
        parts = conversations(episode) if split else [episode]
        own = [part.trajectory(context, budget.most_turns) for part in parts]
        if len(parts) > 1:
            for row in own:
                row.extras["episode"] = begun[episode.request.group]
        if budget.compact is not None:
            own[-1].components[SUMMARIES] = float(len(episode.summaries))
            for row in own:
                row.max_tokens += budget.compact.max_tokens
        begun[episode.request.group] += 1
        rows += own
    return rows


def play_out(
    requests: list[RolloutRequest], context: RolloutContext, budget: TurnBudget, *, restarts: bool = False
) -> list[Episode]:
    """As `play`, the episodes themselves, with their environments in the states that they ended in; each turn waits for the slowest.

    Args:
        restarts: new conversations may begin; else an episode in which one does ends unscored.

    Of a game that the policy plays with itself there is one for each seat that had a turn; those of a seat lie together.
    """
    episodes = in_order([[seated(request, context) for _ in range(request.rollouts)] for request in requests])
    while active := waiting(episodes, budget):
        advance(active, context, budget, restarts=restarts)
    return [episode for episode in episodes if episode.tokens or not episode.others]


def in_order(games: Sequence[Sequence[Sequence[Episode]]]) -> list[Episode]:
    """The episodes of requests → games → seats: those of a request together, in it those of a seat."""
    return [episode for own in games for seat in zip(*own, strict=True) for episode in seat]


def waiting(episodes: Sequence[Episode], budget: TurnBudget) -> list[Episode]:
    """Those that go on, and whose message their environment waits for."""
    return [e for e in episodes if e.stop is None and e.played < budget.most_turns and _moves_next(e)]


def start(request: RolloutRequest, context: RolloutContext) -> Episode:
    """A new episode of a problem; one that draws lots gets a number of its own from the context's RNG stream.

    Raises:
        RecipeError: the problem names no environment, or one that does not exist, or a game in which the policy has several seats.
    """
    episode, *others = seated(request, context)
    if others:
        raise RecipeError(
            "rlvr.rollout",
            f"problem {request.problem.uid} is a game that the policy plays with itself, which rollout: multi_turn alone can",
            "Use that, or give the data an `opponent`: random or perfect.",
        )
    return episode


def seated(
    request: RolloutRequest, context: RolloutContext, begun: tuple[str, environments.Environment] | None = None
) -> list[Episode]:
    """A new episode, or one for each seat of the policy: the group of the seats' first is the problem's, the next one's `prompts` on.

    Args:
        begun: what `new_world` gave; default: another one.
    """
    name, world = begun or new_world(request, context)
    seats = tuple(getattr(world, "seats", (None,)))
    episodes = []
    for place, seat in enumerate(seats):
        of_seat = replace(request, group=request.group + place * context.prompts)
        episodes.append(Episode(of_seat, world, name, [], [], [], [], [], [], player=seat))
    for episode in episodes:
        episode.others = [other for other in episodes if other is not episode]
        if _moves_next(episode):
            episode.add(request.prompt, Role.PROMPT)
            episode.opening = list(request.problem.prompt) if episode.others else None
    return episodes


def _moves_next(episode: Episode) -> bool:
    """Whether the environment waits for this episode's message."""
    return not episode.others or getattr(episode.world, "mover", None) == episode.player


def new_world(request: RolloutRequest, context: RolloutContext) -> tuple[str, environments.Environment]:
    """Name of the problem's environment, and one that has begun."""
    name = request.problem.info.get("environment")
    if name is None:
        raise RecipeError(
            "rlvr.rollout",
            f"problem {request.problem.uid} has no environment; multi-turn rollouts need records of a source with kind: environment.",
        )
    world = environments.make(str(name))
    world.reset(request.problem)
    reseed = getattr(world, "reseed", None)
    if reseed is not None:
        reseed(context.streams.integer(request.group))
    return str(name), world


def advance(
    episodes: list[Episode], context: RolloutContext, budget: TurnBudget | None = None, *, restarts: bool = False
) -> None:
    """One turn of every episode."""
    completions = drawn(episodes, context)
    take_turns(episodes, completions, context, budget=budget, restarts=restarts)


def drawn(
    episodes: Sequence[Episode], context: RolloutContext, streams: Sequence[tuple[int, int]] | None = None
) -> list[Completion]:
    """The next turn of each episode; `streams` as in `RolloutContext.extend`."""
    if any(episode.summarises for episode in episodes):
        from pipelines.contract.compaction import drawn_with_summaries  # few runs need its code

        return drawn_with_summaries(episodes, context, streams)
    return context.extend([e.context for e in episodes], [e.request.group for e in episodes], streams=streams)


def take_turns(
    episodes: Sequence[Episode],
    completions: Sequence[Completion],
    context: RolloutContext,
    nodes: Sequence[int] | None = None,
    budget: TurnBudget | None = None,
    *,
    restarts: bool = False,
) -> None:
    """Put the policy's tokens into the episodes and let their environments answer, side by side where these wait.

    Args:
        nodes: tree node of each new turn.
        restarts: as in `play_out`.
    """
    playing = []
    for index, (episode, completion) in enumerate(zip(episodes, completions, strict=True)):
        if speak(episode, completion, context, -1 if nodes is None else nodes[index]):
            playing.append(episode)
    steps = step_all([e.world for e in playing], [message_of(e) for e in playing])
    for episode, step in zip(playing, steps, strict=True):
        hear(episode, step, context, budget, restarts=restarts)


def speak(episode: Episode, completion: Completion, context: RolloutContext, node: int = -1) -> bool:
    """Put the policy's tokens of a turn into its episode; whether the environment is to answer them.

    Without tokens its context is full, and it ends; a summary is answered by a new conversation that begins with it.
    """
    if not completion.tokens:
        _end(episode, Stop.LENGTH)
        return False
    if hasattr(episode.world, "limits"):
        completion = _as_asked(episode, completion, context)
    episode.worlds.append(episode.world.state_key())
    episode.speak(completion, node)
    episode.states.append(environments.key_number(episode.worlds[-1]))
    episode.texts.append(context.decode(completion.tokens))
    episode.cuts.append(completion.stop != Stop.END)
    if episode.summarises is not None:
        from pipelines.contract.compaction import begin_anew

        begin_anew(episode, context)
        return False
    return True


def hear(
    episode: Episode,
    step: environments.Step | str,
    context: RolloutContext,
    budget: TurnBudget | None = None,
    *,
    restarts: bool = False,
) -> None:
    """Put what the environment answered to its last turn into an episode; a status instead ends it, unscored."""
    if isinstance(step, str):
        give_up(episode, step)
    elif step.restart and not restarts:
        give_up(episode, "environment_failed")
    else:
        _receive(episode, environments.read_step(episode.name, step), context, budget)


def _as_asked(episode: Episode, completion: Completion, context: RolloutContext) -> Completion:
    """A completion within the limits that the environment asks for; it is told what the completion costs.

    A completion that is cut after its first n tokens has the chance that one drawn up to there has.
    """
    world = cast("Asking", episode.world)
    limits = world.limits()
    count = min(len(completion.tokens), limits.max_tokens or len(completion.tokens))

    def stopped(length: int) -> bool:
        text = context.decode(completion.tokens[:length])
        return any(stop in text for stop in limits.stop)

    if limits.stop and stopped(count):
        count = bisect.bisect_left(range(count), True, lo=1, key=stopped)
    if count < len(completion.tokens):
        entropy = completion.entropy and completion.entropy[:count]
        completion = replace(
            completion,
            tokens=completion.tokens[:count],
            logp=completion.logp[:count],
            stop=Stop.LENGTH,
            entropy=entropy,
        )
    world.drawn(len(episode.context), count, completion.stop != Stop.END)
    return completion


def message_of(episode: Episode, place: int = -1) -> str:
    """What the environment is told of a turn, by default the last."""
    return environments.message_to(episode.world, episode.texts[place])


def give_up(episode: Episode, status: str) -> None:
    """End an episode without an answer of the environment: nothing of it is scored, in no seat."""
    for each in (episode, *episode.others):
        each.stop, each.status, each.success = Stop.ERROR, status, False
    if len(episode.rewards) < len(episode.states):
        episode.rewards.append(0.0)
        episode.components.append({})
        episode.calls.append([])


def _end(episode: Episode, stop: Stop) -> None:
    """The episode ends, and with it the game of its other seats, whose environment it is."""
    episode.stop = stop
    for other in episode.others:
        other.stop = Stop.ENVIRONMENT


def _receive(
    episode: Episode,
    step: environments.Step,
    context: RolloutContext,
    budget: TurnBudget | None,
) -> None:
    """Note what the environment answered, and append its words to the policy's where the episode goes on.

    The end of a game pays the other seats with their own last turns, where they had any.
    """
    most_turns = budget.most_turns if budget is not None else 0
    budget = budget.of(episode.request.problem.info) if budget is not None else None
    reward, components = step.reward, step.components
    if budget is not None and episode.played > budget.limit(episode.extensions):
        episode.extensions += 1
        if budget.extension_cost:
            reward -= budget.extension_cost
            components = {**components, "extension": -budget.extension_cost}
    if budget is not None and budget.invalid_cost and step.info.get("invalid"):
        reward -= budget.invalid_cost
        components = {**components, "invalid": -budget.invalid_cost}
    episode.rewards.append(reward)
    episode.components.append(components)
    episode.calls.append(step.calls)
    if step.key is not None:
        episode.states[-1] = environments.key_number(step.key)
    episode.valid.append(float(not step.info.get("invalid")))
    episode.observations.append(step.observation)
    episode.success = bool(step.info.get("success"))
    if step.done:
        _end(episode, Stop.ENVIRONMENT)
        episode.status = str(step.info.get("status", ""))
        for other in episode.others:
            paid = step.others.get(other.player or 0, 0.0)
            other.success = paid > 0
            if other.rewards:
                other.rewards[-1] += paid
        return
    if budget is not None and budget.spent(episode.role.count(int(Role.POLICY))):
        _end(episode, Stop.LENGTH)
        return
    if budget is not None and (
        episode.played >= budget.most_turns < most_turns or (budget.end_invalid and step.info.get("invalid"))
    ):
        _end(episode, Stop.TURNS)
        return
    if episode.others:
        episode = next(each for each in (episode, *episode.others) if _moves_next(each))
        if not episode.tokens:
            ask(episode, context)
            return
        observation = cast("Game", episode.world).observation(episode.player or 0)
        step = replace(step, observation=environments.read_from(episode.name, observation))
    observation = step.observation
    reminder = budget.reminder(episode.played, episode.extensions) if budget is not None else ""
    *shown, last = step.messages or [{"role": step.role, "content": observation}]
    if reminder:
        last = {**last, "content": f"{last['content']}\n{reminder}" if last["content"] else reminder}
        observation = f"{observation}\n{reminder}" if observation else reminder
    episode.replies.append({"role": step.role, "content": observation})
    if step.restart:
        restart(episode, [*shown, last], context)
        return
    shown = [*shown, last]
    if budget is not None and budget.compact is not None and episode.played < budget.most_turns:
        from pipelines.contract.compaction import with_request

        shown = with_request(budget.compact, episode, shown, context)
    episode.add(context.follow(shown, with_end=episode.cuts[-1]), Role.ENVIRONMENT)


def ask(episode: Episode, context: RolloutContext) -> None:
    """Ask a seat of the policy whose first turn this is."""
    opening = cast("Game", episode.world).opening(episode.player or 0)
    opening = environments.read_from(episode.name, opening)
    episode.opening = chat.with_system_prompt(opening, episode.request.system_prompt)
    [prompt] = context.render([episode.opening], [episode.request.problem.tools])
    episode.request = replace(episode.request, prompt=prompt)
    episode.add(prompt, Role.PROMPT)
