"""Environments: messages of the policy in; observations, rewards and the end of the episode out.

An environment is a file that defines a class of the same behaviour as `Environment` under the name `World`, and
`problems(size, seed, **config)`, which yields rows for `curate` (kind: environment) with worked turns for SFT. Plug-ins bring others.
Where episodes with the same prompt may differ, its function `hidden(info)` says by what (see `hidden`).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from pipelines.base import plugins
from pipelines.base.errors import Problem as Told
from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.data import chat, marks
from pipelines.data.records import Message, Problem

SLOT = "environments"
"""Under this name plug-ins bring environments: name → module."""


@dataclass(frozen=True, slots=True)
class Step:
    """The environment's response to one message of the policy."""

    observation: str
    """Text of the next user message; not shown where `done`."""
    reward: float
    done: bool
    state: str
    """Equal keys mean that the policy sees the same state; the state after the step."""
    info: dict[str, Any] = field(default_factory=dict)
    """`success`: bool, at the end of an episode; `invalid`: bool, a message that is no action; `status`: at the end, the
    verifier's verdict where there is one."""
    role: Literal["user", "tool"] = "user"
    """Who says the observation."""
    components: dict[str, float] = field(default_factory=dict)
    """Named parts of the reward, which is their sum where there are any."""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Tool calls of the message (`Trajectory.turn_calls`)."""
    key: str | None = None
    """What the message's turn is compared by instead of the state it began in, such as the belief that it states."""
    others: dict[int, float] = field(default_factory=dict)
    """At the end of a game: what the policy's other seats are paid; one with more than 0 has success."""
    messages: list[Message] = field(default_factory=list)
    """The observation as the messages that the policy reads, where it is not one message of `role`."""
    restart: bool = False
    """`messages` are a new conversation: the policy reads nothing of what was before."""


class Unavailable(Exception):
    """What the environment needs does not answer: the episode ends unscored, as a failure of the infrastructure."""

    status = "environment_failed"


class Environment(Protocol):
    """One episode at a time; cloneable through its state.

    One that draws lots has a method `reseed(number)` too. It is called after `reset`, and all that is drawn afterwards depends on the
    number and on the state alone, so that episodes of one problem differ and a resumed run draws the same. One that knows its best moves
    may have `best()`: message → its chance to be what the best player says next; sample episodes are played by it.
    """

    waits: bool
    """A step waits for other processes: steps of several episodes are made side by side, with a time limit each."""

    def reset(self, problem: Problem) -> list[Message]:
        """Start the problem's episode; return the conversation so far, which must be the problem's prompt."""
        ...

    def state_key(self) -> str:
        """Key of the present state."""
        ...

    def step(self, message: str) -> Step:
        """One turn. A message that is not a valid action gets a response, never an exception.

        Raises:
            Unavailable: what the environment needs does not answer.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """The complete state of the episode, as plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""
        ...


def known() -> list[str]:
    """Every environment: the files of this folder, and those of plug-ins."""
    return plugins.names(SLOT)


def module_name(name: str) -> str:
    """Dotted name of the module that defines an environment.

    Raises:
        RecipeError: there is none of that name.
    """
    if name in plugins.core_names(SLOT):
        return f"{__name__}.{name}"
    brought = plugins.origins().get(SLOT, {}).get(name)
    if brought is None:
        raise RecipeError(f"no environment called {name!r}", fix=did_you_mean(name, known()))
    return brought.module


def plugin_files() -> list[Path]:
    """The code of the environments that plug-ins bring: their files and those beside them, in order."""
    specs = [importlib.util.find_spec(each.module) for each in plugins.origins().get(SLOT, {}).values()]
    folders = {Path(spec.origin).parent for spec in specs if spec is not None and spec.origin}
    return sorted(file for folder in folders for file in folder.glob("*.py"))


def module(name: str) -> Any:
    """The module that defines an environment.

    Raises:
        RecipeError: there is none of that name.
    """
    return importlib.import_module(module_name(name))


def _says(name: str, flag: str) -> bool:
    return name in known() and bool(getattr(module(name), flag, False))


def only_episodes_score(name: str) -> bool:
    """Whether its problems have no answer that a verifier could compare with (`PLAYED` in its module, or players)."""
    return _says(name, "PLAYED") or has_players(name)


def verifiers_of(name: str) -> tuple[str, ...] | None:
    """The verifiers that its rows name (`VERIFIERS` in its module; `exact` where only episodes score); None where they may name any."""
    if name not in known():
        return None
    return getattr(module(name), "VERIFIERS", ("exact",) if only_episodes_score(name) else None)


def runs_outside(name: str) -> bool:
    """Whether its settings name code to be run or servers to be asked (`OUTSIDE`): a recipe may name it, the rows of a file may not."""
    return _says(name, "OUTSIDE")


def shows_images(name: str) -> bool:
    """Whether its texts name images (`SHOWS_IMAGES` in its module); in those of others no text is read as one."""
    return _says(name, "SHOWS_IMAGES")


def hidden(info: Mapping[str, Any]) -> str:
    """What the problem of this info is beside what its prompt shows, such as the number to be guessed: JSON of what `hidden(info)` of its
    environment's module says; empty where the prompt shows all.

    Two problems of one prompt are the same problem only where this is equal, too.

    >>> hidden({"environment": "guess_number", "number": 5, "most": 9}), hidden({"environment": "frozen_lake"}), hidden({})
    ('["guess_number", [9, 5]]', '', '')
    """
    name = info.get("environment")
    if not isinstance(name, str) or name not in known():  # a row of a file may have anything there
        return ""
    says = getattr(module(name), "hidden", None)
    told = says(info) if says is not None else None
    return "" if told is None else json.dumps([name, told], sort_keys=True)


def start_key(problem: Problem) -> str:
    """Equal for episodes that begin alike, whatever was said in them already, where prompts do not show all (`hidden`); else empty.

    Benchmark questions and rows are compared by it in place of their texts, of which most are the rules of the game.
    """
    unshown = hidden(problem.info)
    first = next((message["content"] for message in problem.prompt if message["role"] == "user"), "")
    return hashlib.sha256(f"{first}\0{unshown}".encode()).hexdigest() if unshown else ""


def read_from(name: str, value: Any) -> Any:
    """What an environment shows, as plain values that name no image unless it shows some.

    Others may hand on what a server or a program says, which could otherwise crash a model that reads text alone, or show one an image
    of this process.
    """
    return value if shows_images(name) else marks.unnamed_in(value)


def message_to(world: Environment, text: str) -> str:
    """What an environment is told of a player's text: without its reasoning, unless it judges that too (`reads_thinking`)."""
    return text if getattr(world, "reads_thinking", False) else chat.after_thinking(text)


def read_step(name: str, step: Step) -> Step:
    """A step as `read_from` has its texts. What the policy wrote into a call names no image anywhere: in JSON it can escape any letter."""
    shown = read_from(name, {"observation": step.observation, "messages": step.messages})
    calls = [
        {key: read_from(name, value) if key == "text" else marks.unnamed_in(value) for key, value in call.items()}
        for call in step.calls
    ]
    return replace(step, calls=calls, **shown)


def _read_row(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row as `read_from` has it; the schemas of tools, which a server may have written, name no image anywhere."""
    row = read_from(name, row)
    tools = row["info"].get("tools")
    return row if tools is None else {**row, "info": {**row["info"], "tools": marks.unnamed_in(tools)}}


def corpus_of(name: str) -> str | None:
    """The generated corpus that its rows search unless they name another (`CORPUS` in its module)."""
    return getattr(module(name), "CORPUS", None) if name in known() else None


def refusals(name: str, config: dict[str, Any]) -> Iterator[Told]:
    """What it can tell to be wrong with its settings before it makes problems (`refusals` in its module), by their fields."""
    check = getattr(module(name), "refusals", None) if name in known() else None
    yield from check(config) if check is not None else ()


def libraries_of(name: str) -> tuple[str, ...]:
    """The libraries that play it (`LIBRARIES` in its module)."""
    return getattr(module(name), "LIBRARIES", ()) if name in known() else ()


def versions_of(name: str, settings: dict[str, Any]) -> dict[str, str]:
    """Versions of what plays it elsewhere than in this Python (`versions` in its module); none where the settings are another one's."""
    there = getattr(module(name), "versions", None) if name in known() else None
    return there(settings) if there is not None else {}


def extra_of(name: str) -> str | None:
    """The project's extra without which it cannot be played (`EXTRA` in its module; that of searches where it has a corpus), if any."""
    return getattr(module(name), "EXTRA", "search" if corpus_of(name) else None) if name in known() else None


def can_relabel(name: str) -> bool:
    """Whether it says what a lost episode did reach: its module has a function `relabel`."""
    return _says(name, "relabel")


def has_players(name: str) -> bool:
    """Whether its `World` has the attributes of `_forms.Game`."""
    return name in known() and hasattr(module(name).World, "seats")


def says_moves(name: str, method: str, config: Mapping[str, Any]) -> bool:
    """Whether a game with these settings can say a fixed player's moves: its `World` has the method that the player needs, and where its
    module has a function `says_moves(method, config)`, that says so too.
    """
    own = module(name)
    return hasattr(own.World, method) and getattr(own, "says_moves", lambda method, config: True)(method, config)


def self_play(name: str, config: dict[str, Any]) -> bool:
    """Whether the policy has several seats in the episodes of an environment with these settings."""
    return config.get("opponent") == "policy" and has_players(name)


def make(name: str) -> Environment:
    """A new environment.

    Raises:
        RecipeError: there is none of that name.
    """
    return module(name).World()


def relabel(name: str, problem: Problem, messages: Sequence[str]) -> tuple[Problem, list[int]] | None:
    """The problem that an episode did solve, with the same uid, and the places of the messages that solve it; None where it solved none.

    Args:
        messages: as `Environment.step` was told them.

    Raises:
        RecipeError: the environment's module has no function `relabel(problem, messages)`.
    """
    function = getattr(module(name), "relabel", None)
    if function is None:
        raise RecipeError(
            "rlvr.rollout",
            f"the environment {name} cannot say what a lost episode did reach (its module has no relabel)",
            "Use rollout: multi_turn.",
        )
    return function(problem, messages)


def problems(name: str, size: int, seed: int, config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows for curation: prompt (messages), answer, info with `environment` and, where there is an expert, `solution`.

    Raises:
        RecipeError: no such environment, or settings it does not take.
    """
    function = module(name).problems
    renamed = (
        {"environment": name} if plugins.is_reference(name) else {}
    )  # its rows do not know what the recipe calls it
    try:
        rows = (_read_row(name, row) for row in function(size, seed, **config))
        yield from ({**row, "info": {**row["info"], **renamed}} for row in rows)
    except TypeError as error:
        raise RecipeError(f"environment {name} refuses its config: {error}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(f"environment {name} refuses its config: {first['loc'][0]}: {first['msg']}.") from None


Chances = Callable[[list[tuple[list[Message], list[str]]]], list[list[float]]]
"""(conversation, messages that may come next) of each decision → the policy's chance of each message, among them."""


def exact(name: str, chances: Chances) -> dict[str, float]:
    """What can be computed of a policy's chances where an environment is small enough (`decisions` and `exact` of its file)."""
    own = module(name)
    return own.exact(chances(own.decisions())) if hasattr(own, "exact") else {}


def key_number(text: str) -> int:
    """A state key as an int64 that is never negative."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
