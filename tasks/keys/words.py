"""What changed between two keys, in words."""

from __future__ import annotations

import json
from typing import Any


def difference(old: Any, new: Any, path: str = "", limit: int = 3) -> list[str]:
    """What changed between two sets of key parts, in words; a method that was newly chosen is reported once, not as code too.

    >>> difference({"settings": {"rlvr": {"steps": 3}}}, {"settings": {"rlvr": {"steps": 5}}})
    ['rlvr.steps changed 3 → 5']
    """
    if path == "" and "chosen" in old and "chosen" in new:
        old, new = (
            {**each, "settings": _shown(each["chosen"], each["settings"], other["chosen"]), "chosen": None}
            for each, other in ((old, new), (new, old))
        )
    if isinstance(old, dict) and isinstance(new, dict):
        changes: list[str] = []
        where = {**(old.get("where") or {}), **(new.get("where") or {})} if path == "" else {}
        for key in sorted((set(old) | set(new)) - {"where" if path == "" else ""}):
            if path == "" and key == "files":
                changes += _files(old.get(key) or {}, new.get(key) or {}, where)
                continue
            deeper = key if path in ("", "settings") else f"{path}.{key}"
            changes += difference(old.get(key), new.get(key), deeper, limit)
        if not changes and path == "":
            names = sorted(set(old.get("source") or {}) ^ set(new.get("source") or {}))
            changes = [f"{name} came or went" for name in names]
        return changes
    if old == new:
        return []
    top, _, rest = path.partition(".")
    if top == "source":
        return [f"the code of {rest} changed"] if old and new else []
    if top == "inputs":
        return [f"its input {rest} changed"]
    if top == "versions":
        return [f"{rest} changed {old} → {new}"]
    return [f"{path.removesuffix('.kind')} changed {_short(old)} → {_short(new)}"]


def _shown(chosen: Any, settings: Any, other: Any) -> Any:
    """The chosen settings, with the defaults of those that the other key holds and this one does not.

    >>> _shown({"sft": {}}, {"sft": {"steps": 3, "seed": None}}, {"sft": {"steps": 5}})
    {'sft': {'steps': 3}}
    """
    if not all(isinstance(each, dict) for each in (chosen, settings, other)):
        return chosen
    empty = {
        name: {} if isinstance(settings[name], dict) else settings[name] for name in settings.keys() & other.keys()
    }
    return {name: _shown(each, settings.get(name), other.get(name)) for name, each in {**empty, **chosen}.items()}


def _short(value: Any) -> str:
    if isinstance(value, dict) and "kind" in value and len(value) == 1:
        return str(value["kind"])
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _files(old: dict[str, str], new: dict[str, str], where: dict[str, str]) -> list[str]:
    """Files that changed, came or went, by the paths that the user gave them."""
    changes = []
    for name in sorted(set(old) | set(new)):
        if old.get(name) != new.get(name):
            verb = "changed" if name in old and name in new else "is new" if name in new else "is gone"
            changes.append(f"{where.get(name, name)} {verb}")
    return changes
