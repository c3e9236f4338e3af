"""The `whetstone` command line. Imports are lazy, so that help answers at once."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from flows.cli import compare, judge, lineage, machine, overoptimisation, promote, rubric, run, sweep


def parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    top = machine.Parser(
        prog="whetstone",
        description="Curate, fine-tune, train with verifiable rewards, evaluate: tracked and resumable.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _that_run(commands)
    _that_show(commands)
    _that_operate(commands)
    return top


def _add(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    return commands.add_parser(name, help=text, description=text)  # type: ignore[no-any-return]


def _that_run(commands: Any) -> None:
    """Commands that run recipes."""
    for name, text in (
        ("run", "run a recipe; unchanged stages are reused"),
        ("plan", "say what a run would do, and why"),
        ("rerun", "run the recipe of an earlier run again, whole or in part, from the artifacts in MLflow"),
    ):
        sub = _add(commands, name, text)
        if name == "rerun":
            sub.add_argument("run", help="the id of the run, or its first characters")
        else:
            sub.add_argument("recipe", help="a YAML file, such as recipes/quickstart.yaml")
        sub.add_argument(
            "--set", action="append", default=[], metavar="FIELD=VALUE", help="change a field: rlvr.steps=3"
        )
        sub.add_argument("--from", dest="start", metavar="STAGE", help="this stage and all that depend on it")
        sub.add_argument("--until", metavar="STAGE", help="this stage and all that it depends on")
        sub.add_argument("--only", action="append", default=[], metavar="STAGE", help="this stage only (repeatable)")
        sub.add_argument("--fresh", action="store_true", help="run the chosen stages even where nothing changed")
        sub.add_argument("--json", action="store_true", help="for machines: the result, or the error, as JSON")
        if name == "plan":
            sub.add_argument(
                "--memory",
                action="store_true",
                help="how much memory each stage that trains or samples needs, and what lowers it",
            )
            sub.add_argument(
                "--limit", type=machine.positive, metavar="GB", help="with --memory: another limit than this machine's"
            )
            sub.add_argument("--mermaid", action="store_true", help="the graph of the stages as a Mermaid flowchart")
            sub.add_argument(
                "--prompt-tokens", type=machine.integer(1), metavar="N", help="with --memory: length of a prompt"
            )
        if name != "plan":
            sub.add_argument("--summary", metavar="FILE", help="write the run's summary as JSON")
    sweep.add(commands)


def _that_show(commands: Any) -> None:
    """Commands that say what there is."""
    runs = _add(commands, "runs", "list pipeline runs, newest first")
    runs.add_argument("--experiment", help="only this MLflow experiment")
    runs.add_argument("--limit", type=machine.integer(1), default=20, metavar="N", help="the N newest (20)")
    runs.add_argument("--remote", action="store_true", help="ask MLflow itself: runs of other machines too (slower)")
    runs.add_argument("--json", action="store_true")
    show = _add(commands, "show", "one pipeline run: stages, scores, files")
    show.add_argument("run", help="the id of the run, or its first characters")
    show.add_argument("--json", action="store_true")
    report = _add(
        commands,
        "report",
        "one HTML file: answers of two checkpoints side by side, and rollouts of the training",
    )
    report.add_argument("run", help="the id of the run, or its first characters")
    report.add_argument("--out", metavar="FILE", help="where to write it; default: report-RUN.html")
    methods = _add(commands, "methods", "the catalogue of methods and presets, or one of them")
    methods.add_argument("name", nargs="?")
    methods.add_argument("--slot", help="only this slot")
    methods.add_argument("--json", action="store_true")
    systems = _add(commands, "systems", "published systems: what runs of each here, and what is missing")
    systems.add_argument("name", nargs="?")
    systems.add_argument("--status", choices=["works", "in part", "not yet", "outside"], help="only these")
    systems.add_argument("--json", action="store_true")
    verify = _add(commands, "verify", "score the rows {completion, answer, verifier?, info?} of a JSONL file")
    verify.add_argument("file", metavar="FILE", help="JSONL, also .gz; - is standard input")
    verify.add_argument("--verifier", metavar="NAME", help="for rows that name none")
    verify.add_argument("--jobs", type=int, metavar="N", help="worker processes; default: one per processor, at most 8")
    verify.add_argument("--sandbox", choices=["auto", "limits_only"], default="auto", help="how programs are confined")
    verify.add_argument("--out", metavar="FILE", help="verdicts as JSONL; default: standard output")
    verify.add_argument(
        "--json", action="store_true", help="for machines: the summary, or the error, as JSON (with --out)"
    )
    compare.add(commands)
    overoptimisation.add(commands)
    judge.add(commands)
    rubric.add(commands)


def _that_operate(commands: Any) -> None:
    """Commands for servers, machines and stores."""
    deploy = _add(
        commands,
        "deploy",
        "create the work pool, the gpu limit, deployments and automations on the Prefect server; safe to repeat",
    )
    deploy.add_argument("--file", type=Path, help="deployments; the project's prefect.yaml unless given")
    deploy.add_argument(
        "--gpus",
        type=machine.integer(1),
        default=1,
        metavar="N",
        help="stages that may use a GPU at once, over all machines",
    )
    deploy.add_argument(
        "--unresponsive-after", type=int, metavar="SECONDS", help="without heartbeats a flow run is Crashed (300)"
    )
    worker = _add(commands, "worker", "run the deployments, in this project folder")
    worker.add_argument("--queue", action="append", default=[], choices=["cpu", "gpu"], help="only this kind of stage")
    promote.add(commands)
    lineage.add(commands)
    _add(commands, "doctor", "check versions, devices and stores: what would fail, and how to fix it")
    _add(commands, "sync", "send to MLflow what earlier runs could not send")


def main(argv: list[str] | None = None) -> None:
    """Run a command: exit code 0 done, 1 failed, 2 the user must change something, 128 + signal stopped."""
    from flows.cli import stopping

    stopping.install()
    if argv is None:
        stopping.skip_teardown()
    sys.stdout, sys.stderr = machine.Patient(sys.stdout), machine.Patient(sys.stderr)  # type: ignore[assignment]
    as_json = machine.asks_for_json(sys.argv[1:] if argv is None else argv)
    try:
        arguments = parser().parse_args(argv)
        from pipelines.base.errors import UserError

        try:
            code = globals()[f"{arguments.command}_command"](arguments)
        except UserError as error:
            code = machine.report(error, as_json)
        except Exception as error:
            explained = _explain(error)
            if explained is not None or as_json:
                code = machine.report(explained or error, as_json)
            if explained is None:
                raise
        sys.stdout.flush()
    except KeyboardInterrupt as stop:
        stopping.leave(getattr(stop, "signum", signal.SIGINT))
    stopping.exit_code = code
    sys.exit(code)


def _explain(error: Exception) -> Exception | None:
    """What a full disk, a store that cannot be read or a limit on memory asks of the user; None for what nobody foresaw."""
    from tasks import environment, machine
    from tasks.environment import folder as store

    if machine.short_of_memory(error):
        from pipelines.base.errors import UserError

        return UserError(
            f"there is not enough memory for this command ({str(error)[:200] or type(error).__name__}). Raise the limit (ulimit -v, or the "
            "container's), or free some."
        )
    return store.explain(error, environment.home()) if isinstance(error, OSError) else None


def plan_command(arguments: argparse.Namespace) -> int:
    """`whetstone plan`. Where there is no project folder, none is left behind: only what runs makes one."""
    from tasks import environment

    new = not environment.home().exists()
    try:
        return _plan(arguments)
    finally:
        checked = environment.home() / ".checked"
        if new and checked.is_dir() and [*environment.home().iterdir()] == [checked]:
            shutil.rmtree(checked, ignore_errors=True)
            with contextlib.suppress(OSError):
                environment.home().rmdir()


def _plan(arguments: argparse.Namespace) -> int:
    from pipelines.base.errors import UserError
    from pipelines.recipe.read import read_recipe
    from tasks.pipeline import Selection
    from tasks.preflight import check as preflight
    from tasks.stages import plan

    if not arguments.memory and (arguments.limit or arguments.prompt_tokens):
        raise UserError("--limit, --prompt-tokens: they say how --memory counts. Add --memory.")
    recipe = read_recipe(arguments.recipe, arguments.set)
    chosen = Selection(arguments.start, arguments.until, tuple(arguments.only)).of(recipe)
    if arguments.memory:
        from flows.cli import memory

        return memory.show(recipe, chosen, arguments.json, arguments.limit, arguments.prompt_tokens)
    planned = [p for p in plan(recipe, fresh=arguments.fresh, only=chosen) if p.stage in chosen]
    will_run = [p.stage for p in planned if p.action == "run"]
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
    sys.stdout.flush()
    preflight.require(recipe, will_run)
    return 0


def run_command(arguments: argparse.Namespace) -> int:
    """`whetstone run`."""
    return run.command(arguments)


def rerun_command(arguments: argparse.Namespace) -> int:
    """`whetstone rerun`."""
    from flows.cli import rerun
    from tasks import environment
    from tasks.tracking import lookup

    environment.prepare()
    environment.check_reachable()
    arguments.recipe = rerun.recipe_of(lookup.find_run(arguments.run)["run_id"], arguments.set)
    return run.command(arguments)


def judge_command(arguments: argparse.Namespace) -> int:
    """`whetstone judge`."""
    return judge.command(arguments)


def rubric_command(arguments: argparse.Namespace) -> int:
    """`whetstone rubric`."""
    return rubric.command(arguments)


def sweep_command(arguments: argparse.Namespace) -> int:
    """`whetstone sweep`."""
    return sweep.command(arguments)


def runs_command(arguments: argparse.Namespace) -> int:
    """`whetstone runs`."""
    from tasks import environment
    from tasks.store import index
    from tasks.tracking import lookup

    if arguments.remote:
        listed = lookup.mlflow_runs(arguments.experiment, arguments.limit)
    else:
        listed = index.runs(arguments.experiment)[: arguments.limit]
    if arguments.json:
        print(json.dumps([{k: v for k, v in entry.items() if k != "summary"} for entry in listed], indent=1))
        return 0
    if not listed:
        place = (
            "MLflow"
            if arguments.remote
            else f"{environment.home()} (WHETSTONE_HOME, else .whetstone of the working folder)"
        )
        of, hint = (
            f" of experiment {arguments.experiment!r}" if arguments.experiment else "",
            "whetstone run recipes/quickstart.yaml",
        )
        print(f"no pipeline run{of} in {place}" + ("" if of else f"; to make one: {hint}"))
    for entry in listed:
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry["started"]))
        took = f"{entry['seconds']:.0f} s" if entry["seconds"] else "–"
        print(f"{entry['run_id']}  {started}  {entry['status']:<9} {took:>8}  {entry['name']}")
    return 0


def show_command(arguments: argparse.Namespace) -> int:
    """`whetstone show`."""
    from flows import table
    from tasks.tracking import links, lookup

    body = lookup.find_run(arguments.run)
    if arguments.json:
        print(json.dumps(body, indent=1))
        return 0
    print(f"{body['name']}  {body['run_id']}  {body['status']}")
    summary = body.get("summary")
    if summary:
        width = max(9, *map(len, summary["stages"])) if summary["stages"] else 9
        for stage, about in summary["stages"].items():
            print(
                f"  {stage:<{width}} {about['status']:<7} {about['seconds']:>8.1f} s  {about['artifact']}  ({about['why']})"
            )
            for line in table.outcomes(about):
                print(f"    {line}")
        table.show(summary)
    else:
        for stage in body.get("stages", []):
            print(f"  {stage['name']:<30} {stage['status']}")
    if body.get("experiment_id"):
        print(links.run(body["experiment_id"], body["run_id"]))
    return 0


def compare_command(arguments: argparse.Namespace) -> int:
    """`whetstone compare`."""
    return compare.command(arguments)


def overoptimisation_command(arguments: argparse.Namespace) -> int:
    """`whetstone overoptimisation`."""
    return overoptimisation.command(arguments)


def report_command(arguments: argparse.Namespace) -> int:
    """`whetstone report`."""
    from flows.cli import report

    return report.command(arguments)


def promote_command(arguments: argparse.Namespace) -> int:
    """`whetstone promote`."""
    return promote.command(arguments)


def lineage_command(arguments: argparse.Namespace) -> int:
    """`whetstone lineage`."""
    return lineage.command(arguments)


def rows_command(arguments: argparse.Namespace) -> int:
    """`whetstone rows`."""
    return lineage.rows_command(arguments)


def methods_command(arguments: argparse.Namespace) -> int:
    """`whetstone methods`."""
    from flows.cli import methods as catalogue

    return catalogue.show(arguments.name, arguments.slot, arguments.json)


def systems_command(arguments: argparse.Namespace) -> int:
    """`whetstone systems`."""
    from flows.cli import systems

    return systems.show(arguments.name, arguments.status, arguments.json)


def verify_command(arguments: argparse.Namespace) -> int:
    """`whetstone verify`."""
    from flows.cli import verify
    from pipelines.base.errors import UserError

    if arguments.json and arguments.out is None:
        raise UserError("--json: the verdicts fill standard output; name a file for them with --out.")
    from pipelines.sandbox import pool

    pool.configure(limits_only=arguments.sandbox == "limits_only")
    summary = verify.score_file(arguments.file, arguments.out, arguments.verifier, arguments.jobs)
    print(summary, file=sys.stderr)
    if arguments.json:
        print(json.dumps(summary.as_json(), indent=1))
    return machine.CHANGE if summary.statuses[verify.BAD_ROW] else machine.DONE


def doctor_command(arguments: argparse.Namespace) -> int:
    """`whetstone doctor`."""
    from flows.cli import doctor

    return doctor.show()


def deploy_command(arguments: argparse.Namespace) -> int:
    """`whetstone deploy`."""
    from flows import deploy

    deploy.deploy(arguments.file, arguments.gpus, arguments.unresponsive_after)
    for name in deploy.names(arguments.file):
        print(f"deployed {name}")
    print("next, on every machine that should work: whetstone worker")
    return 0


def worker_command(arguments: argparse.Namespace) -> int:
    """`whetstone worker`."""
    from flows import deploy

    return deploy.worker(arguments.queue)


def sync_command(arguments: argparse.Namespace) -> int:
    """`whetstone sync`."""
    from tasks import environment

    environment.prepare()
    environment.check_reachable()
    from tasks.tracking import leases as claims
    from tasks.tracking import outbox

    flushed = outbox.flush_all(None)
    closed = claims.close_abandoned() + claims.close_unresponsive()
    if closed:
        print(f"closed {closed} run{'s' if closed > 1 else ''} whose process is gone")
    for line in flushed.refused:
        print(f"refused for good, and set aside in {outbox.folder() / 'refused'}: {line}")
    if flushed.pending:
        print(f"{flushed.pending} uploads are still pending; try again later")
        return 1
    print("the upload outbox is empty" + (f": {flushed.sent} sent" if flushed.sent else ""))
    return 0


if __name__ == "__main__":
    main()
