"""Questions of the benchmarks that a recipe evaluates, for decontamination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evaluation import harness
from pipelines.recipe.settings import Evaluate


def questions(evaluate: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(task, question) of every document that the tasks of an `evaluate` section would ask.

    Raises:
        RecipeError: a task or its data cannot be loaded.
    """
    settings = Evaluate.model_validate(evaluate)
    tasks = harness.manager(settings)
    for task in {task.asks: task for task in settings.tasks}.values():
        for name, lm_task in harness.load_task(tasks, task).items():
            for doc in lm_task.eval_docs:
                text = lm_task.doc_to_text(doc)
                yield name, text if isinstance(text, str) else str(text)
