"""The table of commands: each has its module, and only the one that was asked for is imported."""

from __future__ import annotations

import argparse

import pytest
import toys

from flows.cli import main as cli


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_command_has_options_and_a_body_of_its_own(name):
    module = cli.module_of(name)
    own = f"flows.cli.{name}" if name != "import" else "flows.cli.import_recipe"  # no module can be called `import`
    assert module.__name__ == own == module.add.__module__ == module.command.__module__
    sub = argparse.ArgumentParser(description="as main gives it")
    module.add(sub)
    assert "\n" not in cli.COMMANDS[name].help and "None" not in sub.description


def test_help_imports_no_command():
    modules = toys.loaded("from flows.cli import main\ntry: main.main(['--help'])\nexcept SystemExit: pass")
    assert not modules & ({command.module for command in cli.COMMANDS.values()} | toys.HEAVY | {"pydantic", "yaml"})


def test_help_of_a_command_imports_that_command_alone():
    modules = toys.loaded("from flows.cli import main\ntry: main.main(['runs', '--help'])\nexcept SystemExit: pass")
    assert modules & {command.module for command in cli.COMMANDS.values()} == {"flows.cli.runs"}


def test_modules_of_commands_are_light_at_import():
    assert not toys.loaded("from flows.cli import main\nmain.parser()") & toys.HEAVY


def test_the_parser_of_one_command_parses_it_as_the_parser_of_all_does():
    words = ["plan", "x.yaml", "--set", "seed=run", "--only", "sft", "--json"]
    assert cli.parser(["plan"]).parse_args(words) == cli.parser().parse_args(words)
