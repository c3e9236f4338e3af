"""What a server does with derivatives, found out before the first step: each probe is one optimizer step that must change nothing.

Servers divide a row's loss by different things. The protocol's own client sends derivatives as weights of a cross-entropy, which is right
where a row's loss is a sum (the hosted service); a server that divides by a row's sum of weights makes something else of signed ones. So
rows whose gradients cancel where the server is linear are sent, and a step is made: where the log-probabilities stay, the form is right.
The optimizer is made to follow the gradient itself (betas 0, a large eps), so that its steps tell how large the gradient is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipelines.base.errors import ModelError
from pipelines.engine.tinker.session import Form, Row, Session

FORMS: tuple[Form, ...] = ("cross_entropy", "importance_sampling")
EPS = 1e3
"""Far above a gradient: then AdamW with betas 0 steps by (learning_rate / EPS) times the gradient."""
RATES = tuple(10.0**power for power in range(8))
"""Learning rates to try until the step of a row's own gradient is seen."""
LEAST_NATS = 1e-3
"""Nats that a step must move a probed token by, to be told from rounding."""
SMALL = 0.05
"""Share of a row's own step that cancelling rows may move it by."""


def probe(session: Session, tokens: Sequence[int], event: Callable[..., None]) -> None:
    """Choose the form in which the server is given derivatives, and find out whether it averages over rows and clips.

    Weights and optimizer are afterwards as before.

    Args:
        session: freshly opened or loaded.
        tokens: at least four ids of the model.
        event: told what was found.

    Raises:
        ModelError: no form makes the server's gradient linear in the derivatives.
    """
    kept = session.save()
    both = Row(list(tokens[:-1]), list(tokens[1:]), [len(tokens) - 3, len(tokens) - 2])
    single = Row(both.tokens, both.targets, both.places[:1])
    for form in FORMS:
        session.form = form
        rate, own = _own(session, single, kept)
        if _moved(session, kept, rate, [(both, (2.0, 0.0)), (single, (-1.0,)), (single, (-1.0,))]) > SMALL * own:
            continue
        session.averages = _moved(session, kept, rate, [(single, (-1.0,))] * 2) < 1.5 * own
        clips = _moved(session, kept, rate, [(single, (-1.0,))], clip=1e-6) < SMALL * own
        session.load(kept, optimizer=True)
        event("the training server is probed", derivatives_as=form, averages_over_rows=session.averages, clips=clips)
        if not clips:
            event("the training server does not clip gradients: optimizer.max_grad_norm has no effect there")
        return
    raise ModelError(
        "engine.url",
        f"{session.settings.url} makes no gradient that is linear in what it is sent, by neither of {', '.join(FORMS)}",
        "Use a server whose loss is a sum over tokens.",
    )


def _own(session: Session, row: Row, kept: str) -> tuple[float, float]:
    """A learning rate with which a row by itself moves its token, and by how many nats."""
    for rate in RATES:
        moved = _moved(session, kept, rate, [(row, (-1.0,))])
        if moved > LEAST_NATS:
            return rate, moved
    raise ModelError("engine.url", f"steps of {session.settings.url} change nothing", "Look at the server's log.")


def _moved(
    session: Session, kept: str, rate: float, sent: Sequence[tuple[Row, Sequence[float]]], clip: float = 0.0
) -> float:
    """Nats by which one step from what is kept moves the first scored token, which all rows share.

    Args:
        sent: rows, and the derivatives of their scored tokens.
        clip: most norm of the gradient; 0: no bound.
    """
    session.load(kept, optimizer=True)
    rows = [row for row, _ in sent]
    before = session.log_probs(rows)
    session.add_gradient(rows, [derivatives for _, derivatives in sent], before)
    session.step(learning_rate=rate, beta1=0.0, beta2=0.0, eps=EPS, weight_decay=0.0, grad_clip_norm=clip)
    return abs(session.log_probs(rows[:1])[0][0] - before[0][0])
