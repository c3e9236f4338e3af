"""The `whetstone` command line: the table of its commands. Only the module of the command that was asked for is imported."""

from __future__ import annotations

import contextlib

with contextlib.suppress(
    ImportError
):  # `python -m flows.cli.main`, in an environment that was installed before it was there
    from whetstone_launcher import prefer_own_packages

    prefer_own_packages()

import argparse
import os
import sys
from collections.abc import Collection
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from flows.cli import output, stopping
from flows.cli.arguments import Parser


class Command(NamedTuple):
    """A command."""

    module: str
    """Has `add(parser)`, which adds the command's options, and `command(arguments)`, which returns its exit code."""
    help: str
    """One line."""


COMMANDS: dict[str, Command] = {
    "run": Command("flows.cli.run", "run a recipe; unchanged stages are reused"),
    "plan": Command("flows.cli.plan", "say what a run would do, and why"),
    "rerun": Command(
        "flows.cli.rerun", "run the recipe of an earlier run again, whole or in part, from the artifacts in MLflow"
    ),
    "sweep": Command("flows.cli.sweep", "run a recipe with several settings, presets and seeds, and rank them"),
    "runs": Command("flows.cli.runs", "list pipeline runs, newest first"),
    "show": Command("flows.cli.show", "one pipeline run: stages, scores, files"),
    "report": Command(
        "flows.cli.report", "one HTML file: answers of two checkpoints side by side, and rollouts of the training"
    ),
    "inspect": Command("flows.cli.inspect", "write what a run's models answered as logs of inspect_ai, for its viewer"),
    "methods": Command("flows.cli.methods", "the catalogue of methods and presets, or one of them"),
    "environments": Command(
        "flows.cli.environments", "the environments that agents can act in, or one of them with a sample episode"
    ),
    "systems": Command("flows.cli.systems", "published systems: what runs of each here, and what is missing"),
    "claims": Command("flows.cli.claims", "what papers claim: what was run to see it, what is missing, and its runs"),
    "verify": Command("flows.cli.verify", "score the rows {completion, answer, verifier?, info?} of a JSONL file"),
    "compare": Command(
        "flows.cli.compare",
        "compare runs, models or whole experiments: what differs, learning curves, paired tests, pass@k, cost",
    ),
    "overoptimisation": Command(
        "flows.cli.overoptimisation",
        "over-optimisation: gold against proxy over sqrt(KL), with the fitted law of RL, best of n and direct alignment",
    ),
    "tournament": Command(
        "flows.cli.tournament", "let models play a game with each other and with fixed players, and rate them"
    ),
    "judge": Command("flows.cli.judge", "measure the judge of a recipe on completions whose verdicts are known"),
    "rubric": Command(
        "flows.cli.rubric",
        "draft a rubric from preference pairs with the judge of a recipe, and measure it on pairs that it has not seen",
    ),
    "deploy": Command(
        "flows.cli.deploy",
        "create the work pool, the gpu limit, deployments and automations on the Prefect server; safe to repeat",
    ),
    "worker": Command("flows.cli.worker", "run the deployments, with this folder as the working folder"),
    "promote": Command(
        "flows.cli.promote",
        "make a run's model the champion if it is better on one benchmark and not worse on the others",
    ),
    "notify": Command("flows.cli.notify", "send a test message to whom the section notify of a recipe names"),
    "lineage": Command(
        "flows.cli.lineage",
        "from a score, model or run back to the rows it came from, with every file checked on the way",
    ),
    "rows": Command(
        "flows.cli.rows", "one row of the data: where it came from, why it was kept, when it was drawn and rewarded"
    ),
    "export": Command(
        "flows.cli.export",
        "write the model of a run into a folder of its own, with a card: for transformers, vLLM, GGUF",
    ),
    "chat": Command("flows.cli.chat", "talk to the model of a run in the terminal"),
    "serve": Command("flows.cli.serve", "serve the model of a run with vLLM or transformers: OpenAI's protocol"),
    "push": Command(
        "flows.cli.push", "upload the model of a run with its card to the Hugging Face hub; private at first"
    ),
    "recipes": Command("flows.cli.recipes", "the recipes that come with the project"),
    "new": Command("flows.cli.new", "copy a recipe that comes with the project into a new file"),
    "import": Command("flows.cli.import_recipe", "make a recipe of a configuration of TRL, open-r1, verl or axolotl"),
    "schema": Command("flows.cli.schema", "the JSON schema of a recipe, for completion and checks in an editor"),
    "completion": Command("flows.cli.completion", "the script with which bash, zsh or fish complete this command line"),
    "doctor": Command("flows.cli.doctor", "check versions, devices and stores: what would fail, and how to fix it"),
    "sync": Command("flows.cli.sync", "send to MLflow what earlier runs could not send"),
    "clean": Command(
        "flows.cli.clean", "delete stages that no run has used for some time and nothing registered was made from"
    ),
}
"""Name → module and help, in the order of `whetstone --help`."""


class CommandModule(Protocol):
    """What the module of a command defines."""

    def add(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options."""

    def command(self, arguments: argparse.Namespace) -> int:
        """Do it; returns the exit code."""


class Version(argparse.Action):
    """`--version`: the distribution and its version, and where its code is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, nargs=0, help="the version, and where the code is")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from pipelines.base import distribution
        from pipelines.base.project import ROOT

        print(f"{distribution.NAME} {distribution.version()} ({ROOT})")
        parser.exit()


def module_of(name: str) -> CommandModule:
    """Import the module of a command."""
    return cast(CommandModule, import_module(COMMANDS[name].module))


def parser(names: Collection[str] = COMMANDS.keys()) -> argparse.ArgumentParser:
    """The parser of the command line.

    Args:
        names: commands whose options are added, which imports their modules; the others are known by name only.
    """
    top = Parser(
        prog="whetstone",
        description="Curate, fine-tune, train with verifiable rewards, evaluate: tracked and resumable.",
    )
    top.add_argument("--version", action=Version)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.help, description=command.help)
        if name in names:
            module_of(name).add(sub)
    return top


def main(argv: list[str] | None = None) -> None:
    """Run a command: exit code 0 done, 1 failed, 2 the user must change something, 128 + signal stopped."""
    if "_ARGCOMPLETE" in os.environ:
        from flows.cli import completers

        line = os.environ.get("COMP_LINE", "").split()
        completers.answer(parser(COMMANDS.keys() & set(line)))
    stopping.install()
    if argv is None:
        stopping.skip_teardown()
    sys.stdout, sys.stderr = output.PipeSafeStream(sys.stdout), output.PipeSafeStream(sys.stderr)  # type: ignore[assignment]
    words = sys.argv[1:] if argv is None else argv
    as_json = output.asks_for_json(words)
    try:
        arguments = parser(COMMANDS.keys() & set(words)).parse_args(argv)
        from pipelines.base.errors import UserError

        try:
            code = module_of(arguments.command).command(arguments)
        except UserError as error:
            code = output.report(error, as_json)
        except Exception as error:
            from tasks.environment import explain

            explained = explain(error)
            if explained is not None or as_json:
                code = output.report(explained or error, as_json)
            if explained is None:
                raise
        sys.stdout.flush()
    except KeyboardInterrupt as stop:
        stopping.leave(stopping.signal_of(stop))
    stopping.exit_code = code
    sys.exit(code)


if __name__ == "__main__":
    main()
