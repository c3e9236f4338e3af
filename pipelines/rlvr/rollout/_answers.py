"""Plain answers to prompts; shared by the rollouts of one turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines import verifiers
from pipelines.data.records import Role, Stop, Trajectory

if TYPE_CHECKING:
    from pipelines.contract.rollout import RolloutContext, RolloutRequest


def answers(requests: list[RolloutRequest], context: RolloutContext, hint: Role = Role.HINT) -> list[Trajectory]:
    """`request.rollouts` completions of every prompt and hint, in order.

    Args:
        hint: the role of a hint's tokens: `HINT` is context, `TEACHER_FORCED` is trained.
    """
    repeated = [request for request in requests for _ in range(request.rollouts)]
    prefixes = [[*request.prompt, *request.hint] for request in repeated]
    completions = context.sampler.extend(prefixes, context.sampling, context.generator, entropy=context.entropy)
    rows = []
    for request, completion in zip(repeated, completions, strict=True):
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
                stop=completion.stop if completion.tokens else Stop.ERROR,
                version=context.version,
                text=context.decode([*request.hint, *completion.tokens]),
            )
        )
    return rows


def score_of(request: RolloutRequest, text: str) -> float | None:
    """What the problem's verifier gives a text; None where it fails."""
    return scores_of(request, [text])[0]


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
    return list(context.tokenizer(text, add_special_tokens=False)["input_ids"])
