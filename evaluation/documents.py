"""Questions of the benchmarks that a recipe evaluates, for decontamination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evaluation import harness
from evaluation.played import problems
from pipelines.environments import start_key
from pipelines.recipe.settings import Evaluate


def questions(evaluate: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(task, question) of every document that the tasks of an `evaluate` section would ask.

    Of an environment's problem it is what the user says in its prompt, or the key of its start where that does not show all.

    Raises:
        RecipeError: a task or its data cannot be loaded.
    """
    settings = Evaluate.model_validate(evaluate)
    tasks = harness.manager(settings)
    for task in settings.tasks:
        for problem in problems(task.environment, task.limit) if task.environment is not None else ():
            shown = "\n".join(m["content"] for m in problem.prompt if m["role"] == "user")
            yield task.name, start_key(problem) or shown
    asked = [task for task in settings.tasks if task.environment is None]
    for task in {(task.asks, *task.rows.items()): task for task in asked}.values():
        for name, lm_task in harness.load_task(tasks, task).items():
            for doc in lm_task.eval_docs:
                text = lm_task.doc_to_text(doc)
                yield name, text if isinstance(text, str) else str(text)
