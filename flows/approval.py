"""A promotion that waits for a person: a Prefect run that pauses with the evidence and a form."""

from __future__ import annotations

import json
import sys
from typing import Any

from tasks import environment

environment.prepare()

import yaml  # noqa: E402
from prefect import flow, get_run_logger, runtime  # noqa: E402
from prefect.artifacts import create_markdown_artifact  # noqa: E402
from prefect.exceptions import FlowPauseTimeout  # noqa: E402
from prefect.flow_runs import pause_flow_run  # noqa: E402
from prefect.input import RunInput  # noqa: E402

from pipelines.base.errors import UserError  # noqa: E402
from tasks import worker  # noqa: E402
from tasks.promotion import promote as promotion  # noqa: E402


class Approval(RunInput):
    """What the person answers."""

    promote: bool = False
    """Whether the candidate becomes the champion. Whoever resumes the run without an answer says no."""
    name: str = ""
    """Who decides."""


@flow(name="promotion", flow_run_name="promote {run}", persist_result=False)
def promote(
    run: str | int | float,
    name: str | None = None,
    rule: dict[str, Any] | None = None,
    ask: bool = True,
    ask_hours: float = 24.0,
    new_name: bool = False,
) -> dict[str, Any]:
    """Hold a run's model against the champion; where the gate lets it through, ask a person, then move the alias.

    Args:
        run: a run or model, as `whetstone promote` takes it. What has only digits arrives as a number, and is taken as it was written.
        name: the registered model.
        rule: primary, guards, margin, alpha, looks; what is left out has its default.
        ask: wait for a person before the alias moves.
        ask_hours: how long to wait; afterwards nothing is promoted.
        new_name: `name` may be one that is not registered yet.

    Raises:
        UserError: nobody answered in time.
    """
    from tasks.promotion.rule import rule_of

    worker.enter()
    run = as_written(run)
    stated = rule_of(None, None, 2.0, 0.05, 30) | (rule or {})
    chosen = promotion.candidate(run, name, new_name=new_name)
    evidence = promotion.look(chosen, stated)
    create_markdown_artifact(
        _markdown(evidence), key="promotion", description=f"{chosen.name}: look {evidence['look']}"
    )
    if not evidence["promote"]:
        return evidence
    approved_by = None
    if ask:
        _tell_who_decides(chosen, evidence, ask_hours)
        get_run_logger().info("waiting for a person to resume this run")
        form = Approval.with_initial_data(description=_markdown(evidence), promote=False)
        try:
            answer = pause_flow_run(wait_for_input=form, timeout=int(ask_hours * 3600))
        except FlowPauseTimeout:
            raise UserError(f"nobody answered within {ask_hours:g} hours; nothing was promoted.") from None
        evidence["approved"], approved_by = answer.promote, answer.name or "somebody"
        evidence["approved_by"] = approved_by
        if not answer.promote:
            return evidence
    promotion.move(chosen, evidence, approved_by)
    return evidence


def _tell_who_decides(chosen: promotion.Candidate, evidence: dict[str, Any], hours: float) -> None:
    """Tell people, as the candidate's recipe in MLflow says, that a run waits for their answer."""
    from pipelines.recipe.settings import Notify
    from tasks import notices
    from tasks.tracking import links, open_runs
    from tasks.tracking.time_budget import TrackerError

    try:
        body = yaml.safe_load(open_runs.recipe_text(chosen.run_id)) if chosen.run_id else {}
        settings = Notify.model_validate(body["notify"]) if (body or {}).get("notify") else None
    except (TrackerError, ValueError) as error:  # without a recipe there is nobody to tell
        get_run_logger().warning("nobody was told that this run waits: %s", error)
        return
    page = links.flow_run(str(runtime.flow_run.id))
    lines = (f"{hours:g} hours are left to answer", *evidence["why"], *([page] if page else []))
    notices.tell(
        settings, notices.Message("waiting", f"{chosen.name} version {chosen.version} may become the champion", lines)
    )
    notices.finish()


def as_written(run: str | int | float) -> str:
    """The first characters of a run's id that a form or a command line has read as a number.

    Raises:
        UserError: it was read as a number with an exponent, such as 12e45678, from which they cannot be had back.

    >>> as_written(12345678), as_written("3f2a")
    ('12345678', '3f2a')
    """
    if isinstance(run, float):
        raise UserError(
            "run",
            f"the id was read as the number {run}",
            "Give more of it, or put it into quotes: --param run='\"12e4\"'.",
        )
    return str(run)


def _markdown(evidence: dict[str, Any]) -> str:
    lines = "\n".join(f"- {line}" for line in evidence["why"])
    answer = (
        "With `promote` it becomes the champion; without, nothing changes."
        if evidence["promote"]
        else "It is not promoted."
    )
    return (
        f"**{promotion.compared(evidence)}** Look {evidence['look']} at level {evidence['level']:.2g}.\n\n{lines}\n\n{answer}"
        f"\n\n```json\n{json.dumps(evidence['rule'])}\n```"
    )


def ask(run: str, name: str | None, rule: dict[str, Any], hours: float, new_name: bool = False) -> dict[str, Any]:
    """The same from the command line.

    Raises:
        UserError: nobody answered in time.
    """
    api = environment.prefect_api() or ""
    print(f"a person is asked at {api.removesuffix('/api')} (runs, promote {run}, Resume)", file=sys.stderr, flush=True)
    return promote(run=run, name=name, rule=rule, ask=True, ask_hours=hours, new_name=new_name)
