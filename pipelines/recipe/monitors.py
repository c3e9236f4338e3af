"""The sections that watch a run: `monitors` with what all rules share, and `rollback`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from pipelines.contract.fields import Settings

Action = Literal["warn", "stop", "finish", "rollback"]
DEFAULT_MONITORS: list[dict[str, Any]] = [
    {"kind": kind}
    for kind in (
        "flat_reward", "no_progress", "reward_against_verifier", "truncation", "entropy_collapse", "entropy_explosion", "instability",
        "echo_trap", "length_drift", "length_reward", "repetition", "mismatch_growth",
    )
]  # fmt: skip
"""What RLVR is watched for unless its recipe says otherwise; each only warns."""
MONITORS_OF_FIXED_DATA: list[dict[str, Any]] = [{"kind": "instability"}, {"kind": "flat_loss"}]
"""What SFT, preference and reward-model stages are watched for unless their recipe says otherwise; each only warns."""


class Watch(Settings):
    """What every entry of `monitors` has, beside the settings of its rule."""

    kind: str
    """Name of a monitor, which `whetstone methods --slot monitor` lists, or a file with one: `./my_rule.py`."""
    action: Action = "warn"
    """`warn` says so and goes on. `stop` ends the run as failed. `finish` ends it and hands on the weights of the last good commit.
    `rollback` goes on from the last good commit with other random numbers and a lower learning rate."""
    patience: int | None = Field(None, ge=1, le=1_000_000)
    """Steps in a row that must be wrong before it is an alarm; default: the rule's own."""
    after: int = Field(0, ge=0)
    """Steps of the run that are never wrong."""


class Rollback(Settings):
    """What `action: rollback` does."""

    limit: int = Field(2, ge=1, le=100)
    """Times that a run may go back; the alarm after that stops it."""
    learning_rate: float = Field(0.5, gt=0, le=1)
    """Factor on the learning rate after each time."""
