"""What a recipe's check says about games: who plays them, and which parts can."""

from __future__ import annotations

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.recipe.settings import Task
from pipelines.recipe.slots import bind_slots, bound_list
from pipelines.recipe.source import Source, sources_of
from pipelines.recipe.stage_kind import DATA, Node


def _sources(node: Node, split: str | None) -> list[Source]:
    """Those that may fill a split of the data upstream of a stage."""
    data = [other for other in node.ancestors() if other.kind.makes == DATA]
    sources = [source for other in data for source in sources_of(other.settings)]
    return [source for source in sources if split is None or source.splits is None or split in source.splits]


def _of_self_play(sources: list[Source]) -> str | None:
    """The environment of the first source in whose games the policy has several seats."""
    return next((s.task for s in sources if s.task and environments.self_play(s.task, s.config)), None)


def check_trained_games(node: Node) -> None:
    """Methods that compare players have games, and games of the policy with itself have parts that can play them.

    Raises:
        RecipeError: the reason and the fix.
    """
    rl = node.settings
    sources, bound = _sources(node, rl.split), bind_slots(rl)
    known = {str(source.task) for source in sources if source.kind == "environment"}
    readers = [method for method in bound_list(bound) if "player" in method.needs]
    from_files = any(source.kind not in ("environment", "reasoning_gym") for source in sources)
    if readers and not from_files and not any(map(environments.has_players, known)):
        raise RecipeError(
            readers[0].slot,
            f"{readers[0].name} compares the players of games, and no environment of the data has players "
            f"({', '.join(sorted(known)) or 'there is none'})",
            "Use problems of a game, such as tic_tac_toe, or another method.",
        )
    task = _of_self_play(sources)
    if league := getattr(bound["rollout"].fn, "league", None):
        from pipelines.recipe.opponents import check_opponents

        check_opponents(node.settings, league.pool, sources, from_files)
    if task is None:
        return
    if "player" not in bound["rollout"].card.makes:
        raise RecipeError(
            "rlvr.rollout",
            f"{bound['rollout'].name} plays one seat, and in {task} with opponent: policy the policy has both",
            "Use rollout: multi_turn, or set the source's config.opponent to random or perfect.",
        )
    if not bound["prompting"].fn.leaves_prompts:
        raise RecipeError(
            "rlvr.prompting",
            f"{bound['prompting'].name} changes the problem's prompt, and in {task} with opponent: policy each seat has one of its own",
            "Use prompting: plain, or set the source's config.opponent to random or perfect.",
        )


def check_sampled_games(node: Node) -> None:
    """A sample stage writes one row an episode.

    Raises:
        RecipeError: in a game of its data the policy has several seats.
    """
    task = _of_self_play(_sources(node, node.settings.split))
    if task is not None:
        raise RecipeError(
            "sample.episodes",
            f"in {task} with opponent: policy an episode has two players, and a sample is of one",
            "Set the source's config.opponent to random or perfect.",
        )


def check_evaluated_games(tasks: list[Task]) -> None:
    """A benchmark has an opponent.

    Raises:
        RecipeError: it is played by the policy alone.
    """
    for task in tasks:
        if task.environment is not None and environments.self_play(task.environment.task, task.environment.config):
            raise RecipeError(
                f"evaluate.tasks.{task.name}.environment.config.opponent",
                "against itself a policy wins as often as it loses, however well it plays",
                "Set random or perfect.",
            )
