"""A JSON plan by stages: the schema first, then soft checks, then hard ones (Planner-R1, arXiv 2509.25779).

    r = schema * (w1 mean(soft) + w2 mean(hard) + w3 [all soft] + w4 [all hard] + w5 [all soft and all hard])

`info`: `schema`, `soft` and `hard` (lists of checks), `weights` (five, default 1 each; the paper's later stages are 0, 0, 1, 1, 1
and 0, 0, 0, 0, 1). A mean of no checks is 1. A check is the verdict of another verifier, `{verifier, answer, info}`, or a rule over the
plan's values, `{path, of, at_least, at_most, equals, one_of}`: see `docs/data.md`. The formula is a report of the paper's equation 1
at second hand; its checks are those of a travel planner.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from pipelines.verifiers import verify as verify_row
from pipelines.verifiers._code import program
from pipelines.verifiers._compound import BadPart, Row, part
from pipelines.verifiers.json_schema import strict
from pipelines.verifiers.verdict import UNPARSABLE, Verdict

MOST_CHECKS, MOST_VALUES = 200, 10_000
MEASURES = ("each", "sum", "count", "distinct")
_RULE = {"path", "of", "at_least", "at_most", "equals", "one_of"}


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The weighted sum; correct where every check is met."""
    return verify_row("staged", completion, answer, info)


def checks(info: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(soft, hard).

    Raises:
        BadPart: one cannot be read, or there are too many.
    """
    soft, hard = (list(info.get(name) or []) for name in ("soft", "hard"))
    if len(soft) + len(hard) > MOST_CHECKS:
        raise BadPart(f"{len(soft) + len(hard)} checks, at most {MOST_CHECKS}")
    for check in (*soft, *hard):
        if isinstance(check, dict) and "verifier" in check:
            part(check, "")
        else:
            _readable(check)
    return soft, hard


def _readable(rule: Any) -> None:
    if not isinstance(rule, dict) or rule.keys() - _RULE or not isinstance(rule.get("path"), str):
        raise BadPart(f"a check is a verifier's part, or has a path and no other keys than {sorted(_RULE)}")
    if rule.get("of", "each") not in MEASURES or not rule.keys() & {"at_least", "at_most", "equals", "one_of"}:
        raise BadPart(f"a rule says at_least, at_most, equals or one_of; its `of` is one of {MEASURES}")
    if not all(_number(rule[name]) for name in ("at_least", "at_most") if name in rule):
        raise BadPart("at_least and at_most are numbers")
    if not isinstance(rule.get("one_of", []), list):
        raise BadPart("one_of is a list")


def weights(info: dict[str, Any]) -> list[float]:
    """The five weights.

    Raises:
        BadPart: they are no five numbers, 0 or more.
    """
    listed = info.get("weights", [1, 1, 1, 1, 1])
    if not isinstance(listed, list) or len(listed) != 5 or not all(_number(w) and w >= 0 for w in listed):
        raise BadPart("weights are five numbers, 0 or more")
    return [float(w) for w in listed]


def parts(completion: str, answer: str, info: dict[str, Any]) -> list[Row]:
    """The schema, then the checks that are other verifiers' business.

    Raises:
        BadPart: a check or the weights cannot be read.
        KeyError: there is no schema.
    """
    soft, hard = checks(info)
    weights(info)
    schema: Row = ("json_schema", completion, "", {"schema": info["schema"]})
    return [schema, *(part(check, completion) for check in (*soft, *hard) if "verifier" in check)]


def combine(rows: Sequence[tuple[str, str, dict[str, Any]]], verdicts: Sequence[list[Verdict]]) -> list[Verdict]:
    """A verdict for each (completion, answer, info) row, from those of its parts."""
    return [_verdict(row[0], row[2], listed) for row, listed in zip(rows, verdicts, strict=True)]


def _verdict(completion: str, info: dict[str, Any], verdicts: list[Verdict]) -> Verdict:
    schema, *answered = verdicts
    if schema.status == "unparsable":
        return UNPARSABLE
    if not schema.correct:
        return Verdict(0.0, schema.status, {"schema": 0.0})
    value = strict(program(completion, ("json",)).strip())
    left = iter(answered)
    met = [
        [bool(next(left).correct) if "verifier" in check else holds(check, value) for check in listed]
        for listed in checks(info)
    ]
    terms = graded(*met)
    score = sum(w * t for w, t in zip(weights(info), terms.values(), strict=True))
    return Verdict(score, "correct" if terms["all"] else "incorrect", {"schema": 1.0, **terms})


def graded(soft: Sequence[bool], hard: Sequence[bool]) -> dict[str, float]:
    """The five terms, in the order of the weights.

    >>> list(graded([True] * 7 + [False], [True] * 5).values())
    [0.875, 1.0, 0.0, 1.0, 0.0]
    """
    shares = [sum(met) / len(met) if met else 1.0 for met in (soft, hard)]
    every = [float(all(met)) for met in (soft, hard)]
    return {
        "soft": shares[0], "hard": shares[1], "all_soft": every[0], "all_hard": every[1], "all": every[0] * every[1],
    }  # fmt: skip


def holds(rule: dict[str, Any], value: Any) -> bool:
    """Whether a plan follows a rule.

    >>> plan = {"days": [{"cost": 3}, {"cost": 4}]}
    >>> holds({"path": "days.*.cost", "of": "sum", "at_most": 7}, plan), holds({"path": "days.*.cost", "at_most": 3}, plan)
    (True, False)
    """
    values = select(value, rule["path"])
    measure = rule.get("of", "each")
    if measure == "count":
        values = [len(values)]
    elif measure == "distinct":
        values = [len({repr(v) for v in values})]
    elif measure == "sum":
        if not all(_number(v) for v in values):
            return False
        values = [sum(values)]
    return bool(values) and all(_fits(rule, v) for v in values)


def _fits(rule: dict[str, Any], value: Any) -> bool:
    if "at_least" in rule and not (_number(value) and value >= rule["at_least"]):
        return False
    if "at_most" in rule and not (_number(value) and value <= rule["at_most"]):
        return False
    if "equals" in rule and not _same(value, rule["equals"]):
        return False
    return "one_of" not in rule or any(_same(value, choice) for choice in rule["one_of"])


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:
        return False


def select(value: Any, path: str) -> list[Any]:
    """The values at a path: keys and positions with dots between, `*` for every item; the first `MOST_VALUES` of them.

    >>> select({"a": [{"b": 1}, {"b": 2}, {}]}, "a.*.b"), select([7, 8], "1"), select({"a": 1}, "b")
    ([1, 2], [8], [])
    """
    values = [value]
    for key in path.split(".") if path else []:
        values = [item for each in values for item in _items(each, key)][:MOST_VALUES]
    return values


def _items(value: Any, key: str) -> list[Any]:
    if isinstance(value, list):
        if key == "*":
            return value
        return [value[int(key)]] if key.isdecimal() and len(key) < 9 and int(key) < len(value) else []
    if isinstance(value, dict):
        return list(value.values()) if key == "*" else [value[key]] if key in value else []
    return []


def open_ended(answer: str, info: dict[str, Any]) -> bool:
    """True: a plan is judged by its checks."""
    return True


def gold(answer: str, info: dict[str, Any]) -> str | None:
    """A plan that meets every check: the row's `example`, where there is one."""
    return info.get("example")
