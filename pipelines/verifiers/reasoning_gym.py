"""reasoning-gym's own scoring: tasks with several correct answers are scored as their authors meant."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pipelines.verifiers import Verdict


@cache
def _dataset(task: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(task, size=1, seed=0)


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """Score of the task named in `info["task"]`, in [0, 1]; correct from 1 on.

    The answer is the text in `<answer>` tags where there are any, else the whole trimmed completion.

    Raises:
        KeyError: `info` names no task.
    """
    if "<answer>" in completion:
        completion = completion.rsplit("<answer>", 1)[1].split("</answer>", 1)[0]
    metadata = info.get("metadata") or {}
    if isinstance(metadata, str):
        metadata = json.loads(metadata)
    entry = {"question": info.get("question", ""), "answer": answer, "metadata": metadata}
    score = float(_dataset(info["task"]).score_answer(completion.strip(), entry))
    return Verdict(score, "correct" if score >= 1.0 else "incorrect")
