"""A sweep as one Prefect flow: a pipeline run for every variant and seed, stages that they share once, a live leaderboard."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import Any

from tasks import environment

environment.prepare()

from prefect import flow, task  # noqa: E402
from prefect.artifacts import create_table_artifact  # noqa: E402
from prefect.cache_policies import NO_CACHE  # noqa: E402
from prefect.futures import as_completed  # noqa: E402
from prefect.task_runners import ThreadPoolTaskRunner  # noqa: E402

from evaluation.pages import sweep as pages  # noqa: E402
from flows.post_training import post_training  # noqa: E402
from pipelines.base.errors import UserError  # noqa: E402
from tasks import process, worker  # noqa: E402
from tasks.sweep import arms, leaderboard  # noqa: E402
from tasks.sweep import plan as sweeps  # noqa: E402
from tasks.sweep.leaderboard import Outcome  # noqa: E402
from tasks.sweep.plan import Cell, Sweep  # noqa: E402
from tasks.tracking import client as tracking_client  # noqa: E402

LIVE_RESAMPLES = 200
"""Bootstrap resamples for the leaderboard that Prefect shows while runs are still to come."""
Finished = Callable[[Outcome, int, int], None]
"""Called with an outcome, how many runs have ended, and how many there are."""


class _Runs:
    """Runs the cells of a sweep, some at a time."""

    def __init__(self, sweep: Sweep, rerun: bool) -> None:
        self.sweep, self.rerun = sweep, rerun

    def all(self, cells: Iterable[Cell], finished: Finished) -> list[Outcome]:
        """Outcomes in the order of the cells; a run that fails does not end the others."""
        cells = list(cells)
        outcomes: dict[int, Outcome] = {}
        about = (self.sweep.path, self.sweep.benchmark, self.rerun, environment.tracking_uri(), self.sweep.k)
        try:
            futures = {_run_cell.with_options(task_run_name=c.name).submit(c, *about): i for i, c in enumerate(cells)}
            for future in as_completed(list(futures)):
                outcome = future.result(raise_on_failure=False)
                number = futures[future]
                if not isinstance(outcome, Outcome):  # the task itself failed: nothing that a stage could do
                    outcome = Outcome(cells[number], None, str(outcome) or type(outcome).__name__)
                outcomes[number] = outcome
                finished(outcome, len(outcomes), len(cells))
        except BaseException:
            process.stop_all.set()
            raise
        return [outcomes[i] for i in range(len(cells))]


@task(name="run", cache_policy=NO_CACHE, persist_result=False)
def _run_cell(cell: Cell, path: str, benchmark: str, fresh: bool, store: str, k: int) -> Outcome:
    return run_cell(cell, path, benchmark, fresh, store, k)


def run_cell(cell: Cell, path: str, benchmark: str, fresh: bool, store: str, k: int = 1) -> Outcome:
    """Run a cell's pipeline, on whatever machine this is; what it has done before is reused.

    Args:
        path: the recipe.
        benchmark: what the sweep ranks by.
        store: MLflow's address where the sweep runs.
        k: of pass@k.
    """
    if process.stop_all.is_set():
        return Outcome(cell, None, "stopped")
    if environment.tracking_uri() != store:
        error = (
            f"{socket.gethostname()} writes to another MLflow ({environment.tracking_uri()}) than the sweep ({store})"
        )
        return Outcome(cell, None, f"MLFLOW_TRACKING_URI: {error}. Start what works there with the same.")
    state = post_training(
        recipe=path, overrides=list(cell.overrides), only=list(cell.only) if cell.only else None, fresh=fresh, return_state=True
    )  # fmt: skip
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        return Outcome(cell, None, str(result) or type(result).__name__)
    return Outcome.of(cell, result, benchmark, k)


@flow(name="sweep", flow_run_name="sweep {recipe}", persist_result=False)
def sweep(
    recipe: str,
    axes: dict[str, Any] | None = None,
    fresh: bool = False,
    separate_homes: bool = False,
) -> dict[str, Any]:
    """Run a recipe with several settings, presets and seeds, and rank what comes out.

    As many runs go side by side as the flow's task runner has workers. Finished runs are reused, so a sweep that was stopped
    goes on where it was.

    Args:
        recipe: path of a YAML file, relative to the project's root where it is not found as given.
        axes: what is compared, by the names of the arguments of `tasks.sweep.plan.read`: `{"presets": "all", "seeds": "3"}`;
            or what `tasks.sweep.arms.read` takes: `experiment`, `name` and `seeds`.
        fresh: run every stage even where its artifact exists.
        separate_homes: the task runner's workers have project folders of their own, so what all runs share is made first.

    Returns:
        recipe, experiment, task, confidence, leaderboard (best first), start (see `leaderboard.start_of`), tuned (variant → value),
        failed (run → error), left_out (preset → reason), shares (variant → share of the budget that SFT spent), differences (arm →
        value, low and high over the baseline of an experiment).

    Raises:
        UserError: names the option or the field and the fix; or no run came to its end.
    """
    worker.enter()
    reader = arms.read if "experiment" in (axes or {}) else sweeps.read
    read = reader(recipe, **(axes or {}))
    sweeps.check(read, fresh)
    # before there are threads: MLflow's import and its new database are not made for them
    with tracking_client.mlflow_errors():
        tracking_client.experiment(read.experiment)
    runs = _Runs(read, fresh)
    start, benchmark = read.start(), read.benchmark
    evaluate = read.base.node(read.evaluation).settings
    confidence, resamples = evaluate.confidence, evaluate.bootstrap
    outcomes: list[Outcome] = []

    def finished(outcome: Outcome, done: int, total: int) -> None:
        outcomes.append(outcome)
        _say(f"{done}/{total} {outcome.cell.name}: {_told(outcome)}")
        live = min(resamples, LIVE_RESAMPLES)
        rows = leaderboard.leaderboard(outcomes, benchmark, confidence=confidence, resamples=live)
        if rows:
            cells = pages.cells(rows, leaderboard.start_of(outcomes, confidence=confidence))
            create_table_artifact(cells, key="leaderboard", description=f"{read.base.name}: {benchmark}")

    if start and separate_homes:  # what all share is then in MLflow, from where machines fetch it
        runs.all([start], finished)
    chosen = _tune(read, runs) if read.tune else {}
    runs.all([*([start] if start and not separate_homes else []), *read.cells(chosen)], finished)
    rows = leaderboard.leaderboard(outcomes, benchmark, confidence=confidence, resamples=resamples)
    failed = {o.cell.name: o.error for o in outcomes if o.error}
    if not rows:
        raise UserError(
            "no run of the sweep came to its end:\n  " + "\n  ".join(f"{k}: {v}" for k, v in failed.items())
        )
    return {
        "recipe": read.base.name,
        "experiment": read.experiment,
        "task": benchmark,
        "confidence": confidence,
        "leaderboard": rows,
        "start": leaderboard.start_of(outcomes, confidence=confidence),
        "tuned": chosen,
        "failed": failed,
        "left_out": read.left_out,
        "shares": read.shares,
        "differences": leaderboard.differences(outcomes, read.baseline, confidence=confidence)
        if isinstance(read, arms.ArmSweep)
        else {},
    }


def _tune(read: Sweep, runs: _Runs) -> dict[str, str]:
    """The value of the tuned field for every variant, by the reward at the end of runs with a seed of their own.

    Successive halving (1603.06560, algorithm 1), or one round of runs as long as the ranked ones.
    """
    assert read.tune is not None
    alive = {variant: list(read.tune.values) for variant in read.tunes}
    for steps in read.tune.rounds(read.steps):
        trials = {
            (v, value): cell
            for v in alive
            for value, cell in zip(alive[v], read.trials(v, alive[v], steps), strict=True)
        }

        def finished(outcome: Outcome, done: int, total: int) -> None:
            reward = "failed: " + outcome.error if outcome.error else f"reward {outcome.reward:.3f}"
            _say(f"trial {done}/{total} {outcome.cell.variant}: {reward}")

        ended = dict(zip(trials, runs.all(trials.values(), finished), strict=True))
        for variant, values in alive.items():
            alive[variant] = sweeps.keep_better_half({value: ended[variant, value].reward for value in values})
    return {variant: values[0] for variant, values in alive.items()}


def _told(outcome: Outcome) -> str:
    if outcome.summary is None:
        return f"failed: {(outcome.error or '').splitlines()[0][:200]}"
    return f"{100 * fmean(outcome.scores.values()):.1f} %, run {outcome.summary['parent_run_id']}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def start(jobs: int, runner: str = "threads", **parameters: Any) -> Any:
    """Run the flow with so many runs side by side; returns its final state.

    Args:
        runner: `threads`; `dask`: worker processes of this machine; `dask:ADDRESS`: those of a Dask scheduler; `ray:ADDRESS`: those of a
            cluster of Ray.
    """
    separate = runner.startswith(("dask:", "ray:"))
    return sweep.with_options(task_runner=task_runner(runner, jobs))(
        **parameters, separate_homes=separate, return_state=True
    )


def task_runner(text: str, jobs: int) -> Any:
    """Prefect's task runner of a name that `flows.cli.sweep.check_runner` let through."""
    kind, _, address = text.partition(":")
    if kind == "threads":
        return ThreadPoolTaskRunner(max_workers=jobs)
    if kind == "ray":
        from prefect_ray import RayTaskRunner

        return RayTaskRunner(address=address)
    from prefect_dask import DaskTaskRunner

    if address:
        return DaskTaskRunner(address=address)
    local = {"n_workers": jobs, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    return DaskTaskRunner(cluster_kwargs=local)
