"""The completions of a sample stage as rollouts: their tokens and log-probabilities, by problem."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.base.errors import DataError
from pipelines.data import samples
from pipelines.data.records import Problem
from pipelines.engine import models

COLUMNS = ("uid", "prompt_ids", "completion_ids", "logp", "entropy", "text", "stop")
OF_EPISODES = (samples.EPISODE, "score", "correct", "status", "components")
"""What is read beside them of a stage that played episodes."""
ORIGIN = "sampled_from"
"""In a record's info: uid of the problem that its completions were drawn for."""


def read(folder: Path, problems: Mapping[str, Problem], tokenizer: Any) -> dict[str, list[dict[str, Any]]]:
    """Uid of a problem → its stored completions, with the limit they were drawn under, in the order of the draws; others are left out.

    Args:
        folder: the artifact of a sample stage.
        problems: uid → problem that the stage trains on; one that curation made of a sampled problem has that one's completions.

    Raises:
        DataError: there are no samples, or none of these problems.
        ModelError: they were drawn from a model of another template.
    """
    about = samples.about(folder)
    models.check_template(about.get("template"), tokenizer, "rlvr.samples")
    origins: dict[str, list[str]] = {}
    for uid, problem in problems.items():
        origins.setdefault(str(problem.info.get(ORIGIN, uid)), []).append(uid)
    stored: dict[str, list[dict[str, Any]]] = {}
    played = samples.has_column(folder, samples.EPISODE)
    for row in samples.read(folder, COLUMNS + OF_EPISODES if played else COLUMNS):
        row["max_tokens"] = about["max_tokens"]
        if row["stop"] != "error":
            for uid in origins.get(row["uid"], ()):
                stored.setdefault(uid, []).append(row)
    lacking = problems.keys() - stored.keys()
    if lacking:
        raise DataError(
            "rlvr.samples",
            f"{len(lacking)} of {len(problems)} problems have no stored completion ({min(lacking)} is one)",
            "Draw them from the split that is trained on, or curate the split from the samples (select: pass_rate).",
        )
    return stored
