"""`whetstone plan`: what a run would do, and why."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from flows.cli import selection
from flows.cli.arguments import integer, positive

if TYPE_CHECKING:
    from pipelines.recipe.read import Recipe
    from tasks.planning import Planned
    from tasks.preflight.endpoints import Estimate


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("recipe", help="a YAML file, such as recipes/quickstart.yaml")
    selection.add(parser)
    parser.add_argument(
        "--memory",
        action="store_true",
        help="how much memory each stage that trains or samples needs, and what lowers it",
    )
    parser.add_argument("--limit", type=positive, metavar="GB", help="with --memory: another limit than this machine's")
    parser.add_argument("--mermaid", action="store_true", help="the graph of the stages as a Mermaid flowchart")
    parser.add_argument("--prompt-tokens", type=integer(1), metavar="N", help="with --memory: length of a prompt")
    parser.add_argument(
        "--gpus",
        metavar="NxGPU",
        help="with --memory: another machine than this one, such as 8xH100, or 8x80 for GPUs of 80 GB",
    )
    parser.add_argument(
        "--config",
        metavar="FOLDER",
        help="with --memory: the sizes in this config.json, for a model that is not downloaded",
    )


def command(arguments: argparse.Namespace) -> int:
    """Print the plan. Where there is no project folder, none is left behind: only what runs makes one."""
    from tasks import environment
    from tasks.environment import folder as project_folder

    with project_folder.only_looked_at(environment.home()):
        return _plan(arguments)


def _plan(arguments: argparse.Namespace) -> int:
    from pipelines.base.errors import UserError
    from tasks.preflight import check as preflight
    from tasks.preflight import estimate

    options = [arguments.limit, arguments.prompt_tokens, arguments.gpus, arguments.config]
    if not arguments.memory and any(options):
        raise UserError("--limit, --prompt-tokens, --gpus, --config", "they say how --memory counts", "Add --memory.")
    prepared = selection.prepare(arguments, fetch=False)
    recipe = prepared.recipe
    if arguments.memory:
        from flows.cli import memory

        return memory.show(
            recipe, prepared.chosen, arguments.json, limit=arguments.limit, prompt_tokens=arguments.prompt_tokens,
            gpus=arguments.gpus, config=arguments.config,
        )  # fmt: skip
    planned, will_run = prepared.planned, prepared.will_run
    asked, taken = _asked(recipe, planned), estimate.durations(recipe, will_run)
    if arguments.json:
        preflight.require(recipe, will_run)  # before anything is printed: a program reads one document
        print(
            json.dumps(
                [
                    {
                        "stage": p.stage,
                        "kind": recipe.graph[p.stage].kind,
                        "action": p.action,
                        "why": p.why,
                        "key": p.key,
                        **({"expected": asdict(taken[p.stage])} if p.stage in taken else {}),
                        **({"endpoints": [asdict(each) for each in asked[p.stage]]} if asked.get(p.stage) else {}),
                    }
                    for p in planned
                ],
                indent=1,
            )
        )
        return 0
    from flows.cli import drawing

    if arguments.mermaid:
        print(drawing.mermaid(recipe, {p.stage: p.action for p in planned}))
    else:
        print(drawing.plan(recipe, planned))
        print("".join(f"{stage} takes {time}\n" for stage, time in taken.items()), end="")
        print("".join(f"{each}\n" for listed in asked.values() for each in listed), end="")
        if recipe.gate is not None:
            from tasks.promotion import nightly

            print(nightly.told(recipe))
        if recipe.notify is not None:
            from tasks import notices

            print("".join(f"notify: the environment has no {name}\n" for name in notices.unset(recipe.notify)), end="")
    sys.stdout.flush()
    preflight.require(recipe, will_run)
    return 0


def _asked(recipe: Recipe, planned: list[Planned]) -> dict[str, list[Estimate]]:
    """Stage → what the models behind servers that it will ask take."""
    if not any(node.asks_endpoints for node in recipe.nodes()):
        return {}
    from tasks.preflight import endpoints

    artifacts = {p.stage: p.artifact.path for p in planned if p.artifact is not None}
    will_run = [recipe.node(p.stage) for p in planned if p.action == "run"]
    return {node.name: list(endpoints.estimates(node, artifacts.get(node.labels.get("data", "")))) for node in will_run}
