"""Agent benchmarks: episodes in an environment, the success rate with intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from evaluation import harness, statistics
from evaluation.played import problems
from pipelines import environments
from pipelines.contract.episode import play
from pipelines.contract.played import Episode
from pipelines.contract.rollout import RolloutContext, RolloutRequest
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import Streams
from pipelines.contract.turn_budget import SUMMARIES, TurnBudget
from pipelines.data import chat
from pipelines.data.records import Message, Problem, Stop, Trajectory
from pipelines.recipe.settings import Evaluate, PlayedTask, Task

SAMPLES = 4
"""Episodes per problem where the recipe sets none."""


@dataclass(frozen=True)
class Part:
    """Problems whose episodes are played side by side."""

    episodes: PlayedTask
    requests: list[RolloutRequest]
    problems: int
    """Of the whole task."""


def play_parts(lm: Any, parts: Sequence[Part]) -> Iterator[list[Trajectory]]:
    """The episodes of each part; the random numbers of a problem depend on its place in the task, whatever the parts are.

    Tells how far this process is with its own parts.
    """
    for done, part in enumerate(parts, start=1):
        episodes = part.episodes
        context = RolloutContext(
            sampler=lm.decoder,
            sampling=Sampling(temperature=episodes.temperature, max_tokens=episodes.max_tokens),
            prompts=part.problems,
            streams=Streams(lm.seed, episodes.seed),
            entropy=False,
            version=0,
            tokenizer=lm.tokenizer,
        )
        yield play(part.requests, context, _budget(episodes), scheduler=_scheduler(part))
        if lm.progress:
            lm.progress(done, len(parts))


def _scheduler(part: Part) -> Callable[..., list[Episode]] | None:
    """What plays a part's episodes, where they do not wait for each other."""
    if not part.episodes.asynchronous:
        return None
    from pipelines.contract.asynchronous import Asynchronous  # not above: few runs need its code

    rollouts = sum(request.rollouts for request in part.requests)
    return Asynchronous(part.episodes.max_concurrent or rollouts).play_out


def evaluate(
    lm: Any, tasks: Any, task: Task, settings: Evaluate
) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Run the episodes of one task with one checkpoint; same arguments and results as `harness.evaluate`."""
    episodes = task.environment
    assert episodes is not None
    task_problems = problems(episodes, task.limit)
    system = task.joined_system_prompt(lm.system_prompt)
    conversations = [chat.with_system_prompt(p.prompt, system) for p in task_problems]
    prompts = chat.render_prompts(lm.tokenizer, conversations, [p.tools for p in task_problems])
    if task.prefill:
        begun = lm.tokenizer.encode(task.prefill, add_special_tokens=False)
        prompts = [[*prompt, *begun] for prompt in prompts]
    samples = task.samples or SAMPLES
    requests = [
        RolloutRequest(p, t, i, samples, system_prompt=system)
        for i, (p, t) in enumerate(zip(task_problems, prompts, strict=True))
    ]
    under_way = min(settings.batch_size, episodes.max_concurrent or settings.batch_size)
    # Each waits for its turn by itself where they are asynchronous; in lockstep all of a part are under way.
    at_once = max(1, (settings.batch_size if episodes.asynchronous else under_way) // samples)
    parts = [Part(episodes, requests[i : i + at_once], len(requests)) for i in range(0, len(requests), at_once)]
    rows = [row for part in lm.ranks.divide(lm, play_parts, parts) for row in part]
    groups = [rows[i : i + samples] for i in range(0, len(rows), samples)]
    scores = [[float(bool(r.correct)) for r in group] for group in groups]
    tokens = [[float(len(r.sampled())) for r in group] for group in groups]
    metrics = statistics.summarise(
        scores,
        [[r.text for r in group] for group in groups],
        tokens,
        confidence=settings.confidence,
    )
    turns = [sum(map(_turns, group)) / len(group) for group in groups]
    metrics["mean_turns"] = statistics.count_cell(turns, confidence=settings.confidence)
    if episodes.compact is not None:
        summaries = [sum(r.components[SUMMARIES] for r in group) / len(group) for group in groups]
        metrics["mean_summaries"] = statistics.count_cell(summaries, confidence=settings.confidence)
    metrics |= _costs(groups, tokens, scores, settings)
    if any(row.player is not None for row in rows):
        paid = [sum(r.score or 0.0 for r in group) / len(group) for group in groups]
        metrics["mean_score"] = statistics.reward_cell(paid, confidence=settings.confidence)
    for name, value in environments.exact(episodes.task, partial(_chances, lm, system)).items():
        metrics[name] = {"value": value, "low": value, "high": value, "n": len(task_problems)}
    log = [_log(p, group, s) for p, group, s in zip(task_problems, groups, scores, strict=True)]
    harness.add_truncated(metrics, log, [[r.stop == Stop.LENGTH for r in group] for group in groups], settings)
    return {task.name: metrics}, {task.name: log}


def _costs(
    groups: list[list[Trajectory]], tokens: list[list[float]], scores: list[list[float]], settings: Evaluate
) -> dict[str, dict[str, float]]:
    """Turns and sampled tokens for each solved task (More with Less, arXiv 2510.16786), those of failures included.

    A checkpoint that solves nothing has neither: there is no such number.
    """
    spent = {
        "tokens_per_solved": [sum(own) for own in tokens],
        "turns_per_solved": [float(sum(map(_turns, group))) for group in groups],
    }
    solved = [sum(own) for own in scores]
    cells = {name: statistics.cost_cell(costs, solved, confidence=settings.confidence) for name, costs in spent.items()}
    return {name: cell for name, cell in cells.items() if cell is not None}


def _chances(lm: Any, system: str | None, decisions: list[tuple[list[Message], list[str]]]) -> list[list[float]]:
    """The model's chance of each message of a decision, among those that it has."""
    prompts = chat.render_prompts(
        lm.tokenizer, [chat.with_system_prompt(messages, system) for messages, _ in decisions]
    )
    asked = [
        (("", ""), prompt, [*lm.tokenizer.encode(move, add_special_tokens=False), lm.tokenizer.eos_token_id])
        for prompt, (_, moves) in zip(prompts, decisions, strict=True)
        for move in moves
    ]
    likelihoods = iter(lm._loglikelihood_tokens(asked, disable_tqdm=True))
    out = []
    for _, moves in decisions:
        own = np.array([next(likelihoods)[0] for _ in moves])
        odds = np.exp(own - own.max())
        out.append((odds / odds.sum()).tolist())
    return out


def _budget(episodes: PlayedTask) -> TurnBudget:
    return TurnBudget(
        episodes.max_turns, episodes.extension, episodes.extensions, episodes.remind, compact=episodes.compact
    )


def _turns(row: Trajectory) -> int:
    """Those that its environment had: without summaries."""
    return len(row.turn_reward or []) - int(row.components.get(SUMMARIES, 0))


def _log(problem: Problem, group: list[Trajectory], scores: list[float]) -> dict[str, Any]:
    return {
        "doc_id": problem.uid,
        "doc": {"prompt": problem.prompt, "info": problem.info},
        "resps": [r.text for r in group],
        "scores": scores,
        "turns": [_turns(r) for r in group],
    }
