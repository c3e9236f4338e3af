"""Every planted bug, under `room: what is wrong`."""

from __future__ import annotations

from planted import Bug

from planted_bugs import core, curate, evaluation, flows, methods, preference, reward_model, sample, sft

PLANTED: dict[str, Bug] = {
    f"{room.__name__.rpartition('.')[2]}: {bug}": planted
    for room in (core, curate, evaluation, flows, methods, preference, reward_model, sample, sft)
    for bug, planted in room.PLANTED.items()
}
