"""What a recipe's check says about a pool of opponents."""

from __future__ import annotations

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.contract.opponents import FIELD, FIXED, Opponent
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.source import Source


def check_opponents(rlvr: Rlvr, pool: list[Opponent], sources: list[Source], from_files: bool) -> None:
    """The games leave a seat to the opponents and know the fixed ones' moves, and models are decoded in the trainer's process.

    Args:
        sources: those of the data.
        from_files: whether other records come beside, of which nothing is known yet.

    Raises:
        RecipeError: the reason and the fix.
    """
    games = [(str(s.task), s.config) for s in sources if s.task and environments.self_play(s.task, s.config)]
    if not games and not from_files:
        raise RecipeError(
            FIELD,
            "no game of the data leaves a seat to them",
            "Set the source's config.opponent to policy, or leave opponents out.",
        )
    for game, config in games:
        for player, needed in FIXED.items():
            if any(each.player == player for each in pool) and not environments.says_moves(game, needed, config):
                raise RecipeError(
                    FIELD,
                    f"the environment {game} cannot say the moves of {player}",
                    f"Its World needs {needed}(), or leave {player} out.",
                )
    models = [each for each in pool if each.is_model or each.is_past]
    elsewhere = next((name for name in ("sampler", "engine") if getattr(rlvr, name) is not None), None)
    if models and elsewhere is not None:
        raise RecipeError(
            FIELD,
            f"{models[0].name} is decoded in the trainer's process, and with rlvr.{elsewhere} the policy on a server",
            f"Leave rlvr.{elsewhere} out, or name policy, random and perfect alone.",
        )
