"""Errors that a person caused and can fix. Everything else is a bug and propagates."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

USER_ERROR_EXIT = 3
"""Exit code of a stage process that stopped because of a `UserError`."""


class UserError(ValueError):
    """Something the user can fix. The message names the field, row or file, and the fix."""


class RecipeError(UserError):
    """The recipe cannot run."""


class DataError(UserError):
    """The data cannot be used."""


class ModelError(UserError):
    """The model or its tokenizer cannot be used."""


class Interrupted(UserError):
    """The run stopped itself for a stated reason; the last checkpoint is good."""


class StaleWeights(Interrupted):
    """A decoding server does not hold the weights that were pushed to it."""


LIKE = 0.62
"""Least likeness of a misspelt name to what it is taken for: swapped letters in a word of three are at 0.67, and below it most words
are others (`patience` and `divergence` are at 0.56, `deepspeed` and `seed` at 0.615)."""
LEAST_LETTERS = 4
"""Of a name's beginning that is taken for the name."""
LISTED = 40
"""Names that a hint lists at most."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word: the nearest known one, else the list, cut where it is long. Capitals and hyphens make no difference.

    >>> did_you_mean("grppo", ["grpo", "rloo"])
    "Did you mean 'grpo'?"
    >>> did_you_mean("Dr-GRPO", ["dr_grpo", "grpo"])
    "Did you mean 'dr_grpo'?"
    >>> did_you_mean("temp", ["temperature", "top_p"])
    "Did you mean 'temperature'?"
    >>> did_you_mean("zzz", ["grpo", "rloo"])
    'Known: grpo, rloo.'
    """
    known = sorted(set(known))
    spelt = {name.casefold().replace("-", "_"): name for name in known}
    asked = word.casefold().replace("-", "_")
    near = get_close_matches(asked, spelt, n=1, cutoff=LIKE)
    if not near and len(asked) >= LEAST_LETTERS:
        near = sorted((name for name in spelt if name.startswith(asked)), key=len)
    if near:
        return f"Did you mean {spelt[near[0]]!r}?"
    rest = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return f"Known: {', '.join(known[:LISTED]) or 'none'}{rest}."
