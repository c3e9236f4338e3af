"""`whetstone environments`: what agents can act in, as a table; or one environment with its settings and a sample episode."""

from __future__ import annotations

import argparse
import inspect
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flows.cli.arguments import integer
from flows.cli.tables import aligned

MAX_TURNS = 10
"""Of an episode where a recipe says nothing (`rollout: multi_turn`, `evaluate.tasks.N.environment`)."""
WHO = {
    "given": "your messages",
    "expert": "its expert",
    "demonstration": "its expert (a demonstration: rollouts get other problems)",
    "answer": "one who says the problem's answer",
    "nobody": "nobody: it has no expert, so say what the policy says with --actions",
}
SHOWN = 8
"""Characters of an image's digest that name it, as in `[image 64x64 a1b2c3d4]`."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("name", nargs="?", help="of an environment, or FILE.py or MODULE:NAME of your own")
    parser.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="SETTING=VALUE", help="a setting of its `config`"
    )
    parser.add_argument(
        "--seed", type=integer(0, 2**62), default=0, help="of the sample episode's problem and lots (0)"
    )
    parser.add_argument("--max-turns", type=integer(1), default=MAX_TURNS, help=f"of the sample episode ({MAX_TURNS})")
    parser.add_argument("--actions", nargs="+", metavar="MESSAGE", help="play these, in place of the expert's messages")
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="write the images of the episode there, as PNG")
    parser.add_argument("--json", action="store_true")


def command(arguments: argparse.Namespace) -> int:
    """Print the table, or the page of one environment."""
    if arguments.name is None:
        _list(arguments.json)
        return 0
    about, config = configured(arguments.name, arguments.settings)
    name = about["name"]
    if not arguments.json:
        print(page(about))
    sample = None if config is None else _sample(name, config, arguments)
    if arguments.json:
        print(json.dumps({**about, "sample": sample}, indent=1, ensure_ascii=False))
    elif sample is None:
        print(f"A sample episode needs settings without a default: --set {'=... --set '.join(about['required'])}=...")
    else:
        print("\n".join(transcript(sample)))
    return 0


def configured(name: str, changes: list[str]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """An environment as `entry` has it, with its settings; and the settings that the command line gives, as `_config` reads them.

    Args:
        name: of one of ours, or FILE.py or MODULE:NAME of one's own.
        changes: SETTING=VALUE.
    """
    from pipelines.base import plugins

    if plugins.is_reference(name):
        plugins.activate([f"environments={name}"])
    about = {**entry(name), **_settings(name)}
    return about, _config(about, changes)


def entry(name: str) -> dict[str, Any]:
    """What the table says of an environment, as plain values.

    Raises:
        RecipeError: there is none of that name.
    """
    from pipelines import environments
    from pipelines.base import distribution
    from pipelines.environments import _answered, tools

    module = environments.module(name)
    extra = environments.extra_of(name)
    return {
        "name": name,
        "about": (inspect.getdoc(module) or "").partition("\n")[0],
        "max_turns": 1 if issubclass(module.World, _answered.World) else MAX_TURNS,
        "players": getattr(module, "PLAYERS", 2 if environments.has_players(name) else None),
        "tools": issubclass(module.World, tools.World) or getattr(module, "TOOLS", False),
        "extra": extra,
        "installed": extra is None or distribution.is_installed(extra),
    }


def _list(as_json: bool) -> None:
    from pipelines import environments

    entries = [entry(name) for name in environments.known()]
    if as_json:
        print(json.dumps(entries, indent=1, ensure_ascii=False))
        return
    rows = [("name", "turns", "players", "tools", "needs", "what it is")]
    for each in entries:
        needs = "" if each["extra"] is None else each["extra"] + ("" if each["installed"] else " (missing)")
        tools = "yes" if each["tools"] else ""
        rows.append((each["name"], str(each["max_turns"]), str(each["players"] or ""), tools, needs, each["about"]))
    print("\n".join(aligned(rows)))
    print(f"\n{len(entries)} environments. Turns are those that an episode gets where a recipe sets no max_turns.")
    print("`whetstone environments NAME` shows the settings of one and plays a sample episode.")


def _settings(name: str) -> dict[str, Any]:
    from flows.cli import setting_types
    from pipelines import environments
    from pipelines.contract.catalogue import settings_model

    function = environments.module(name).problems
    settings = setting_types.table(settings_model(function))
    return {
        "settings": settings,
        "required": [field for field, about in settings.items() if about["required"]],
        "doc": inspect.getdoc(function) or "",
    }


def _config(about: dict[str, Any], changes: list[str]) -> dict[str, Any] | None:
    """The settings that the command line gives; None where it gives none and some are required.

    Args:
        about: of `entry` and `_settings`.

    Raises:
        UserError: the environment takes no such setting or value, or lacks one, or what plays it is not installed.
    """
    from pydantic import ValidationError

    from pipelines import environments
    from pipelines.base.distribution import install_hint
    from pipelines.base.errors import UserError
    from pipelines.contract.catalogue import first_refusal, settings_model

    name, extra = about["name"], about["extra"]
    if not about["installed"]:
        raise UserError(
            f"environment {name}", f"what plays it is not installed (extra {extra})", f"Run: {install_hint(extra)}"
        )
    if about["required"] and not changes:
        return None
    config: dict[str, Any] = {}
    if changes:
        from pipelines.recipe.read import apply_override

        for change in changes:
            apply_override(config, change)
    model = settings_model(environments.module(name).problems)
    try:
        model(**config)
    except ValidationError as error:
        field, complaint, near = first_refusal(error, model)
        fix = near or f"Settings: {', '.join(model.model_fields)}."
        raise UserError(f"--set {field}", f"environment {name}: {complaint}", fix) from None
    if refused := [replace(each, field=f"--set {each.field}") for each in environments.refusals(name, config)]:
        raise UserError(problems=refused)
    return config


def _sample(name: str, config: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """An episode as plain values."""
    from pipelines.contract import scripted

    problem, actor, who = scripted.cast_for(name, arguments.seed, config, arguments.actions)
    played = scripted.play(problem, actor, max_turns=arguments.max_turns, seed=arguments.seed)
    sample = {
        "seed": arguments.seed,
        "played_by": who,
        "prompt": problem.prompt,
        "tools": problem.tools or [],
        **asdict(played),
    }
    if arguments.images is not None:
        _write_images(arguments.images, json.dumps(sample, ensure_ascii=False))
    return sample


def _write_images(folder: Path, text: str) -> None:
    from pipelines.data.images import IMAGES
    from pipelines.data.marks import marked

    folder.mkdir(parents=True, exist_ok=True)
    for digest in dict.fromkeys(marked(text)):
        (folder / f"{digest[:SHOWN]}.png").write_bytes(IMAGES.png(digest))


def page(about: dict[str, Any]) -> str:
    """One environment as text, as `whetstone methods NAME` shows a method."""
    from flows.cli import setting_types

    turns = "one" if about["max_turns"] == 1 else f"{about['max_turns']} where a recipe sets no max_turns"
    lines = [f"environment {about['name']}", "", about["about"], f"turns: {turns}"]
    lines += [f"players: {about['players']}"] if about["players"] else []
    lines += ["tools: yes"] if about["tools"] else []
    lines += [f"needs: the extra {about['extra']}"] if about["extra"] else []
    lines += [setting_types.line(name, setting) for name, setting in about["settings"].items()]
    return "\n".join([*lines, "", about["doc"], ""])


def transcript(sample: dict[str, Any]) -> list[str]:
    """An episode as lines of text: what the policy reads and says, what each turn is paid, and how it ended."""
    lines = [f"A sample episode with seed {sample['seed']}, played by {WHO[sample['played_by']]}."]
    for tool in sample["tools"]:
        lines += ["", "tool: " + json.dumps(tool.get("function", tool), ensure_ascii=False)]
    if not sample["turns"]:
        lines += _told(sample["prompt"])
    for number, turn in enumerate(sample["turns"], 1):
        lines += ["", "a new conversation begins"] if turn["restarts"] else []
        lines += _told(turn["reads"])
        seat = "" if turn["seat"] is None else f" in seat {turn['seat']}"
        lines += ["", f"the policy{seat}, turn {number}:", *_indented(turn["says"])]
        lines.append(f"reward {_paid(turn)}{'' if turn['valid'] else ', not a valid action'}")
    if sample["last"]:
        lines += ["", "shown at the end:", *_indented(sample["last"])]
    ended = {
        "environment": "the environment ended it",
        "turn limit": f"the limit of {len(sample['turns'])} turns was reached; --max-turns raises it",
        "no more messages": "there was no further message to say",
        "unavailable": "what the environment needs did not answer",
    }
    lines += ["", f"end: {ended[sample['end']]}"]
    for outcome in sample["outcomes"] if sample["turns"] else []:
        seat = "" if outcome["seat"] is None else f" of seat {outcome['seat']}"
        score = "none" if outcome["score"] is None else f"{outcome['score']:g}"
        lines.append(f"score{seat}: {score}, {outcome['status']}")
    return lines


def _told(messages: list[dict[str, str]]) -> list[str]:
    return [line for each in messages for line in ("", f"{each['role']}:", *_indented(each["content"]))]


def _indented(text: str) -> list[str]:
    """Lines of a text without control characters, and with a description in the place of each image."""
    from pipelines.data.thumbnails import here, words

    return [
        "  " + "".join(letter if letter.isprintable() or letter == "\t" else "\ufffd" for letter in line)
        for line in words(text, here(text)).split("\n")
    ]


def _paid(turn: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {value:g}" for name, value in turn["components"].items())
    return f"{turn['reward']:g}{f' ({parts})' if parts else ''}"
