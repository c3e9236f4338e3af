"""Requests for new prompts, by examples of those that there are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from pipelines.base.errors import DataError
from pipelines.data.records import Problem
from pipelines.data.samples import WRITTEN_FROM
from pipelines.sample.settings import NewPrompts


def requests(problems: Sequence[Problem], settings: NewPrompts, seed: int) -> list[Problem]:
    """Each problem as a request for a prompt that is like `shots` others (Self-Rewarding Language Models, 2401.10020).

    Which ones are shown depends on the seed and the problem's uid alone; of each its last message. The paper shows six of the data and two
    that the model wrote before, all of them one after the other; here they come from the split, which holds both where a source of
    it does.

    Returns:
        problems of the same uids, whose `info` holds the problem's own messages alone (`WRITTEN_FROM`); nobody can verify their answers.

    Raises:
        DataError: there are fewer problems than a request shows.
    """
    if len(problems) < settings.shots:
        raise DataError(
            "sample.new_prompts.shots",
            f"{settings.shots} prompts are to be shown, and the split has {len(problems)}",
            "Show fewer.",
        )
    prompts = [problem.prompt[-1]["content"] for problem in problems]
    asked = []
    for problem in problems:
        shown = random.Random(f"{seed} {problem.uid}").sample(prompts, settings.shots)
        content = settings.template.replace("{examples}", settings.separator.join(shown))
        request = [{"role": "user", "content": content}]
        asked.append(replace(problem, prompt=request, info={WRITTEN_FROM: problem.prompt}))
    return asked
