"""Plain answers to prompts; shared by the rollouts of one turn."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipelines import verifiers
from pipelines.data import control
from pipelines.data.records import Role, Stop, Trajectory

if TYPE_CHECKING:
    from pipelines.contract.rollout import Completion, RolloutContext, RolloutRequest


def answers(requests: list[RolloutRequest], context: RolloutContext, hint: Role = Role.HINT) -> list[Trajectory]:
    """`request.rollouts` completions of every prompt and hint, in order.

    Args:
        hint: the role of a hint's tokens: `HINT` is context, `TEACHER_FORCED` is trained.
    """
    repeated = [request for request in requests for _ in range(request.rollouts)]
    prefixes = [[*request.prompt, *request.hint] for request in repeated]
    streams = [context.streams.new(request.group) for request in repeated]
    completions = _extend(prefixes, context.sampling.max_tokens, context, [(stream, 0) for stream in streams])
    rows = []
    for request, completion, stream in zip(repeated, completions, streams, strict=True):
        n_context = len(request.prompt) + len(request.hint)
        context_roles = [int(Role.PROMPT)] * len(request.prompt) + [int(hint)] * len(request.hint)
        rows.append(
            Trajectory(
                uid=request.problem.uid,
                group=request.group,
                tokens=[*request.prompt, *request.hint, *completion.tokens],
                role=context_roles + [int(Role.POLICY)] * len(completion.tokens),
                logp_old=[0.0] * n_context + completion.logp,
                entropy_old=None if completion.entropy is None else [0.0] * n_context + completion.entropy,
                max_tokens=context.sampling.max_tokens,
                stop=_stop(completion, len(completion.tokens), context) if completion.tokens else Stop.ERROR,
                version=context.version,
                versions=None if context.window is None else [context.version] * (n_context + len(completion.tokens)),
                stream=None if context.window is None else stream,
                text=context.decode([*request.hint, *completion.tokens]),
            )
        )
    return rows


def teacher_forced(
    request: RolloutRequest,
    prompt: list[int],
    tokens: list[int],
    stop: Stop,
    context: RolloutContext,
    *,
    drawn_elsewhere: bool = False,
) -> Trajectory:
    """A row of the request's group whose tokens after the prompt are trained, though the policy did not sample them there.

    Args:
        drawn_elsewhere: it sampled them from another prompt.
    """
    count = len(prompt) + len(tokens)
    return Trajectory(
        uid=request.problem.uid,
        group=request.group,
        tokens=[*prompt, *tokens],
        role=[int(Role.PROMPT)] * len(prompt) + [int(Role.TEACHER_FORCED)] * len(tokens),
        logp_old=[0.0] * count,
        entropy_old=[0.0] * count if context.entropy else None,
        max_tokens=context.sampling.max_tokens,
        stop=stop,
        version=context.version,
        text=context.decode(tokens),
        drawn_elsewhere=len(tokens) if drawn_elsewhere else 0,
    )


def demonstration(request: RolloutRequest, context: RolloutContext) -> Trajectory:
    """The record's solution (or answer) with an end token, as a row of the request's group."""
    solution = [*solution_tokens(request, context), int(context.tokenizer.eos_token_id)]
    return teacher_forced(request, request.prompt, solution, Stop.END, context)


def grown(rows: list[Trajectory], context: RolloutContext) -> list[Trajectory]:
    """Rows that were cut at a window with another window each; a row that has no room left ends at its length."""
    drawn = [len(row.sampled()) for row in rows]
    room = [context.sampling.max_tokens - count for count in drawn]
    limits = [min(context.window or left, left) for left in room]
    completions: dict[int, Completion] = {}
    for limit in sorted(set(limits)):  # a row's last window may be a short one
        positions = [i for i, own in enumerate(limits) if own == limit]
        streams = [(rows[i].stream or 0, drawn[i]) for i in positions]
        extended = _extend([rows[i].tokens for i in positions], limit, context, streams)
        completions |= dict(zip(positions, extended, strict=True))
    return [_longer(row, completions[i], drawn[i], context) for i, row in enumerate(rows)]


def _longer(row: Trajectory, completion: Completion, drawn: int, context: RolloutContext) -> Trajectory:
    count = len(completion.tokens)
    tokens, role = [*row.tokens, *completion.tokens], [*row.role, *[int(Role.POLICY)] * count]
    entropy = None if completion.entropy is None else [*(row.entropy_old or []), *completion.entropy]
    return replace(
        row,
        tokens=tokens,
        role=role,
        logp_old=[*row.logp_old, *completion.logp],
        entropy_old=entropy,
        versions=[*(row.versions or []), *[context.version] * count],
        version=context.version if count else row.version,
        stop=_stop(completion, drawn + count, context) if count else Stop.LENGTH,
        text=context.decode([token for token, kind in zip(tokens, role, strict=True) if kind != Role.PROMPT]),
    )


def _extend(
    prefixes: list[list[int]], limit: int, context: RolloutContext, streams: list[tuple[int, int]]
) -> list[Completion]:
    """The sampler's completions, of `limit` tokens and a window at most."""
    most = limit if context.window is None else min(context.window, limit)
    sampling = context.sampling.model_copy(update={"max_tokens": most})
    return context.sampler.extend(prefixes, sampling, None, entropy=context.entropy, streams=streams)


def _stop(completion: Completion, drawn: int, context: RolloutContext) -> Stop:
    """Why a row of so many drawn tokens has stopped."""
    cut = context.window is not None and completion.stop == Stop.LENGTH and drawn < context.sampling.max_tokens
    return Stop.WINDOW if cut else completion.stop


def scores_of(request: RolloutRequest, texts: list[str]) -> list[float | None]:
    """What the problem's verifier gives each text; None where it fails."""
    problem = request.problem
    verdicts = verifiers.verify_many([(problem.verifier, text, problem.answer, problem.info) for text in texts])
    return [verdict.score for verdict in verdicts]


def mean_score(request: RolloutRequest, rows: list[Trajectory]) -> float | None:
    """Mean of what the verifier gives finished answers; None where it gives nothing."""
    texts = [row.text for row in rows if row.stop != Stop.ERROR]
    scores = [score for score in scores_of(request, texts) if score is not None]
    return sum(scores) / len(scores) if scores else None


def solution_tokens(request: RolloutRequest, context: RolloutContext) -> list[int]:
    """Token ids of the record's solution, or of its answer where it has none; no end token."""
    text = str(request.problem.info.get("solution") or request.problem.answer)
    return control.encode_text(context.tokenizer, text)
