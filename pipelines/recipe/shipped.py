"""The recipes that come with the project, in a source tree and in an installed package alike."""

from __future__ import annotations

import re
from pathlib import Path

from pipelines.base.distribution import NAME, version
from pipelines.base.errors import UserError, did_you_mean
from pipelines.base.project import resource

FOLDER = resource("recipes")
SCHEMA = resource("docs") / "recipe.schema.json"
"""What `whetstone schema` prints, as it comes with the project."""
EDITORS = "# yaml-language-server: $schema="
"""How a YAML file says to editors which schema it has."""


def names() -> list[str]:
    """Every recipe, sorted; presets are not among them."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find(path: str | Path) -> Path:
    """The file as given; where there is none, `recipes/NAME.yaml` is the recipe of that name that comes with the project."""
    path = Path(path)
    shipped = FOLDER / path.name
    return shipped if path.parent == Path("recipes") and not path.exists() and shipped.is_file() else path


def header(name: str) -> str:
    """What a recipe says of itself, as one paragraph; without the commands to run it.

    >>> header("gsm8k")
    'GSM8K with a pretrained model, for a machine with a GPU and the Hugging Face hub.'
    """
    comment = re.match(r"(?:#.*\n)*", (FOLDER / f"{name}.yaml").read_text())
    lines = [line.removeprefix("#") for line in comment[0].splitlines()] if comment else []
    return " ".join(line.strip() for line in lines if not line.startswith(("  ", EDITORS.removeprefix("#")))).strip()


def copy(name: str, to: Path) -> None:
    """Write a recipe into a new file, with a line for editors and one that says where it is from.

    Raises:
        UserError: there is no recipe of that name, or the file cannot be made.
    """
    if name not in names():
        raise UserError(f"--from {name}", "there is no such recipe", did_you_mean(name, names()))
    text = re.sub(rf"^{re.escape(EDITORS)}.*\n", "", (FOLDER / f"{name}.yaml").read_text())
    text = text.replace(f"recipes/{name}.yaml", str(to))
    first = f"# A copy of the recipe {name} of {NAME} {version()}; change what you like."
    create(to, f"{EDITORS}{SCHEMA.as_uri()}\n{first}\n{text}")


def create(to: Path, text: str) -> None:
    """Write the text of a recipe into a new file.

    Raises:
        UserError: it is no YAML file by its name, is there already, or cannot be made.
    """
    if to.suffix not in (".yaml", ".yml"):
        raise UserError(to, "a recipe is a YAML file", f"Call it {to.name}.yaml.")
    try:
        with open(to, "x", encoding="utf-8") as handle:
            handle.write(text)
    except FileExistsError:
        raise UserError(to, "this file is there already", "Name another, or delete it.") from None
    except OSError as error:
        raise UserError(to, error.strerror, "Name a file in a folder that exists.") from None
