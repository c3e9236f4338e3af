"""What a monitor reads is measured, and what it is to do can be done. Names no rule."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.base.user_functions import require_there
from pipelines.contract.metrics import FIXED_DATA, METRICS, metric
from pipelines.recipe.slots import Watched, bind_monitors


def check_monitors(section: str, settings: Any, columns: Collection[str] = ()) -> None:
    """Hold every entry of `monitors` against what the stage measures.

    Args:
        section: the kind of stage, such as "rlvr".
        settings: its settings, with `monitors`, `rollback` and `steps`.
        columns: those that methods of the recipe read.

    Raises:
        RecipeError: an unknown metric, verifier or function, a rule that needs what the stage has not, an alarm that cannot come.
    """
    watched = bind_monitors(section, settings.monitors)
    available = {*columns, *(column for each in watched for column in each.method.needs)}
    of_rules = {name for each in watched for name in each.rule.makes}
    for number, each in enumerate(watched):
        field = f"{section}.monitors.{number}"
        if section != "rlvr" and (each.rule.measures or each.method.needs):
            raise RecipeError(
                field, f"{each.method.name} looks at rollouts, which {section} has none of", "Use it in rlvr.monitors."
            )
        for earlier, other in enumerate(watched[:number]):
            if set(other.rule.makes) & set(each.rule.makes):
                twice = sorted(set(other.rule.makes) & set(each.rule.makes))[0]
                raise RecipeError(
                    field, f"{twice} is measured by {section}.monitors.{earlier} already; leave one of them out."
                )
        for name in each.rule.reads:
            if name not in of_rules:
                _check_metric(section, settings, field, each, name, available)
        _check_judge(field, each)
        steps = settings.steps
        if steps is not None and each.options.after >= steps:
            raise RecipeError(
                f"{field}.after",
                f"{each.options.after} steps of {steps} are left out, so it never says anything",
                "Lower it.",
            )
        if each.options.action == "rollback" and getattr(settings, "staleness", None):
            raise RecipeError(
                f"{field}.action",
                "rollback cannot take back what staleness has sampled ahead",
                "Use finish or stop, or staleness: 0.",
            )
        if section != "rlvr" and each.options.action == "rollback" and settings.rollback.learning_rate == 1:
            raise RecipeError(
                f"{field}.action",
                f"rollback would repeat the same steps, because {section} samples nothing",
                f"Set {section}.rollback.learning_rate below 1.",
            )


def _check_metric(
    section: str, settings: Any, field: str, each: Watched, name: str, available: Collection[str]
) -> None:
    line = metric(section, name)
    if line is None:
        setting = ".metric" if "metric" in each.method.settings else ""
        raise RecipeError(
            f"{field}{setting}", f"{section} measures no {name}", did_you_mean(name, METRICS.get(section, FIXED_DATA))
        )
    if (line.when is not None and not line.when(settings)) or (line.column and line.column not in available):
        raise RecipeError(field, f"{each.method.name} reads {name}, which nothing here measures", line.hint)


def _check_judge(field: str, each: Watched) -> None:
    """A hidden verifier is one of ours; a hidden function's file or module can be found."""
    from pipelines import verifiers

    verifier, function = each.method.settings.get("verifier"), each.method.settings.get("function")
    if verifier is not None and verifier not in verifiers.known():
        raise RecipeError(
            f"{field}.verifier", f"unknown verifier {verifier!r}", did_you_mean(verifier, verifiers.known())
        )
    if function is not None:
        require_there(str(function), f"{field}.function")
