"""What kinds of stages ask of the recipe around a stage: its model, its data, its environments, its splits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pipelines import environments
from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.contract.catalogue import origin
from pipelines.recipe.resolve import resolve
from pipelines.recipe.server import Server
from pipelines.recipe.slots import MONITORS
from pipelines.recipe.source import sources_of
from pipelines.recipe.stage_kind import DATA, PAIRED, SAMPLES, ModelFiles, Place
from pipelines.recipe.training import Lora

if TYPE_CHECKING:
    from pipelines.recipe.settings import Source
    from pipelines.recipe.stage_kind import Node

TOKENIZES = ("path", "revision", "chat_template", "chat_template_kwargs", "chat_template_date", "trust_remote_code")
"""Fields of the model that rendering a conversation and counting its tokens reads."""


def monitors(settings: Any) -> list[tuple[str, Any]]:
    """(slot, name) of the rules that watch a stage."""
    return [(MONITORS, rule.get("kind")) for rule in settings.monitors]


def part_reads(chosen: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """What the key of a stage must hold of the methods that it uses, as fields of `Reads`.

    Args:
        chosen: (slot, name) of each method; names that no method has are left to the recipe's check.
    """
    parts = [part for slot, name in chosen if (part := origin(slot, str(name))) is not None]
    foreign = [part for part in parts if not part.module.startswith("pipelines.")]
    return {
        "modules": [part.module for part in parts if part.module.startswith("pipelines.")],
        "plugins": list(dict.fromkeys(name for part in foreign for name in (part.plugin, part.module))),
        "plugin_packages": tuple(dict.fromkeys(part.distribution for part in foreign if part.distribution)),
    }


def model_settings(node: Node, *, initialises: bool = False) -> tuple[dict[str, Any], dict[Place, Any]]:
    """The part of the model section that a stage reads, and what the key holds instead where it starts from another stage.

    Args:
        initialises: it creates a `fresh` model where it starts from the recipe's own.
    """
    model = resolve(node.recipe.model)
    if not (initialises and node.reads_base):
        model = {k: v for k, v in model.items() if k not in ("fresh", "tokenizer")}
    if node.reads_base:
        return model, {}
    absent: dict[str, Any] = {"path": None, "revision": None, "allow_missing": [], "allow_unexpected": []}
    return model, {("model", name): value for name, value in absent.items()}


def base_files(node: Node) -> dict[str, ModelFiles]:
    """The recipe's own model, where the stage loads it."""
    return {"model": ModelFiles(node.recipe.model.path, ("model", "path"))} if node.reads_base else {}


def tokenizer_settings(node: Node) -> dict[str, Any]:
    """The part of the model section that a stage reads which needs the tokenizer of the recipe's model alone."""
    model = resolve(node.recipe.model)
    return {name: model[name] for name in TOKENIZES}


def data_environments(node: Node) -> tuple[set[str], bool]:
    """Environments that the data upstream of a stage come from by name, and whether their rows may name any other."""
    data = [other.kind.reads(other) for other in node.ancestors() if other.kind.makes == DATA]
    return {name for each in data for name in each.rows_from}, any(each.rows_name_environments for each in data)


def verifiers_used(node: Node) -> frozenset[str] | None:
    """The verifiers that the data of a stage, or its settings, name; None where rows may name others.

    Args:
        node: the stage; its own sources count, where it has some, and those of all data upstream.
    """
    from pipelines import verifiers

    data = [node, *node.ancestors()]
    used = set(_named_verifiers(node.settings.model_dump()))
    for source in (source for each in data for source in sources_of(each.settings)):
        if source.kind == "stage":
            continue
        if source.kind == "reasoning_gym":
            used.add("reasoning_gym")
        elif source.kind == "environment":
            declared = environments.verifiers_of(str(source.task))
            if declared is None:
                return None
            used.update(declared)
        elif source.verifier is None:
            return None
        else:
            used.add(source.verifier)
    return None if used & {*verifiers.COMPOUND} else frozenset(used)


def _named_verifiers(settings: Any) -> Iterator[str]:
    if isinstance(settings, dict):
        if isinstance(settings.get("verifier"), str):
            yield settings["verifier"]
        settings = list(settings.values())
    for inner in settings if isinstance(settings, list | tuple) else ():
        yield from _named_verifiers(inner)


def environment_settings(node: Node) -> list[dict[str, Any]]:
    """Settings of the environments that the data upstream of a stage come from."""
    data = [other.kind.reads(other) for other in node.ancestors() if other.kind.makes == DATA]
    return [settings for each in data for settings in each.rows_settings]


def data_sources(node: Node) -> Iterator[tuple[str, int, Source]]:
    """(stage of data, number, source) of everything that the stage's data come from directly."""
    for name in node.named("data"):
        for number, source in enumerate(sources_of(node.recipe.node(name).settings)):
            yield name, number, source


def feeding(node: Node, split: str | None) -> Iterator[tuple[str, Source]]:
    """(field, source) of the data that a stage reads, of those sources whose records go to a split.

    Sources that are sample stages are followed to the data that these answer.
    """
    for name, number, source in data_sources(node):
        if source.splits is not None and split not in source.splits:
            continue
        yield f"{name}.sources.{number}", source
        if source.kind == "stage":
            sampled = node.recipe.node(str(source.path))
            yield from feeding(sampled, sampled.settings.split)


def check_sources(node: Node, field: str, names: Iterable[str]) -> None:
    """A setting names sources of the stage's split, where these are known before the data are: rows of files may name others.

    Raises:
        RecipeError: it names another one.
    """
    sources = [source for _, source in feeding(node, node.settings.split)]
    known = {str(source.task) for source in sources}
    unknown = [name for name in names if name not in known]
    if unknown and sources and all(source.task is not None for source in sources):
        problem = f"{node.settings.split} has no records of a source {unknown[0][:80]!r}"
        raise RecipeError(field, problem, did_you_mean(unknown[0][:80], known))


def check_episodes(node: Node, field: str, value: str, split: str, plays: bool, others: Collection[str] = ()) -> None:
    """Episodes are played in environments, and problems that only an episode scores are played.

    Args:
        field: what says whether the stage plays episodes.
        value: what it says.
        plays: whether it does.
        others: sources that it says nothing of.

    Raises:
        RecipeError: a source of the split makes problems of the other sort.
    """
    for where, source in [each for each in feeding(node, split) if each[1].label not in others]:
        environment = str(source.task) if source.kind == "environment" else None
        if plays and (source.kind == "reasoning_gym" or source.self_supervised):
            raise RecipeError(
                field,
                f"{value} plays episodes, and the problems of {where} ({source.label}) name no environment",
                "Use a source of kind environment, or ask for single answers.",
            )
        if not plays and environment and environments.only_episodes_score(environment):
            raise RecipeError(
                field,
                f"{value} asks for single answers, and the problems of {where} ({environment}) have none: only an episode scores them",
                "Play it: rollout: multi_turn in rlvr, episodes: {max_turns: 10} in a sample stage.",
            )


def plays_episodes(node: Node) -> bool:
    """Whether the completions of a sample stage are episodes, its own or those that it reads."""
    if getattr(node.settings, "episodes", None) is not None:
        return True
    stored = [node.recipe.node(name) for name in node.named("data")]
    return any(plays_episodes(other) for other in stored if other.kind.makes == SAMPLES)


def check_split(node: Node, field_name: str, split: str | None) -> None:
    """The data that a stage reads have a split of this name.

    Raises:
        RecipeError: they have not.
    """
    for name in node.named("data"):
        known = getattr(node.recipe.node(name).settings, "splits", None)
        if split is not None and isinstance(known, dict) and split not in known:
            none = " Or set heldout: null." if field_name.endswith(".heldout") else ""
            raise RecipeError(field_name, f"{name} makes no split called {split!r}", did_you_mean(split, known) + none)


def check_pairs(section: str, node: Node) -> None:
    """A stage that learns from preferences reads some: generators make none, and of selections only those of pairs do.

    Raises:
        RecipeError: a source of its split makes other records.
    """
    for name, number, source in data_sources(node):
        if source.splits is not None and node.settings.split not in source.splits:
            continue
        chosen = source.select.kind if source.select is not None else None
        if source.kind in ("reasoning_gym", "environment") or source.text_column or chosen not in (None, *PAIRED):
            raise RecipeError(
                f"{section}.data",
                f"{name}.sources.{number} ({source.label}) makes no pairs of answers",
                "Read a sample stage with select: pairs, or a file with chosen and rejected.",
            )


def check_heldout(section: str, settings: Any) -> None:
    """What is measured is held out.

    Raises:
        RecipeError: it is what the stage trains on.
    """
    if settings.heldout is not None and settings.heldout == settings.split:
        raise RecipeError(
            f"{section}.heldout",
            f"{settings.split} is what the stage trains on, so nothing would be held out",
            "Name another split, or set heldout: null.",
        )


def is_quantized(settings: Any) -> bool:
    """Whether a stage trains adapters beside matrices in four bits."""
    lora = getattr(settings, "lora", None)
    return isinstance(lora, Lora) and lora.load_in_4bit


def processes(node: Node) -> int:
    """How many processes work on a stage."""
    return processes_field(node) or 1


def launched(node: Node) -> bool:
    """Whether the recipe has a stage run as a job of a scheduler."""
    launch = node.recipe.launch
    return launch is not None and node.name in launch.stages


def processes_field(node: Node) -> int | None:
    """What a stage's field of processes says; None for a stage that has none, and runs in one."""
    value = node.settings
    for name in node.kind.processes_field.split("."):
        value = getattr(value, name, None)
    return None if value is None else int(value)


def samplers(node: Node) -> Iterator[tuple[str, Server]]:
    """The decoding servers of a stage, each with its field."""
    settings = node.settings
    difficulty = getattr(settings, "difficulty", None)
    for field, section in ((node.name, settings), (f"{node.name}.difficulty", difficulty)):
        sampler = getattr(section, "sampler", None)
        if isinstance(sampler, Server):
            yield f"{field}.sampler", sampler


def check_quantized(section: str, settings: Any) -> None:
    """Matrices in four bits are computed where they are stored.

    Raises:
        RecipeError: they would be sharded, or decoded by a server that stores them otherwise.
    """
    field, fix = f"{section}.lora.load_in_4bit", "Leave load_in_4bit out, or"
    if not is_quantized(settings):
        return
    if settings.processes > 1:
        raise RecipeError(
            field,
            f"matrices in four bits cannot be sharded over {settings.processes} processes",
            f"{fix} set processes: 1.",
        )
    if getattr(settings, "sampler", None) is not None:
        raise RecipeError(
            field,
            "a decoding server (`sampler`) would sample from another base than is trained",
            f"{fix} leave `sampler` out.",
        )


def check_optimizer(node: Node) -> None:
    """Muon steps weights in float32.

    Raises:
        RecipeError: they are stored otherwise.
    """
    settings = node.settings
    if settings.optimizer.kind == "muon" and settings.lora is None and node.recipe.model.weights_dtype == "bfloat16":
        raise RecipeError(
            f"{node.name}.optimizer.kind",
            "muon steps weights in float32, and model.weights_dtype stores them in bfloat16",
            "Leave weights_dtype out, use lora, or kind: adamw, which rounds stochastically.",
        )


def check_trained(node: Node) -> None:
    """What a stage samples has been trained: it does not start from a fresh model.

    Raises:
        RecipeError: it does.
    """
    if node.reads_base and node.recipe.model.fresh is not None:
        fix = "add an `sft` section" if not node.recipe.stages else f"{node.name}.model: name a stage that trains it"
        raise RecipeError("sft", f"a fresh model must be trained before {node.kind.name.upper()}; {fix}.")
