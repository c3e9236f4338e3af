"""Plain answers to prompts; shared by the rollouts of one turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines import verifiers
from pipelines.data.records import Role, Stop, Trajectory

if TYPE_CHECKING:
    from pipelines.rlvr.train import Asked, Context


def answers(asked: list[Asked], context: Context, hint: Role = Role.HINT) -> list[Trajectory]:
    """As many completions of every prompt and hint as it wants, in order.

    Args:
        hint: the role of a hint's tokens: `HINT` is context, `FORCED` is trained.
    """
    each = [one for one in asked for _ in range(one.rollouts)]
    prefixes = [[*one.prompt, *one.hint] for one in each]
    done = context.sampler.extend(prefixes, context.sampling, context.generator, entropy=context.entropy)
    made = []
    for one, completion in zip(each, done, strict=True):
        head = len(one.prompt) + len(one.hint)
        before = [int(Role.PROMPT)] * len(one.prompt) + [int(hint)] * len(one.hint)
        made.append(
            Trajectory(
                uid=one.problem.uid,
                group=one.group,
                tokens=[*one.prompt, *one.hint, *completion.tokens],
                role=before + [int(Role.POLICY)] * len(completion.tokens),
                logp_old=[0.0] * head + completion.logp,
                entropy_old=None if completion.entropy is None else [0.0] * head + completion.entropy,
                max_tokens=context.sampling.max_tokens,
                stop=completion.stop if completion.tokens else Stop.ERROR,
                version=context.version,
                text=context.decode([*one.hint, *completion.tokens]),
            )
        )
    return made


def score_of(one: Asked, text: str) -> float | None:
    """What the problem's verifier gives a text; None where it fails."""
    return verifiers.verify(one.problem.verifier, text, one.problem.answer, one.problem.info).score


def mean_score(one: Asked, rows: list[Trajectory]) -> float | None:
    """Mean of what the verifier gives finished answers; None where it gives nothing."""
    found = [score_of(one, row.text) for row in rows if row.stop != Stop.ERROR]
    scores = [s for s in found if s is not None]
    return sum(scores) / len(scores) if scores else None


def solution_tokens(one: Asked, context: Context) -> list[int]:
    """Token ids of the record's solution, or of its answer where it has none; no end token."""
    text = str(one.problem.info.get("solution") or one.problem.answer)
    return list(context.tokenizer(text, add_special_tokens=False)["input_ids"])
