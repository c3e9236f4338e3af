"""What a kind of stage is: its settings, what it takes and makes, and what it reads. A kind is a package with a `kind.py`.

A package `pipelines/NAME` (or one beside it, such as `evaluation`) whose `kind.py` sets `KIND` to an instance of `Kind` adds a
kind of stage; recipes, keys, plans, runs and lineage know it from there, and nothing else names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines import environments
from pipelines.contract.fields import Settings
from pipelines.errors import RecipeError, did_you_mean
from pipelines.recipe.resolve import resolve
from pipelines.stage.files import read_object

if TYPE_CHECKING:
    from pipelines.recipe.graph import Node
    from pipelines.recipe.provenance import Provenance
    from pipelines.recipe.settings import Source

BASE = "base"
"""As an input: the recipe's own model."""
DATA, MODEL, SAMPLES, SCORES = "data", "model", "samples", "scores"
REWARD_MODEL = "reward_model"
"""What stages make: a folder with splits, with `model/`, with sampled completions, with `results.json`, with a reward model in `model/`."""
PAIRED = ("pairs", "segments", "preferred")
"""Selections whose records are preferences."""
Place = tuple[str | int, ...]
"""Where a field is in the settings of a key: ("curate", "sources", 0, "path")."""
VERIFIERS = ("reasoning-gym", "sympy", "mpmath")
TEXT = ("tokenizers", "transformers", "jinja2", "numpy", "pyarrow")
TORCH = ("torch", "peft", "safetensors", "scipy")
"""Libraries that score answers, render and tokenise text, and compute models."""
IMPORTED_LATE = {
    "transformers": ("transformers.models.auto.tokenization_auto",),
    "torch": ("torch", "transformers.models.auto.modeling_auto"),
    "lm_eval": ("lm_eval.tasks",),
}
"""Library → modules of it that stages import when they come to them; each takes a second or so."""


@dataclass(frozen=True)
class Port:
    """A named input of a kind of stage."""

    takes: tuple[str, ...]
    """What the stage that it names may make."""
    required: bool = True
    """A port of models that is not required and not given reads the recipe's own model."""
    many: bool = False
    """A list of stages."""


@dataclass(frozen=True)
class ModelFiles:
    """A model that a stage loads by a path of the recipe."""

    path: str | None
    place: Place
    weights: bool = True
    """False where only its tokenizer is read."""


@dataclass
class Reads:
    """All that can change what a stage makes, beside its inputs, its seed and the code of its own module."""

    settings: dict[str, Any]
    """Section → fields, with paths as they are spelled."""
    in_key: dict[Place, Any] = field(default_factory=dict)
    """What stands in the key instead of a field that is not read, or whose meaning is told otherwise."""
    sources: dict[str, tuple[Source, Place]] = field(default_factory=dict)
    """Label in the key → a source of data, and where its path is."""
    models: dict[str, ModelFiles] = field(default_factory=dict)
    """Label in the key → model."""
    benchmarks: list[tuple[list[str], str | None]] = field(default_factory=list)
    """Names of benchmarks, and a folder with more of them."""
    environment_problems: list[list[Any]] = field(default_factory=list)
    """What decides on each set of environments' problems that models are asked, as benchmarks ask theirs."""
    modules: list[str] = field(default_factory=list)
    """Modules that are imported by name: methods, benchmarks' code."""
    skip: frozenset[str] = frozenset()
    """Modules that this stage does not enter although its process could."""
    environments: set[str] = field(default_factory=set)
    """Environments that are played, or that the data were made in."""
    any_environment: bool = False
    """The data may name any environment."""
    environment_settings: list[dict[str, Any]] = field(default_factory=list)
    """Their settings: files that these name, and the code of `package.module:name`, can change what the stage makes."""
    rows_from: set[str] = field(default_factory=set)
    """Environments that the rows that the stage makes come from: stages that play these rows read them too."""
    rows_settings: list[dict[str, Any]] = field(default_factory=list)
    """The settings of those environments."""
    rows_name_environments: bool = False
    """The rows that the stage makes may name any environment, because they come from files."""
    verifies: bool = False
    """Completions are scored, perhaps by running programs."""
    libraries: tuple[str, ...] = ()
    computes: bool = True
    """Models are computed, so that the kind of processor matters."""


class Kind:
    """A kind of stage. Subclasses set the facts and override what differs; there is one instance, `KIND` of their module."""

    name: str
    settings: type[Settings]
    module: str
    """`python -m MODULE WORK` is the stage's process."""
    makes: str
    ports: ClassVar[dict[str, Port]]
    trains: bool = False
    """Optimizes weights, in steps that are committed."""
    rewards: bool = False
    """Learns from rewards of its own rollouts; such a stage is what sweeps compare, and has rollouts to show."""
    makes_base: bool = False
    """Initialises a `fresh` model where it starts from the recipe's own, and keeps it under `base/`."""
    gpu: bool = True
    """Takes a place on a GPU."""
    methods: bool = False
    """Its settings have slots for methods, which presets fill."""
    slots: tuple[str, ...] = ()
    """Folders of methods under pipelines/ that its settings choose from, for the catalogue, beside those that presets fill."""
    benchmark_texts: str | None = None
    """`module:function` that yields (benchmark, question) of everything that the stage's settings will ask."""
    headlines: tuple[str, ...] = ()
    """Metrics of its spool that are compared between runs."""

    link_takes: tuple[str, ...] = ()
    """What the stages that `links` tells may make."""

    def takes(self, settings: Any, label: str) -> tuple[str, ...]:
        """What the stage that `links` names under this label may make."""
        return self.link_takes

    def link_hint(self, label: str) -> str:
        """What else the setting of this label of `links` takes, for messages; empty where nothing."""
        return ""

    def links(self, settings: Any) -> dict[str, str]:
        """Input label → stage, for stages that settings name outside of the ports."""
        return {}

    def places(self, fields: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
        """Where the written fields of a stage name other stages outside of the ports: (mapping, key)."""
        return []

    def labels(self, node: Node, port: str, names: list[str]) -> dict[str, str]:
        """Label → stage or `base` of a port with several inputs. A label never holds the name of a stage."""
        return {f"{port}.{number}": name for number, name in enumerate(names)}

    def shown(self, node: Node) -> dict[str, str]:
        """What the artifact calls the models that it tells of → their names in this recipe."""
        return node.labels

    def default_inputs(self, makes: dict[str, str]) -> dict[str, tuple[str, ...]]:
        """Inputs of ports that a recipe with named stages leaves out, by what its stages make (name → what)."""
        return {}

    def reads(self, node: Node) -> Reads:
        """What a stage of this kind reads."""
        raise NotImplementedError

    def job(self, node: Node) -> dict[str, Any]:
        """What the stage's process is told beyond settings, seed and inputs."""
        return {}

    def imports(self, node: Node) -> list[str]:
        """Modules that this stage's work imports when it comes to them; a process that waits for its work imports them before."""
        libraries = self.reads(node).libraries
        modules = [module for library in libraries for module in IMPORTED_LATE.get(library, ())]
        family = _family(node) if "torch" in libraries else None
        return [*modules, f"transformers.models.{family}.modeling_{family}"] if family else modules

    def info_fields(self, settings: Any) -> dict[str, str]:
        """Setting, as KIND.FIELD → the field of the records' info that it names; some record must have it."""
        return {}

    def provenance(self, node: Node) -> Iterable[Provenance]:
        """What the rewards are made from that the stage learns from; nothing where it learns from none."""
        return ()

    def check(self, node: Node) -> None:
        """What the types of the settings cannot say.

        Raises:
            RecipeError: names fields as `KIND.field`; the caller puts the stage's name there.
        """


def _family(node: Node) -> str | None:
    """What transformers calls the recipe's model; None where that is not known without loading it."""
    model = node.recipe.model
    if model.fresh is not None:
        return model.fresh.architecture
    file = Path(model.path).expanduser() / "config.json" if model.path else None
    return (read_object(file, model_type=str) or {}).get("model_type") if file else None


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


def data_environments(node: Node) -> tuple[set[str], bool]:
    """Environments that the data upstream of a stage come from by name, and whether their rows may name any other."""
    data = [other.kind.reads(other) for other in node.ancestors() if other.kind.makes == DATA]
    return {name for each in data for name in each.rows_from}, any(each.rows_name_environments for each in data)


def environment_settings(node: Node) -> list[dict[str, Any]]:
    """Settings of the environments that the data upstream of a stage come from."""
    data = [other.kind.reads(other) for other in node.ancestors() if other.kind.makes == DATA]
    return [settings for each in data for settings in each.rows_settings]


def feeding(node: Node, split: str | None) -> Iterator[tuple[str, Source]]:
    """(field, source) of the data that a stage reads, of those sources whose records go to a split.

    Sources that are sample stages are followed to the data that these answer.
    """
    for name in node.named("data"):
        data = node.recipe.node(name)
        for number, source in enumerate(getattr(data.settings, "sources", ())):
            if source.splits is not None and split not in source.splits:
                continue
            yield f"{name}.sources.{number}", source
            if source.kind == "stage":
                sampled = node.recipe.node(str(source.path))
                yield from feeding(sampled, sampled.settings.split)


def check_episodes(node: Node, field_name: str, split: str, plays: bool) -> None:
    """Episodes are played in environments, and problems that only an episode scores are played.

    Args:
        field_name: what says whether the stage plays episodes, and how to have it otherwise.
        plays: whether it does.

    Raises:
        RecipeError: a source of the split makes problems of the other sort.
    """
    for where, source in feeding(node, split):
        environment = str(source.task) if source.kind == "environment" else None
        if plays and (source.kind == "reasoning_gym" or source.self_supervised):
            raise RecipeError(
                f"{field_name} plays episodes, and the problems of {where} ({source.task or source.path}) name no environment. Use a "
                "source of kind environment, or ask for single answers."
            )
        if not plays and environment in environments.PLAYED:
            raise RecipeError(
                f"{field_name} asks for single answers, and the problems of {where} ({environment}) have none: only an episode scores "
                "them. Play it: rollout: multi_turn in rlvr, episodes: {max_turns: 10} in a sample stage."
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
        if split is not None and known is not None and split not in known:
            raise RecipeError(f"{field_name}: {name} makes no split called {split!r}. {did_you_mean(split, known)}")


def check_pairs(section: str, node: Node) -> None:
    """A stage that learns from preferences reads some: generators make none, and of selections only those of pairs do.

    Raises:
        RecipeError: a source of its split makes other records.
    """
    for name in node.named("data"):
        for number, source in enumerate(getattr(node.recipe.node(name).settings, "sources", ())):
            if source.splits is not None and node.settings.split not in source.splits:
                continue
            chosen = source.select.kind if source.select is not None else None
            if source.kind in ("reasoning_gym", "environment") or source.text_column or chosen not in (None, *PAIRED):
                raise RecipeError(
                    f"{section}.data: {name}.sources.{number} ({source.task or source.path}) makes no pairs of answers. Read a sample "
                    "stage with select: pairs, or a file with chosen and rejected."
                )


def check_heldout(section: str, settings: Any) -> None:
    """What is measured is held out.

    Raises:
        RecipeError: it is what the stage trains on.
    """
    if settings.heldout is not None and settings.heldout == settings.split:
        raise RecipeError(
            f"{section}.heldout: {settings.split} is what the stage trains on, so nothing would be held out. Name another split, or set "
            "heldout: null."
        )


def check_trained(node: Node) -> None:
    """What a stage samples has been trained: it does not start from a fresh model.

    Raises:
        RecipeError: it does.
    """
    if node.reads_base and node.recipe.model.fresh is not None:
        fix = "add an `sft` section" if not node.recipe.stages else f"{node.name}.model: name a stage that trains it"
        raise RecipeError(f"sft: a fresh model must be trained before {node.kind.name.upper()}; {fix}.")
