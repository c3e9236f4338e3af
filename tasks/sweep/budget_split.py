"""One budget of tokens, spent on SFT and on RLVR in several shares.

After "A Practitioner's Guide to Multi-turn Agentic Reinforcement Learning": at a fixed budget, how much of it should buy demonstrations,
and how much episodes?
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipelines.base.errors import UserError
from pipelines.recipe.read import Recipe


@dataclass(frozen=True)
class Share:
    """A way to spend the budget."""

    of_sft: float
    """Share of the budget in (0, 1)."""
    overrides: tuple[str, ...]

    @property
    def label(self) -> str:
        """For people."""
        return f"{100 * self.of_sft:g} % SFT"


def read(text: str | None, budget: str | None, sft_price: float, base: Recipe, learner: str | None) -> list[Share]:
    """The shares of `--split`; [] where there is none.

    SFT takes as many steps as its share pays for, and RLVR ends with the step that spends the rest (after `steps` at the latest).

    Args:
        text: shares of the budget that SFT spends, comma separated.
        budget: such as `1e6tokens`.
        sft_price: what a packed token of SFT costs, a completion token of RLVR costing 1.
        learner: the stage that learns from rewards.

    Raises:
        UserError: names the option and the fix.
    """
    if text is None:
        if sft_price != 1:
            raise UserError("--sft-price", "it prices the SFT of a split budget", "Add --split.")
        return []
    match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*(?:e[0-9]+)?)\s*tokens?\s*", budget or "")
    total = float(match[1]) if match else 0.0
    if not 0 < total < 1e15:
        raise UserError(
            "--split",
            "it divides a budget of tokens, because only their number is known beforehand",
            "Add --budget 1e6tokens.",
        )
    if not 0 < sft_price < 1e9:
        raise UserError(
            f"--sft-price {sft_price:g}", "a positive number, the price of an SFT token in completion tokens."
        )
    sft = next((n for n in base.node(learner).ancestors() if n.kind.makes_base), None) if learner else None
    if learner is None or sft is None:
        raise UserError("--split", "it needs an SFT stage and an RLVR stage that starts from its model.")
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or len(set(values)) < len(values) or not all(0 < value < 1 for value in values):
        raise UserError(f"--split {text[:80]}", "shares between 0 and 1, each once, such as 0.1,0.3,0.5.")
    shares = []
    for value in values:
        steps = round(value * total / sft_price / sft.settings.tokens_per_step)
        if steps < 1:
            raise UserError(
                f"--split {value:g}",
                f"{value * total / sft_price:g} tokens are less than half an SFT step of {sft.name}.tokens_per_step = "
                f"{sft.settings.tokens_per_step}",
                "Raise --budget or the share.",
            )
        rest = max(1, round((1 - value) * total))
        shares.append(Share(value, (f"{sft.name}.steps={steps}", f"{learner}.budget.tokens={rest}")))
    return shares
