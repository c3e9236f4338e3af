"""What a kind of stage is: its settings, what it takes and makes, and what it reads. A kind is a package with a `kind.py`.

A package `pipelines/NAME` (or one beside it, such as `evaluation`) whose `kind.py` sets `KIND` to an instance of `Kind` adds a
kind of stage; recipes, keys, plans, runs and lineage know it from there, and nothing else names it. A plug-in adds one in its table,
`PARTS = {"stages": {"filter_long": KIND}}`, whose class has the stage's work too (`Kind.work`).
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import linecache
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pipelines.base import plugins
from pipelines.base.errors import Problem, RecipeError, UserError, did_you_mean
from pipelines.base.files import read_object
from pipelines.base.plugins import Origin
from pipelines.base.project import ROOT, page
from pipelines.base.user_modules import users_line
from pipelines.contract.fields import Settings
from pipelines.contract.provenance import Provenance
from pipelines.data.records import Part
from pipelines.recipe.source import Source

BASE = "base"
"""As an input: the recipe's own model."""
DATA, MODEL, SAMPLES, SCORES, REWARD_MODEL = "data", "model", "samples", "scores", "reward_model"
MASKED_MODEL, LATENT_MODEL = "masked_model", "latent_model"
"""What stages make: a folder with splits, `model/`, sampled completions, `results.json`, or a model of rewards, masked or latent."""
MAKES = (DATA, MODEL, SAMPLES, SCORES, REWARD_MODEL, MASKED_MODEL, LATENT_MODEL)
KIND_NAME = re.compile(r"[a-z][a-z_]{0,39}")
"""What a kind may be called: artifacts have its name in theirs."""
OF_PLUGINS = "pipelines.plugin_stage"
"""The process of a kind that a plug-in brings."""
PAIRED = ("pairs", "segments", "preferred")
"""Selections whose records are preferences."""
Place = tuple[str | int, ...]
"""Where a field is in the settings of a key: ("curate", "sources", 0, "path")."""
VERIFIERS = ("reasoning-gym", "sympy", "mpmath")
TEXT = ("tokenizers", "transformers", "jinja2", "numpy", "pyarrow")
TORCH, QLORA = ("torch", "peft", "safetensors", "scipy"), ("bitsandbytes",)
"""Libraries that score answers, render and tokenise text, compute models, and store them in four bits."""
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
    endpoint: bool = False
    """Takes models behind servers too, as sections (`{endpoint: NAME}`); the kind's settings have them under the port's name."""


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
    files: dict[str, str] = field(default_factory=dict)
    """Label in the key → the path of a further file that is read."""
    environment_problems: list[list[Any]] = field(default_factory=list)
    """What decides on each set of problems that models are asked, beside the benchmark's name: an environment's, or those of some days."""
    modules: list[str] = field(default_factory=list)
    """Modules that are imported by name: methods, benchmarks' code."""
    plugins: list[str] = field(default_factory=list)
    """Plug-ins that bring methods which the stage uses: modules, and paths of files."""
    plugin_packages: tuple[str, ...] = ()
    """Installed packages that registered some of them; their versions are in the key."""
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
    verifiers: frozenset[str] | None = None
    """By these verifiers alone; None where rows may name any."""
    libraries: tuple[str, ...] = ()
    computes: bool = True
    """Models are computed, so that the kind of processor matters."""


class Kind:
    """A kind of stage. Subclasses set the facts and override what differs; there is one instance, `KIND` of their module."""

    name: str
    settings: type[Settings]
    module: str = OF_PLUGINS
    """`python -m MODULE WORK` is the stage's process."""
    makes: str
    ports: ClassVar[dict[str, Port]] = {}
    libraries: tuple[str, ...] = ("pyarrow",)
    """Of a kind that does not override `reads`: installed packages whose versions can change what it makes."""
    trains: bool = False
    """Optimizes weights."""
    rewards: bool = False
    """Learns from rewards of its own rollouts; such a stage is what sweeps compare, and has rollouts to show."""
    makes_base: bool = False
    """Initialises a `fresh` model where it starts from the recipe's own, and keeps it under `base/`."""
    gpu: bool = True
    """Takes a place on a GPU."""
    processes_field: str = "processes"
    """The setting, as FIELD or SECTION.FIELD, that says how many processes work, one per GPU."""
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

    def link_fields(self, fields: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
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

    def work(self, job: dict[str, Any], folder: Path) -> dict[str, float]:
        """Do a stage's work in its process; for kinds of plug-ins, whose process calls it.

        Args:
            job: `settings` (section → fields; the stage's are under the name of its kind), `seed`, `inputs` (port → folder of the
                artifact), and what `job` of the kind adds.
            folder: where the stage works; what it makes goes into `folder / "out"`.

        Returns:
            numbers that the run shows.
        """
        raise NotImplementedError

    def reads(self, node: Node) -> Reads:
        """What a stage of this kind reads; by default its settings and its inputs, without any model."""
        from pipelines.recipe.resolve import resolve  # the process of a stage needs none of it

        return Reads({self.name: resolve(node.settings), "model": {}}, libraries=self.libraries, computes=False)

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

    def reads_part(self, settings: Any) -> Part | None:
        """What every record of the stage's split must hold; None where a prompt is enough, or another check says more."""
        return None

    def provenance(self, node: Node) -> Iterable[Provenance]:
        """What the rewards are made from that the stage learns from; nothing where it learns from none."""
        return ()

    def problems(self, node: Node) -> Iterable[Problem]:
        """What of this machine stands against the stage, which `whetstone plan` shows; fields begin with the stage's name."""
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


@dataclass(frozen=True)
class Stage:
    """One named stage of a recipe."""

    kind: str
    settings: Settings
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Port → names of stages, or `base`."""
    seed: int | None = None
    places: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Port of models → where its models behind servers stand in the recipe's list, which names stages too."""


@dataclass(frozen=True)
class Node:
    """A stage with the recipe around it."""

    recipe: Any
    """The `Recipe` (`pipelines.recipe.read`)."""
    name: str
    stage: Stage

    @property
    def kind(self) -> Kind:
        """Its kind."""
        return kind_named(self.stage.kind)

    @property
    def settings(self) -> Any:
        """Its settings."""
        return self.stage.settings

    @property
    def seed(self) -> int:
        """Its own seed where it has one, else the recipe's."""
        own = self.stage.seed if self.stage.seed is not None else getattr(self.settings, "seed", None)
        return self.recipe.seed if own is None else int(own)

    def named(self, port: str) -> tuple[str, ...]:
        """Stages, or `base`, that a port names."""
        return self.stage.inputs.get(port, ())

    def asks_endpoint(self, port: str) -> bool:
        """Whether a port names a model behind a server."""
        return self.kind.ports[port].endpoint and bool(getattr(self.settings, port))

    @property
    def asks_endpoints(self) -> bool:
        """Whether any port names a model behind a server."""
        return any(map(self.asks_endpoint, self.kind.ports))

    @property
    def labels(self) -> dict[str, str]:
        """Label → stage or `base`, of every input. Labels are what keys and the stage's process call the inputs; they hold no
        stage's name, so that renaming a stage changes nothing."""
        labels: dict[str, str] = {}
        for port, about in self.kind.ports.items():
            names = list(self.named(port))
            if about.many:
                labels |= self.kind.labels(self, port, names)
            elif names:
                labels[port] = names[0]
        return labels | self.kind.links(self.settings)

    @property
    def inputs(self) -> dict[str, str]:
        """Label → stage whose artifact is read."""
        return {label: name for label, name in self.labels.items() if name != BASE}

    @property
    def sources(self) -> list[Node]:
        """The stages that it reads, each once."""
        return [self.recipe.node(name) for name in dict.fromkeys(self.inputs.values())]

    def ancestors(self) -> list[Node]:
        """Every stage that it was made from, the nearest first."""
        ancestors: dict[str, Node] = {}
        waiting = self.sources
        while waiting:
            node = waiting.pop(0)
            if node.name not in ancestors:
                ancestors[node.name] = node
                waiting += node.sources
        return list(ancestors.values())

    @property
    def parents(self) -> list[str]:
        """The models that its own model was made from: names of stages, or `base`."""
        return [name for _, names in ports for name in names] if (ports := self._models_of) else [BASE]

    @property
    def _models_of(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each port of models, with the stages, or `base`, that it reads; none where it asks a server alone."""
        ports = [port for port, about in self.kind.ports.items() if {MODEL, MASKED_MODEL} & {*about.takes}]
        return [(port, self.named(port) or (() if self.asks_endpoint(port) else (BASE,))) for port in ports]

    @property
    def made_from(self) -> set[str]:
        """Every model that its own descends from: names of stages, and `base`."""
        models: set[str] = set()
        waiting = self.parents
        while waiting:
            name = waiting.pop()
            if name not in models:
                models.add(name)
                waiting += [] if name == BASE else self.recipe.node(name).parents
        return models

    @property
    def reads_base(self) -> bool:
        """Whether it loads the recipe's own model, or what belongs to it, by its path."""
        return not (ports := self._models_of) or any(BASE in names for _, names in ports)


def stage_kinds() -> dict[str, Kind]:
    """Name → kind, in the order of the names: the core's, and those of plug-ins.

    Raises:
        TypeError: a `kind.py` of the core registers nothing, or a name that is taken.
        RecipeError: a plug-in brings a kind that cannot be, or whose name is taken.
    """
    brought = plugins.origins().get(plugins.STAGES)
    if not brought:
        return core_kinds()
    kinds, by = dict(core_kinds()), dict[str, Origin]()
    for name, origin in brought.items():
        kind = kind_of(name, origin)
        if kind.name in by and kinds[kind.name] is not kind:
            both = f"{defined_at(kind)} and {by[kind.name].plugin}"
            raise RecipeError("plugins", f"{both} both bring a kind of stage {kind.name}", "Rename one of them.")
        kinds[kind.name], by[kind.name] = kind, origin
    return dict(sorted(kinds.items()))


def brought_by(name: str) -> Origin | None:
    """Where a kind comes from that a plug-in brings; None for the core's."""
    brought = plugins.origins().get(plugins.STAGES, {})
    return next((origin for key, origin in brought.items() if kind_of(key, origin).name == name), None)


@cache
def kind_of(name: str, origin: Origin) -> Kind:
    """The kind that a plug-in brings under a name, or that a reference names.

    Raises:
        RecipeError: it is none, lacks something, or its name is not its own or is taken.
    """
    kind: Any = origin.load()
    where = f"{_place(kind if isinstance(kind, type) else type(kind)) or origin.plugin}: {name}"
    fault, fix = _fault(kind, None if plugins.is_reference(name) else name)
    if fault:
        raise RecipeError("plugins", f"{where} {fault}", fix)
    return kind


def _fault(kind: Any, name: str | None) -> tuple[str, str]:
    """What is wrong with a kind of a plug-in, and what to do; empty where nothing is."""
    if not isinstance(kind, Kind):
        return "is no kind of stage", f"An instance of a class that inherits from Kind is wanted ({page('plugins')})."
    settings, own, text = getattr(kind, "settings", None), getattr(kind, "name", None), KIND_NAME.pattern
    if name is not None and own != name:
        return f"is called {own!r} by its class", f'Set name = "{name}" there, or rename it in PARTS.'
    if not KIND_NAME.fullmatch(str(own)):
        return f"has the name {own!r}", f"Lower-case letters and underscores are wanted ({text})."
    if own in core_kinds():
        return f"has the name {own}, and there is a kind of stage {own} in the core", "Call it otherwise."
    if not (isinstance(settings, type) and issubclass(settings, Settings)):
        return "has no settings", "Set settings to a class that inherits from Settings (pipelines.contract.fields)."
    if getattr(kind, "makes", None) not in MAKES:
        return f"makes {getattr(kind, 'makes', None)!r}", f"Set makes to one of: {', '.join(MAKES)}."
    taken = [port for port in kind.ports if port in ("kind", "seed") or port in settings.model_fields]
    if taken:
        return f"has a port {taken[0]}, and a stage has a field of that name", "Call the port otherwise."
    if kind.module == OF_PLUGINS and type(kind).work is Kind.work:
        return "has no work", f"Define work(self, job, folder) in its class ({page('plugins')})."
    return "", ""


def _place(cls: type) -> str:
    """`file:line` of a class; empty where that is not known."""
    try:
        file = inspect.getsourcefile(cls)
        linecache.checkcache(file)
        return f"{file}:{inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        return ""


def defined_at(kind: Kind) -> str:
    """`file:line` of a kind's settings where a plug-in brings it; empty for the core's."""
    return "" if core_kinds().get(kind.name) is kind else _place(kind.settings) or _place(type(kind))


@contextlib.contextmanager
def in_its_code(kind: Kind) -> Iterator[None]:
    """Say of an exception in the code of a kind that a plug-in brings where it was raised.

    Raises:
        RecipeError: in place of an exception that comes from the user's code.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        place = users_line(error) if core_kinds().get(kind.name) is not kind else ""
        if not place:
            raise
        text = f"the kind of stage {kind.name} fails: {type(error).__name__}: {error} ({place})"
        raise RecipeError("plugins", text, "Mend it there.") from error


@cache
def core_kinds() -> dict[str, Kind]:
    """Name → kind of the project's own, in the order of the names.

    Raises:
        TypeError: a `kind.py` registers nothing, or a name that is taken.
    """
    kinds: dict[str, Kind] = {}
    for path in sorted([*ROOT.glob("pipelines/*/kind.py"), ROOT / "evaluation" / "kind.py"]):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        kind = getattr(importlib.import_module(module), "KIND", None)
        if not isinstance(kind, Kind) or kind.name in kinds:
            raise TypeError(f"{module}: KIND must be an instance of Kind whose name no other package has")
        kinds[kind.name] = kind
    return dict(sorted(kinds.items()))


def kind_of_run(name: str, makes: str = "") -> Kind:
    """The kind of a stage that has run; where no plug-in of this process brings it, one of which only this and what it `makes` is known."""
    known = stage_kinds().get(name)
    if known is None:
        known = Kind()
        known.name, known.makes = name, makes
    return known


def kind_named(name: str) -> Kind:
    """The kind of a name.

    Raises:
        RecipeError: there is none.
    """
    if name not in stage_kinds():
        raise RecipeError(
            "kind", f"there is no kind of stage called {name[:80]!r}", did_you_mean(name[:80], stage_kinds())
        )
    return stage_kinds()[name]
