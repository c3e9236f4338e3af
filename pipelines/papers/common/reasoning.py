"""Where a row's answer stands, so that another one can take its place."""

from __future__ import annotations

from typing import Any

from pipelines.data import control
from pipelines.data.records import Role, Trajectory


def own_reasoning(row: Trajectory, marker: str, tokenizer: Any) -> tuple[list[int], list[int] | None]:
    """Token ids of what the policy's last message was asked with, and of that message up to the end of its last marker.

    None where the marker does not occur. An empty marker ends the whole message, without the tokens that end it.
    """
    end = len(row.role)
    while end and row.role[end - 1] != Role.POLICY:
        end -= 1
    start = end
    while start and row.role[start - 1] == Role.POLICY:
        start -= 1
    ids = row.tokens[start:end]
    if not marker:
        special = set(tokenizer.all_special_ids)
        while ids and ids[-1] in special:
            ids = ids[:-1]
        return row.tokens[:start], ids
    text = control.decode_text(tokenizer, ids)
    if marker not in text:
        return row.tokens[:start], None
    return row.tokens[:start], control.encode_text(tokenizer, text.rpartition(marker)[0] + marker)
