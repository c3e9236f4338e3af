"""A recipe in the making: its fields with where each is from, and what of the configuration has no counterpart."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from pipelines.base.distribution import NAME, version
from pipelines.base.errors import did_you_mean
from pipelines.base.project import page
from pipelines.recipe.shipped import EDITORS, SCHEMA
from tasks.importing.table import COPIES, Config

WIDTH = 140
"""Of a line of the recipe; a comment that does not fit is left out."""


@dataclass(frozen=True)
class Mapped:
    """A field of theirs, and the fields of ours that it went into."""

    field: str
    value: Any
    to: str
    """Empty where the value changes nothing, here as there."""
    note: str = ""


@dataclass(frozen=True)
class LeftOut:
    """A field of theirs without a counterpart."""

    field: str
    value: Any
    why: str
    instead: str


@dataclass(frozen=True)
class Assumed:
    """A field of ours whose value the configuration does not say."""

    field: str
    value: Any
    why: str
    instead: str


class Draft:
    """What becomes the recipe.

    Args:
        config: what it is made of.
        section: the stage that trains: `rlvr`, `sft` or `preference`.
    """

    def __init__(self, config: Config, section: str) -> None:
        self.config, self.section = config, section
        self.recipe: dict[str, Any] = {}
        self.origins: dict[str, list[str]] = {}
        self.mapped: list[Mapped] = []
        self.left_out: list[LeftOut] = []
        self.assumed: list[Assumed] = []

    def path(self, to: str) -> str:
        """Where a field of the table is in the recipe."""
        if self.section != "preference":
            return f"{self.section}{to}" if to.startswith(".") else to
        if to.startswith("."):
            return f"stages.preference{to}"
        return f"stages.data{to.removeprefix('curate')}" if to.startswith("curate.") else to

    def put(self, to: str, value: Any, *keys: str, note: str = "") -> None:
        """Set a field of the recipe.

        Args:
            to: as in the table.
            value: of ours.
            keys: the fields of theirs that it is made of.
            note: what differs, beside the table's note.
        """
        path = self.path(to)
        *parents, last = path.split(".")
        holder = self.recipe
        for name in parents:
            holder = holder.setdefault(name, {})
        holder[last] = value
        present = [key for key in keys if self.config.has(key)]
        names = [self.config.name(key) for key in present]
        known = [key for key in keys if key in self.config.fields]
        if not names and known:
            names = [f"{self.config.trainer}'s default of {self.config.name(known[0])}"]
        self.origins[path] = names
        for key in present:
            self.map(key, path, note)

    def map(self, key: str, path: str = "", note: str = "") -> None:
        """Say that a field of theirs is in the recipe; without a path, that its value changes nothing."""
        if not self.config.has(key):
            return
        name, table = self.config.name(key), self.config.fields[key]
        earlier = next((each for each in self.mapped if each.field == name), None)
        if earlier is not None:
            self.mapped.remove(earlier)
            path = ", ".join(part for part in dict.fromkeys((earlier.to, path)) if part)
        self.mapped.append(Mapped(name, self.config.values[name], path, note or (table.note if table.to else "")))

    def leave(self, key: str, why: str, instead: str) -> None:
        """Say that a field of theirs has no counterpart, at least not with its value."""
        if self.config.has(key):
            name = self.config.name(key)
            self.left_out.append(LeftOut(name, self.config.values[name], why, instead))
        elif key in self.config.fields:
            name = self.config.name(key)
            self.left_out.append(LeftOut(name, self.config.fields[key].default, f"their default: {why}", instead))

    def assume(self, to: str, value: Any, why: str, instead: str, *keys: str) -> None:
        """Set a field that the configuration does not determine."""
        self.put(to, value, *keys)
        self.assumed.append(Assumed(self.path(to), value, why, instead))

    def copy(self, keys: Iterable[str] | None = None) -> None:
        """Set the fields that are the same but for their names and units."""
        for key, field in self.config.fields.items():
            if not field.copy or (keys is not None and key not in keys):
                continue
            value = self.config.take(key)
            if value is not None:
                self.put(field.to, COPIES[field.copy](value), key)

    def finish(self) -> None:
        """Account for every field of the configuration that nothing has been said of yet."""
        told = {each.field for each in self.mapped} | {each.field for each in self.left_out}
        known = [name for field in self.config.fields.values() for name in field.names]
        for name, value in self.config.values.items():
            if name in told:
                continue
            key = self.config.key_of.get(name)
            if key is None:
                hint = did_you_mean(name, known, lists=False)
                self.left_out.append(
                    LeftOut(
                        name,
                        value,
                        f"not a field of {self.config.trainer} that the import knows",
                        hint or "Look it up there.",
                    )
                )
                continue
            field = self.config.fields[key]
            if field.to and value is not None and value != field.default:
                self.left_out.append(
                    LeftOut(
                        name,
                        value,
                        f"nothing reads it beside the other fields; alone it is {field.to}",
                        "Nothing to do.",
                    )
                )
            elif field.to or field.changes_nothing(value):
                self.mapped.append(Mapped(name, value, "", "changes nothing at this value"))
            else:
                self.left_out.append(LeftOut(name, value, field.note, field.instead))

    def record(self) -> dict[str, Any]:
        """What has been read, for JSON."""
        return {
            "trainer": self.config.trainer,
            "stage": self.section,
            "mapped": [asdict(each) for each in self.mapped],
            "assumed": [asdict(each) for each in self.assumed],
            "left_out": [asdict(each) for each in self.left_out],
        }

    def lines(self) -> list[str]:
        """What a person must know: assumptions, and fields without a counterpart; those with one reason together."""
        lines = []
        if self.assumed:
            lines.append("The configuration does not say:")
            lines += [
                f"- {each.field} (here {_shown(each.value)}): {each.why}. {each.instead}" for each in self.assumed
            ]
        if self.left_out:
            lines.append("No counterpart:")
            groups: dict[tuple[str, str], list[str]] = {}
            for each in self.left_out:
                groups.setdefault((each.why, each.instead), []).append(f"{each.field}: {_shown(each.value)}")
            lines += [f"- {'; '.join(named)}: {why}. {instead}".strip() for (why, instead), named in groups.items()]
        return [re.sub(r"\bdocs/([\w-]+)\.md", lambda match: page(match[1]), line) for line in lines]

    def text(self, source: str) -> str:
        """The recipe as YAML, with the list at its top and where each field is from.

        Args:
            source: the file that it is made of.
        """
        head = [
            f"{EDITORS}{SCHEMA.as_uri()}",
            f"# From the {self.config.trainer} configuration {source}, read by {NAME} {version()}.",
        ]
        for line in self.lines():
            head += textwrap.wrap(
                line,
                WIDTH,
                initial_indent="# ",
                subsequent_indent="#   ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        return "\n".join([*head, *_render(self.recipe, self.origins, "")]) + "\n"


def _shown(value: Any) -> str:
    text = re.sub(r"\s+", " ", _flow(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes texts of several lines in one."""


def _line(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if "\n" in text else None)


_Dumper.add_representer(str, _line)


def _flow(value: Any) -> str:
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=10**9, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _render(section: dict[str, Any], origins: dict[str, list[str]], above: str) -> list[str]:
    lines, indent = [], "  " * (above.count(".") + 1 if above else 0)
    for name, value in section.items():
        path = f"{above}.{name}" if above else name
        if isinstance(value, dict) and value and path not in origins:
            lines += [*([""] if not above else []), f"{indent}{name}:", *_render(value, origins, path)]
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            lines += [
                f"{indent}{name}:{_comment(origins.get(path))}",
                *(f"{indent}  - {_flow(each)}" for each in value),
            ]
        else:
            line = f"{indent}{name}: {_flow(value)}"
            full = line + _comment(origins.get(path))
            lines.append(full if len(full) <= WIDTH else line)
    return lines


def _comment(names: list[str] | None) -> str:
    return f"  # {', '.join(names)}" if names else ""
