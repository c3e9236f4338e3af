"""What a run is called: the presets, the seed and the settings that somebody chose. Imports nothing that takes time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from pipelines.base.secrets import redact

DOT = " · "
LONGEST_VALUE, LONGEST_NAME = 28, 120
SAID_ELSEWHERE = ("tracking", "threads", "concurrent_stages", "name", "gate", "notify")
"""Fields of a recipe that say nothing of what its stages compute."""
WHAT_IS_SCORED = "checkpoints"
ABBREVIATED = {"learning_rate": "lr"}


def slug(name: str) -> str:
    """A name of lower-case letters, digits and hyphens, as files and Prefect's keys have them.

    >>> slug("long_context.2"), slug("PSPO*"), slug("NSR / W-REINFORCE")
    ('long-context-2', 'pspo', 'nsr-w-reinforce')
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def named(
    otherwise: str, presets: Sequence[str] = (), overrides: Sequence[str] = (), *, seed: int | None = None
) -> str:
    """The name of a run after what was set for it.

    Args:
        otherwise: its name where nothing was set, such as the recipe's.
        presets: the recipe's; an override `presets=[...]` stands in their place.
        overrides: `field=value`, as somebody wrote them; of several of one field the last counts.
        seed: shown where no override sets it.

    >>> named("quickstart", [], ["presets=[gspo]", "rlvr.seed=1", "rlvr.optimizer.learning_rate=3e-4"])
    'gspo · seed 1 · rlvr.lr 3e-4'
    >>> named("quickstart", ["dapo"]), named("quickstart", seed=2), named("quickstart")
    ('dapo', 'quickstart · seed 2', 'quickstart')
    >>> named("mine", ["./my_preset.yaml"])
    'my_preset'
    """
    chosen = settings(overrides)
    presets = listed(chosen.pop("presets")) if "presets" in chosen else list(presets)
    seeds = {name: chosen.pop(name) for name in [n for n in chosen if is_seed(n)]}
    seed_shown = ", ".join(dict.fromkeys(seeds.values())) or ("" if seed is None else str(seed))
    parts = [*map(_stem, presets), *([f"seed {seed_shown}"] if seed_shown else []), *of_fields(chosen)]
    return DOT.join(parts if presets or chosen else [otherwise, *parts])[:LONGEST_NAME]


def arm(name: str) -> str:
    """The name without its seed: what the runs of one arm share.

    >>> arm("gspo · seed 1 · rlvr.lr 3e-4"), arm("quickstart · seed 2")
    ('gspo · rlvr.lr 3e-4', 'quickstart')
    """
    return DOT.join(part for part in name.split(DOT) if not part.startswith("seed "))


def settings(overrides: Iterable[str]) -> dict[str, str]:
    """field → value of overrides, without those that say nothing of how a model is made.

    >>> settings(["threads=1", "stages.long.steps = 3", "seed=1", "seed=2"])
    {'long.steps': '3', 'seed': '2'}
    """
    pairs = [text.partition("=") for text in overrides]
    fields = [(name.strip().removeprefix("stages."), value.strip()) for name, _, value in pairs]
    told = {name: value for name, value in fields if name.partition(".")[0] not in SAID_ELSEWHERE}
    return {name: value for name, value in told.items() if name.rpartition(".")[2] != WHAT_IS_SCORED}


def of_fields(fields: Mapping[str, str]) -> list[str]:
    """A short `field value` of each.

    >>> of_fields({"rlvr.advantage.kind": "rloo", "rlvr.divergence": "{kind: k3, weight: 0.01}", "sft.steps": "None"})
    ['rlvr.advantage rloo', 'rlvr.divergence k3, weight: 0.01', 'sft.steps none']
    """
    return [f"{short(name)} {_value(value)}" for name, value in fields.items()]


def short(field: str) -> str:
    """A field by its stage and its last part that says something.

    >>> short("rlvr.optimizer.learning_rate"), short("rlvr.advantage.kind"), short("seed")
    ('rlvr.lr', 'rlvr.advantage', 'seed')
    """
    parts = [ABBREVIATED.get(part, part) for part in field.split(".") if part != "kind"]
    return ".".join(dict.fromkeys([*parts[:1], *parts[-1:]]))


def split(text: str) -> list[str]:
    """The overrides of a text in which blanks stand between them.

    >>> split("seed=1 sft.system_prompt=be short rlvr.steps=3")
    ['seed=1', 'sft.system_prompt=be short', 'rlvr.steps=3']
    """
    return [part for part in re.split(r" (?=[\w.\-]+=)", text) if part]


def is_seed(field: str) -> bool:
    """Whether a field is the seed of a recipe or stage."""
    return field.rpartition(".")[2] == "seed"


def listed(value: str) -> list[str]:
    """The names of a list as it is written on a command line.

    >>> listed("[dapo, 'my.yaml']"), listed("[]")
    (['dapo', 'my.yaml'], [])
    """
    return [name for name in (part.strip(" '\"") for part in value.strip("[] ").split(",")) if name]


def _stem(preset: str) -> str:
    return PurePath(preset).stem if preset.endswith((".yaml", ".yml")) else preset


def _value(value: str) -> str:
    text = redact(value).strip(" {}[]'\"").removeprefix("kind: ") or "none"
    text = "none" if text in ("None", "null") else text
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
