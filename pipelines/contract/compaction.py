"""Context compaction as an action: the policy summarises its episode, which goes on in a new conversation with the summary.

Loaded by runs alone that ask for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines import environments
from pipelines.contract.played import Episode, restart
from pipelines.data import chat, marks
from pipelines.data.records import Message, Stop

if TYPE_CHECKING:
    from pipelines.contract.compact import Compact
    from pipelines.contract.rollout import Completion, RolloutContext


def with_request(compact: Compact, episode: Episode, messages: list[Message], context: RolloutContext) -> list[Message]:
    """What the policy is shown next: with the request where that has filled its context, so that its next turn is a summary.

    An episode that has had all of its summaries ends there.

    Args:
        messages: what the environment answered.
    """
    answer = context.follow(messages, with_end=episode.cuts[-1])
    if len(episode.context) + len(answer) < compact.at_tokens:
        return messages
    if compact.at_most is not None and len(episode.summaries) >= compact.at_most:
        episode.stop = Stop.LENGTH
        return messages
    episode.summarises = compact
    return _with_words(messages, compact.prompt)


def drawn_with_summaries(
    episodes: Sequence[Episode], context: RolloutContext, streams: Sequence[tuple[int, int]] | None
) -> list[Completion]:
    """The next turn of each episode, in order; those that are summaries have a token limit of their own."""
    limits = [e.summarises.max_tokens if e.summarises else context.sampling.max_tokens for e in episodes]
    completions: dict[int, Completion] = {}
    for limit in sorted(set(limits)):
        places = [place for place, own in enumerate(limits) if own == limit]
        drawn = context.extend(
            [episodes[place].context for place in places],
            [episodes[place].request.group for place in places],
            sampling=context.sampling.model_copy(update={"max_tokens": limit}),
            streams=None if streams is None else [streams[place] for place in places],
        )
        completions |= zip(places, drawn, strict=True)
    return [completions[place] for place in range(len(episodes))]


def begin_anew(episode: Episode, context: RolloutContext) -> None:
    """Begin a new conversation with the summary that the policy has just spoken.

    The summary is a turn of the row that it ends: it is paid nothing by itself, and its state is none of the environment's.
    """
    compact, episode.summarises = episode.summarises, None
    assert compact is not None
    episode.summaries.append(len(episode.states) - 1)
    episode.states[-1] = environments.key_number(f"summary of {episode.worlds[-1]}")
    episode.rewards.append(0.0)
    episode.components.append({})
    episode.calls.append([])
    episode.valid.append(1.0)
    episode.observations.append("")
    request = episode.request
    opening = chat.with_system_prompt(list(request.problem.prompt), request.system_prompt)
    summary = marks.unnamed(chat.after_thinking(episode.texts[-1])).strip()
    messages = _with_words(opening, f"{compact.resume}\n{summary}")
    episode.replies.append(messages[-1])
    restart(episode, messages, context)


def _with_words(messages: list[Message], words: str) -> list[Message]:
    """Messages whose last one, where it is the user's, ends with some words; else with a message of the user's behind them.

    Many chat templates refuse two messages of the user's in a row.
    """
    *before, last = messages
    if last["role"] != "user":
        return [*messages, {"role": "user", "content": words}]
    return [*before, {**last, "content": f"{last['content']}\n\n{words}" if last["content"] else words}]
