"""Every stage as a flow of its own: deployable, schedulable, rerun alone."""

from __future__ import annotations

from typing import Any

from tasks import environment

environment.prepare()

from prefect import flow  # noqa: E402

from flows import page  # noqa: E402
from flows.parameters import explained  # noqa: E402
from flows.post_training import post_training  # noqa: E402


@flow(name="curate", flow_run_name=lambda: page.run_name("curate"), persist_result=False)
@explained
def curate(recipe: str, overrides: list[str] | None = None, fresh: bool = False) -> dict[str, Any]:
    """Curate the recipe's data."""
    return post_training.fn(recipe, overrides, only=["curate"], fresh=fresh)


@flow(name="sft", flow_run_name=lambda: page.run_name("sft"), persist_result=False)
@explained
def sft(recipe: str, overrides: list[str] | None = None, fresh: bool = False) -> dict[str, Any]:
    """Fine-tune on data that is already curated."""
    return post_training.fn(recipe, overrides, only=["sft"], fresh=fresh)


@flow(name="rlvr", flow_run_name=lambda: page.run_name("rlvr"), persist_result=False)
@explained
def rlvr(recipe: str, overrides: list[str] | None = None, fresh: bool = False) -> dict[str, Any]:
    """Train with verifiable rewards from a checkpoint that is already fine-tuned."""
    return post_training.fn(recipe, overrides, only=["rlvr"], fresh=fresh)


@flow(name="evaluate", flow_run_name=lambda: page.run_name("evaluate"), persist_result=False)
@explained
def evaluate(recipe: str, overrides: list[str] | None = None, fresh: bool = False) -> dict[str, Any]:
    """Evaluate checkpoints that are already trained."""
    return post_training.fn(recipe, overrides, only=["evaluate"], fresh=fresh)
