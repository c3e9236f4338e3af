"""Fields and methods under the names they had before 0.2: still read until 0.3, with a line that says the new name."""

from __future__ import annotations

import logging
from typing import Any

import yaml

from pipelines.base.errors import RecipeError

FIELDS = {
    "sft": {"deliver": "checkpoint_selection"},
    "rlvr": {
        "keep": "filter",
        "compose": "replay",
        "bonus": "auxiliary_loss",
        "reduce": "loss_aggregation",
        "skip_silent_rows": "skip_zero_advantage_rows",
        "deliver": "checkpoint_selection",
        "agreement": "mismatch",
    },
}
"""Section → old field → new field."""
METHODS = {
    ("rlvr", "replay", "fresh"): "no_replay",
    ("rlvr", "filter", "right"): "correct",
    ("rlvr", "filter", "wrong"): "incorrect",
}
"""(section, slot, old method) → new method."""
log = logging.getLogger("whetstone")


def renamed(section: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A section with today's names for the fields and methods that were renamed.

    Raises:
        RecipeError: a field is given under both names.

    >>> renamed("sft", {"deliver": "best", "steps": 3})
    {'checkpoint_selection': 'best', 'steps': 3}
    """
    out: dict[str, Any] = {}
    if section == "rlvr" and "critic" in fields:
        fields = _critic_as_provider(fields)
    for key, value in fields.items():
        if (section, key) == ("rlvr", "max_draws"):
            key, value = "sampling_schedule", _schedule(value, fields)
        name = FIELDS.get(section, {}).get(key, key)
        if name != key:
            if name in fields:
                raise RecipeError(f"{section}.{key}: is the old name of {section}.{name}, which is set too; remove it.")
            log.warning("%s.%s is called %s.%s now; the old name is read until 0.3.", section, key, section, name)
        kind = value.get("kind") if isinstance(value, dict) else value
        method = METHODS.get((section, name, kind)) if isinstance(kind, str) else None
        if method:
            log.warning("%s.%s: %s is called %s now; the old name is read until 0.3.", section, name, kind, method)
            value = {**value, "kind": method} if isinstance(value, dict) else method
        out[name] = value
    return out


def _schedule(draws: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """What `max_draws` says today.

    >>> _schedule(3, {}), _schedule("1", {})
    ({'kind': 'dynamic', 'max_draws': 3}, {'kind': 'single'})
    """
    if "sampling_schedule" in fields:
        raise RecipeError("rlvr.max_draws: is the old name of rlvr.sampling_schedule, which is set too; remove it.")
    log.warning(
        "rlvr.max_draws is rlvr.sampling_schedule: {kind: dynamic, max_draws: N} now; the old name is read until 0.3."
    )
    draws = int(draws) if isinstance(draws, str) and draws.strip().isdigit() else draws
    return {"kind": "single"} if draws == 1 else {"kind": "dynamic", "max_draws": draws}


def _critic_as_provider(fields: dict[str, Any]) -> dict[str, Any]:
    """The section with its `critic` among the providers."""
    log.warning("rlvr.critic is an entry of rlvr.providers now; the old section is read until 0.3.")
    critic = fields["critic"]
    critic = yaml.safe_load(critic) if isinstance(critic, str) else critic
    rest = {key: value for key, value in fields.items() if key != "critic"}
    if not isinstance(critic, dict):
        return rest
    return {**rest, "providers": [*(rest.get("providers") or []), {"kind": "critic", **critic}]}


def renamed_override(text: str) -> str:
    """An override with today's names.

    >>> renamed_override("rlvr.keep.x=1")
    'rlvr.filter.x=1'
    """
    field, equals, value = text.partition("=")
    section, *rest = field.strip().split(".")
    if not rest or section not in FIELDS:
        return text
    if section == "rlvr" and rest[0] == "critic":
        critic = {rest[1]: yaml.safe_load(value)} if len(rest) > 1 else value
        providers = renamed("rlvr", {"critic": critic}).get("providers", [])
        return "rlvr.providers=" + yaml.safe_dump(providers, default_flow_style=True).strip()
    name, new = next(iter(renamed(section, {rest[0]: value if len(rest) == 1 else None}).items()))
    if name == rest[0] and new in (value, None):
        return text
    return f"{'.'.join([section, name, *rest[1:]])}{equals}{value if new is None else new}"
