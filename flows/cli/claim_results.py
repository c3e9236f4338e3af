"""Stored results of claims: one JSON file each, what it says in words, and whether a verdict can stand beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flows.cli.claim_file import Claim, Verdict
from pipelines.base.errors import UserError
from pipelines.base.names import slug
from pipelines.base.project import ROOT, is_checkout

FOLDER = ROOT / "benchmarks" / "results" / "claims"
"""In the source tree; a wheel has none."""
Body = dict[str, Any]


def folder(option: str | None) -> Path:
    """Where results are stored.

    Args:
        option: what the command line says.

    Raises:
        UserError: nothing is said, and this is no source tree.
    """
    if option is not None:
        return Path(option)
    if not is_checkout():
        raise UserError("--results", "an installed package has no folder of results", "Name a folder.")
    return FOLDER


def path_of(name: str, where: Path = FOLDER) -> Path:
    """The file of a claim's result."""
    return where / f"{slug(name)}.json"


def load(name: str, where: Path = FOLDER) -> Body | None:
    """The stored result of a claim; None where there is none.

    Raises:
        UserError: the file is damaged.
    """
    path = path_of(name, where)
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(path, f"cannot be read: {error}", "Delete it, and run the claim again.") from None


def difference(body: Body) -> Body:
    """value, low and high of the arm that the claim is about, over the baseline."""
    return dict(next(arm for arm in body["arms"] if arm["name"] == body["about"])["difference"])


def outcome(claim: Claim) -> str | None:
    """The differences in words, from the stored result where the claim has none of its own."""
    if claim.outcome is not None:
        return claim.outcome
    body = load(claim.system)
    return None if body is None else in_words(body)


def in_words(body: Body) -> str:
    """Every arm over the baseline, with its interval.

    >>> arms = [{"name": "plain", "mean": 0.5}, {"name": "new", "difference": {"value": 0.021, "low": -0.01, "high": 0.052}}]
    >>> in_words({"arms": arms, "baseline": "plain", "metric": "pass@1", "benchmark": "sums", "seeds": [0, 1, 2]})
    'pass@1 of sums, 3 seeds: over plain (50.0 %) new +2.1 points [-1.0, +5.2]'
    """
    base = next(arm for arm in body["arms"] if arm["name"] == body["baseline"])
    others = [f"{arm['name']} {_points(arm['difference'])}" for arm in body["arms"] if arm is not base]
    seeds = f"{len(body['seeds'])} seed{'s' * (len(body['seeds']) > 1)}"
    return f"{body['metric']} of {body['benchmark']}, {seeds}: over {base['name']} ({100 * base['mean']:.1f} %) {', '.join(others)}"


def _points(ends: Body) -> str:
    value, low, high = (100 * ends[name] for name in ("value", "low", "high"))
    return f"{value:+.1f} points [{low:+.1f}, {high:+.1f}]"


def cost_in_words(body: Body) -> str:
    """What a run of each arm trained for, the mean over its seeds."""
    return "; ".join(f"{arm['name']} {_cost(arm['cost'])}" for arm in body["arms"] if arm["by_seed"])


def _cost(cost: Body) -> str:
    tokens = [f"{cost['tokens'] / 1000:,.0f} thousand tokens"] if cost.get("tokens") else []
    return ", ".join([f"{cost['steps']:.0f} steps", *tokens, f"{cost['seconds']:.0f} s"])


def contradiction(claim: Claim, body: Body) -> str | None:
    """Why the verdict of a claim cannot stand beside its interval; None where it can.

    Of a claimed gain: `seen` needs an interval above 0, `contradicted` one below; `not seen` must not be above 0, and `too small` must hold
    0. Of an arm that is claimed to be as good, `seen` must not be below 0, and `not seen` and `contradicted` are. `seen in part` is about
    more than one difference.
    """
    ends = difference(body)
    low, high = ends["low"], ends["high"]
    gain = body.get("expects", "gain") == "gain"
    allowed = {
        Verdict.CONFIRMED: low > 0 if gain else high >= 0,
        Verdict.NOT_SEEN: low <= 0 if gain else high < 0,
        Verdict.CONTRADICTED: high < 0,
        Verdict.TOO_SMALL: low <= 0 <= high,
    }
    if allowed.get(claim.verdict, True):
        return None
    return f"{claim.system}: the verdict {claim.verdict.value!r} contradicts {body['about']} {_points(ends)} over {body['baseline']}"
