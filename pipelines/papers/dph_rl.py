"""The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse in RLVR.

arXiv 2509.07430. Presets: dph_rl. Parts: dph_rl (replay), dph_rl (divergence).

Right answers of the starting policy, to be rehearsed beside what is new.

Rehearsal: a divergence from the starting policy on its own correct completions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from pipelines.contract.catalogue import method
from pipelines.contract.columns import PerRow, PerToken
from pipelines.contract.method import PolicyUpdate, Replay
from pipelines.data.records import by_group
from pipelines.rlvr.common.stored_rows import append, row_of

if TYPE_CHECKING:
    from pipelines.contract.rollout import SetupContext


@method(
    paper="2509.07430",
    title="The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse in RLVR (DPH-RL's rehearsal)",
    checked="official code (rehearsed problems stay among those explored)",
)
class dph_rl(Replay):
    """Before the first step every problem is answered `samples` times; one correct answer to each with at least `solved` of them is kept,
    with its log-probabilities from sampling. Each step replays `rows` of them. Their advantage is 0: `divergence: dph_rl` is all they train
    on, with a mean over their own tokens. `problems` bounds how many are asked: the answers are part of every commit.
    """

    def __init__(
        self,
        *,
        rows: Annotated[int, Field(ge=1)] = 16,
        samples: Annotated[int, Field(ge=1)] = 8,
        solved: Annotated[int, Field(ge=1)] = 4,
        problems: Annotated[int, Field(ge=1)] = 512,
    ) -> None:
        self.count, self.samples, self.solved, self.problems = rows, samples, solved, problems
        self.rows: list[dict[str, Tensor]] = []

    def setup(self, context: SetupContext) -> None:
        """Answer the problems with the starting policy."""
        wanted = list(range(min(context.problems, self.problems)))
        correct_rows = by_group(row for row in context.rollouts(wanted, self.samples) if row.correct)
        kept = [rows[0] for _, rows in sorted(correct_rows.items()) if len(rows) >= self.solved]
        if kept:
            columns = context.columns(kept)
            self.rows = [_short(row_of(columns, number)) for number in range(len(kept))]

    def updates(self, columns: dict[str, Any], generator: torch.Generator) -> list[PolicyUpdate]:
        """The step's own update, joined by the rehearsed rows."""
        if not self.rows:
            return [PolicyUpdate(columns)]
        drawn = torch.randperm(len(self.rows), generator=generator)[: self.count].tolist()
        out = append(columns, [self.rows[i] for i in drawn])  # stored without `advantage`, so theirs is 0
        out["scored"] = out["scored"] & ~out["replayed"]
        return [PolicyUpdate(out, normalise_separately=True)]

    def state_dict(self) -> dict[str, Any]:
        """The answers."""
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.rows = list(state["rows"])


def _short(row: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the padding after its last token."""
    end = int(row["mask"].nonzero().max()) + 1
    return {k: v[:end] if v.ndim and len(v) == len(row["mask"]) else v for k, v in row.items()}


@method(
    paper="2509.07430",
    title="The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse in RLVR (DPH-RL)",
    checked="official code, 12 cases",
    couples="row",
    legal_in=("loss",),
    requires=(("replay", "dph_rl"),),
)
def dph_rl_divergence(
    logp: PerToken,
    logp_old: PerToken,
    replayed: PerRow,
    *,
    f: Literal["forward", "js", "alpha"] = "forward",
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> PerToken:
    """f(u) on tokens of replayed rows, u = pi / pi_start; 0 on the step's own. The samples are fixed, so the gradient is exact.

        forward: u - 1 - log u;   js: u log u - (u + 1) log((u + 1) / 2);   alpha: (u^(1-a) - (1-a) u - a) / (a (a - 1))

    The released code clamps the forward value to 10; ours clamps only the log-ratio. Means under the starting policy:
    KL(start, pi); twice the Jensen-Shannon divergence; the alpha divergence. The rows come
    from `replay: dph_rl`, which keeps correct completions of the starting policy.

    >>> import torch
    >>> ref, pi = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.7, 0.2, 0.1]])
    >>> mean = lambda f: round((ref * dph_rl_divergence(pi.log(), ref.log(), torch.tensor([True]), f=f)).sum().item(), 5)
    >>> mean("forward"), mean("js"), mean("alpha")
    (0.09203, 0.0438, 0.0862)
    """
    log_u = (logp - logp_old).clamp(-20, 20)
    u_minus_1 = torch.expm1(log_u)  # u - 1: near the start, where it is small, single precision keeps its digits
    if f == "forward":
        value = u_minus_1 - log_u
    elif f == "js":
        value = (u_minus_1 + 1) * log_u - (u_minus_1 + 2) * torch.log1p(u_minus_1 / 2)
    else:
        value = (torch.expm1((1 - alpha) * log_u) - (1 - alpha) * u_minus_1) / (alpha * (alpha - 1))
    return value * replayed[:, None]
