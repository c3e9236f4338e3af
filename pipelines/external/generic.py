"""Any trainer: the recipe says its command, its columns, and where its model and its metrics are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.data.records import Problem
from pipelines.external.adapter import Adapter, standard_parts, write_form
from pipelines.external.config import put

PARTS = ("prompt", "text", "answer", "verifier", "source", "uid", "index", "info")
"""What a column can hold."""
COLUMNS = {name: name for name in PARTS if name != "text"}


def check_columns(columns: Mapping[str, str]) -> None:
    """Every column holds something that a row has.

    Raises:
        RecipeError: one does not.
    """
    for column, part in columns.items():
        if part not in PARTS and not part.startswith("="):
            fix = did_you_mean(part, PARTS)
            raise RecipeError(
                f"external.columns.{column}", f"a row has no {part!r}", f"{fix} A constant is written =TEXT."
            )


@dataclass(frozen=True)
class Generic(Adapter):
    """The recipe says everything."""

    def row(self, problem: Problem, index: int, columns: Mapping[str, str] | None) -> dict[str, Any]:
        """The columns that the recipe names."""
        parts = standard_parts(problem, index, json.dumps(problem.info, default=str))
        parts |= {"prompt": problem.prompt, "answer": problem.answer, "source": problem.source}
        parts["text"] = "\n\n".join(message["content"] for message in problem.prompt)
        row: dict[str, Any] = {}
        for column, part in (columns or COLUMNS).items():
            put(row, column, part[1:] if part.startswith("=") else parts[part])
        return row

    def write_config(self, values: dict[str, Any], path: Path) -> list[str]:
        """The file in its own form; the command names it as `{config}`."""
        write_form(values, path)
        return []


ADAPTER = Generic()
