"""Saved views of an experiment, written as MLflow's page writes them: pipeline runs, with what differs and what it did.

A view is a tag of the experiment; the page opens it by `viewStateShareKey` (`tasks.tracking.links`). MLflow has no call for it, so the
form is pinned by tests that look at the page in a browser.
"""

from __future__ import annotations

import base64
import json
import time
import zlib
from typing import Any

from pipelines.recipe.settings import CHECKPOINTS
from tasks.tracking.client import client
from tasks.tracking.links import SEEDS_VIEW, VIEW
from tasks.tracking.names import clean
from tasks.tracking.record import HEADLINES

TAG = "mlflow.sharedViewState."
MOST_PARAMS, MOST_SCORES, LOOK_AT = 12, 8, 200
PIPELINES = "tags.`whetstone.kind` = 'pipeline'"
SEEDS = ("seed", "rlvr.seed")
"""The parameters in which the seeds of one setting differ: a sweep sets RLVR's own."""
DIFFERENCE_GROUPS = ["Model metrics", "Parameters"]


def update_views(experiment_id: str) -> None:
    """Rewrite our views of an experiment where its runs now differ in other settings or have other scores."""
    to = client()
    runs = to.search_runs([experiment_id], PIPELINES, order_by=["attributes.start_time DESC"], max_results=LOOK_AT)
    params = differing([r.data.params for r in runs])
    metrics = score_columns([list(r.data.metrics) for r in runs])
    views = {
        VIEW: ("Whetstone: pipeline runs", _state(params, metrics, None)),
        SEEDS_VIEW: ("Whetstone: averaged over seeds", _state(params, metrics, but_seeds(params))),
    }
    tags = to.get_experiment(experiment_id).tags
    for key, (name, state) in views.items():
        kept = decode(tags.get(TAG + key))
        if kept is None or kept[1] != state:
            to.set_experiment_tag(experiment_id, TAG + key, encode(name, state))


def differing(params: list[dict[str, str]]) -> list[str]:
    """Parameters that are not the same in every run, those that split the runs into the fewest parts first.

    >>> differing([{"a": "1", "b": "x", "seed": "0"}, {"a": "2", "b": "x", "seed": "0"}, {"a": "2", "b": "x"}])
    ['a', 'seed']
    """
    names = sorted({name for run in params for name in run})
    kinds = {name: len({run.get(name) for run in params}) for name in names}
    chosen = sorted((n for n in names if kinds[n] > 1), key=lambda n: (kinds[n], n))
    return chosen[:MOST_PARAMS]


def but_seeds(params: list[str]) -> list[str]:
    """The parameters that runs are averaged over seeds by.

    >>> but_seeds(["rlvr.advantage.kind", "rlvr.seed", "seed", "rlvr.steps"])
    ['rlvr.advantage.kind', 'rlvr.steps']
    """
    return [name for name in params if name not in SEEDS]


def score_columns(metrics: list[list[str]]) -> list[str]:
    """The headline score of each benchmark for each checkpoint, the gains, and the seconds, as far as any run has them.

    >>> score_columns([["rlvr/x/pass_at_1", "rlvr/x/pass_at_1_low", "rlvr/x/pass_at_8", "gain/x/base_to_rlvr", "seconds/total"]])
    ['rlvr/x/pass_at_1', 'gain/x/base_to_rlvr', 'seconds/total']
    """
    every = [n for n in dict.fromkeys(name for run in metrics for name in run) if not n.endswith(("_low", "_high"))]
    wanted = [clean(m) for m in HEADLINES]
    best: dict[str, str] = {}
    for name in every:
        checkpoint, _, rest = name.partition("/")
        if checkpoint not in ("gain", "seconds") and "/" in rest:
            task = rest.rpartition("/")[0]
            kept = best.get(task)
            if kept is None or _rank(name, wanted) < _rank(kept, wanted):
                best[task] = name
    scores = [f"{c}/{t}/{name.rpartition('/')[2]}" for t, name in best.items() for c in _models(every)]
    gains = [n for n in every if n.startswith("gain/")]
    return [n for n in (*scores[:MOST_SCORES], *gains[:MOST_SCORES], "seconds/total") if n in every]


def _models(metrics: list[str]) -> list[str]:
    """The checkpoints that metrics are about: those of named stages in the order of the metrics, then a chain's, last to first."""
    firsts = [name.partition("/")[0] for name in metrics if name.count("/") > 1]
    named = [c for c in dict.fromkeys(firsts) if c not in ("gain", "seconds", *CHECKPOINTS)]
    return [*named, *reversed(CHECKPOINTS)]


def _rank(name: str, wanted: list[str]) -> int:
    metric = name.rpartition("/")[2]
    return wanted.index(metric) if metric in wanted else len(wanted)


def _state(params: list[str], metrics: list[str], group_by: list[str] | None) -> dict[str, Any]:
    columns = [f"metrics.`{m}`" for m in metrics] + [f"params.`{p}`" for p in params]
    columns += ["attributes.`Duration`"]
    keys = [{"mode": "param", "groupByData": name} for name in group_by or []]
    return {
        "searchFilter": PIPELINES,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
        "groupBy": {"aggregateFunction": "average", "groupByKeys": keys} if keys else None,
        "isAccordionReordered": True,  # else the page sorts its own sections before these
        "compareRunSections": [
            {"uuid": "scores", "name": "Scores", "display": True, "isReordered": True},
            {"uuid": "settings", "name": "What differs, and what it did", "display": True, "isReordered": True},
        ],
        "compareRunCharts": _charts(params, metrics),
    }


def _charts(params: list[str], metrics: list[str]) -> list[dict[str, Any]]:
    def chart(kind: str, section: str, name: str, **fields: Any) -> dict[str, Any]:
        fixed = {"type": kind, "uuid": f"{section}-{name}", "metricSectionId": section, "runsCountToCompare": 20}
        return {**fixed, "deleted": False, "isGenerated": False, **fields}

    def axis(name: str) -> dict[str, str]:
        return {"key": name, "type": "METRIC"}

    scores = [m for m in metrics if not m.startswith("seconds/")]
    charts = [chart("BAR", "scores", m, metricKey=m) for m in scores]
    if scores and params:
        charts.append(chart("PARALLEL", "settings", "parallel", selectedParams=params, selectedMetrics=scores[:3]))
    if scores and "seconds/total" in metrics:
        charts.append(chart("SCATTER", "settings", "cost", xaxis=axis("seconds/total"), yaxis=axis(scores[0])))
    shown = {"compareGroups": DIFFERENCE_GROUPS, "showDifferencesOnly": True, "showChangeFromBaseline": True}
    charts.append(chart("DIFFERENCE", "settings", "difference", chartName="Runs difference view", **shown))
    return charts


def encode(name: str, state: dict[str, Any]) -> str:
    """A view as the text of its tag."""
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode(), 9)).decode()
    now = int(time.time() * 1000)
    return json.dumps({"name": name, "createdAt": now, "updatedAt": now, "state": f"deflate;{packed}"})


def decode(tag: str | None) -> tuple[str, dict[str, Any]] | None:
    """(name, state) of a tag that `encode` made; None for anything else."""
    try:
        body = json.loads(tag or "")
        state = body["state"].removeprefix("deflate;")
        return body["name"], json.loads(zlib.decompress(base64.b64decode(state)))
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error):
        return None
