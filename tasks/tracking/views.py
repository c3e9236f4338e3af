"""Saved views of an experiment, written as MLflow's page writes them: pipeline runs, with what differs and what it did; learning curves.

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
from tasks.tracking.links import CURVES_VIEW, SEEDS_VIEW, VIEW
from tasks.tracking.names import clean
from tasks.tracking.record import HEADLINES

TAG = "mlflow.sharedViewState."
MOST_PARAMS, MOST_SCORES, LOOK_AT = 12, 8, 200
PIPELINES = "tags.`whetstone.kind` = 'pipeline'"
SEEDS = ("seed", "rlvr.seed")
"""The parameters in which the seeds of one setting differ: a sweep sets RLVR's own."""
STAGES, ARM = "tags.`whetstone.kind` = 'stage'", "whetstone.arm"
CURVES = (
    "reward/mean", "reward/correct", "rollout/length_mean", "rollout/truncated_share", "policy/entropy", "mismatch/kl", "loss/heldout",
    "loss/train", "optimizer/grad_norm",
)  # fmt: skip
"""Learning curves that are drawn, those of rewards first."""
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
    stages = to.search_runs([experiment_id], STAGES, order_by=["attributes.start_time DESC"], max_results=LOOK_AT)
    kind, curves = learning([(r.data.tags.get("whetstone.stage_kind", ""), set(r.data.metrics)) for r in stages])
    if curves:
        views[CURVES_VIEW] = ("Whetstone: learning curves", _curves_state(kind, curves))
    tags = to.get_experiment(experiment_id).tags
    for key, (name, state) in views.items():
        kept = decode(tags.get(TAG + key))
        if kept is None or kept[1] != state:
            to.set_experiment_tag(experiment_id, TAG + key, encode(name, state))


def learning(stages: list[tuple[str, set[str]]]) -> tuple[str, list[str]]:
    """The kind of stage whose curves are drawn, and these curves: what learns from rewards before what fits data.

    Args:
        stages: kind and metrics of each stage's run, the newest first.

    >>> learning([("sft", {"loss/train"}), ("rlvr", {"policy/entropy", "reward/mean"}), ("evaluate", set())])
    ('rlvr', ['reward/mean', 'policy/entropy'])
    >>> learning([("evaluate", {"sft/x/pass_at_1"})])
    ('', [])
    """
    ranked = [(min((CURVES.index(m) for m in metrics if m in CURVES), default=None), kind) for kind, metrics in stages]
    first = min((place for place, _ in ranked if place is not None), default=None)
    kind = next((kind for place, kind in ranked if place is not None and place == first), "")
    logged = {m for each, metrics in stages if each == kind for m in metrics}
    return kind, [m for m in CURVES if m in logged] if kind else []


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


def _curves_state(kind: str, metrics: list[str]) -> dict[str, Any]:
    """Runs of one kind of stage, a line for each arm, averaged over its seeds."""
    columns = [f"metrics.`{m}`" for m in metrics] + [f"tags.`{ARM}`", "attributes.`Duration`"]
    keys = [{"mode": "tag", "groupByData": ARM}]
    chosen = f"{STAGES} and tags.`whetstone.stage_kind` = '{kind}'"
    return _table(chosen, columns, keys) | {
        "compareRunSections": [{"uuid": "curves", "name": "Learning curves", "display": True, "isReordered": True}],
        "compareRunCharts": [
            {
                "type": "LINE", "uuid": f"curves-{m}", "metricSectionId": "curves", "runsCountToCompare": 20, "deleted": False,
                "isGenerated": False, "metricKey": m, "selectedMetricKeys": [m], "xAxisKey": "step", "xAxisScaleType": "linear",
                "yAxisKey": "metric", "scaleType": "linear", "lineSmoothness": 0, "selectedXAxisMetricKey": "", "yAxisExpressions": [],
                "useGlobalLineSmoothing": False, "useGlobalXaxisKey": False,
            }
            for m in metrics
        ],
    }  # fmt: skip


def _table(chosen: str, columns: list[str], group_by: list[dict[str, str]]) -> dict[str, Any]:
    """The list of runs in a view: which, with which columns, grouped by what."""
    return {
        "searchFilter": chosen,
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
        "groupBy": {"aggregateFunction": "average", "groupByKeys": group_by} if group_by else None,
        "isAccordionReordered": True,  # else the page sorts its own sections before these
    }


def _state(params: list[str], metrics: list[str], group_by: list[str] | None) -> dict[str, Any]:
    columns = [f"metrics.`{m}`" for m in metrics] + [f"params.`{p}`" for p in params]
    columns += ["attributes.`Duration`"]
    keys = [{"mode": "param", "groupByData": name} for name in group_by or []]
    return _table(PIPELINES, columns, keys) | {
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
