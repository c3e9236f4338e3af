"""A pipeline run by its name or the first characters of its id: of this project folder, else of MLflow, which is imported only then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pipelines.base.errors import UserError
from tasks import environment
from tasks.store import index
from tasks.tracking.time_budget import TrackerError

T = TypeVar("T")


class NoSuchRun(UserError):
    """No run is called so and no id starts so, or several do."""


def find_run(prefix: str, *, ask_mlflow: bool = True) -> dict[str, Any]:
    """The one pipeline run whose id starts with `prefix`, or whose name it is where no id does, or whose
    experiment has this one alone.

    Args:
        ask_mlflow: where this project folder knows none, ask MLflow.

    Raises:
        NoSuchRun: there is none, or there are several.
        Unreachable: MLflow does not answer.
    """
    local = index.meant(prefix, index.runs())
    return _only(prefix, local) if local or not ask_mlflow else find_in_mlflow(prefix)


def find_in_mlflow(prefix: str) -> dict[str, Any]:
    """As `find_run`, of the runs that MLflow lists, with its stages and its summary."""
    run = _only(prefix, index.meant(prefix, mlflow_runs()))
    from tasks.tracking import api as tracking

    return _ask(lambda: tracking.show(run["run_id"]))


def mlflow_runs(experiment: str | None = None, limit: int = 1000) -> list[dict[str, Any]]:
    """What MLflow itself lists, newest first: runs of other machines and of older stores too.

    Raises:
        Unreachable: MLflow does not answer.
    """
    environment.prepare()
    environment.check_reachable()
    from tasks.tracking import api as tracking

    return _ask(lambda: tracking.recent(experiment, limit))


def _only(prefix: str, matching: list[dict[str, Any]]) -> dict[str, Any]:
    if len(matching) != 1:
        if matching:
            told = f"{len(matching)} pipeline runs have this name or beginning ({index.listed(matching)})"
            raise NoSuchRun(prefix, told, "Give more of the id.")
        raise NoSuchRun(
            f"no pipeline run has the name {prefix!r} or an id that starts so ({environment.home()} was looked in); see "
            "`whetstone runs` or `whetstone runs --remote`."
        )
    return matching[0]


def _ask(question: Callable[[], T]) -> T:
    try:
        return question()
    except TrackerError as error:
        raise environment.Unreachable(f"MLflow did not list its runs: {error}") from None
