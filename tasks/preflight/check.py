"""Everything that can be known before the first stage: one report with all problems, and how to fix each.

Only the stages that will run are looked at. What needs torch or other people's code is asked in a process of its own
(`tasks/preflight/probe.py`), and good answers are remembered until something that they depend on changes.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from evaluation import named_files
from pipelines.base.distribution import install_hint
from pipelines.base.errors import ModelError, Problem, RecipeError, did_you_mean
from pipelines.base.files import digest, free_bytes
from pipelines.base.secrets import redact
from pipelines.contract.sampling import Sampling
from pipelines.recipe.check import check_base, check_stage
from pipelines.recipe.compaction import rows_beyond
from pipelines.recipe.model_path import gguf_of, is_stage_name
from pipelines.recipe.read import Recipe
from pipelines.recipe.settings import Curate, Evaluate, Rlvr
from pipelines.recipe.stage_checks import is_quantized, launched, processes, samplers
from pipelines.recipe.stage_kind import DATA, Node
from pipelines.recipe.vision_checks import text_only
from tasks import environment, keys, machine
from tasks.preflight import corpora as preflight_corpora
from tasks.preflight import data as preflight_data
from tasks.preflight import estimate, memory, probe
from tasks.preflight import rewards as preflight_rewards
from tasks.preflight import rules as preflight_rules
from tasks.preflight import sandbox as preflight_sandbox
from tasks.preflight.answers import Asked

FEWEST_INODES = 1000
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
Question = tuple[str, str, dict[str, Any]]
"""Field, fix, and what is asked of the process that has torch."""
_passed: set[tuple[str, str]] = set()


class NotReady(RecipeError):
    """The run would fail later."""

    def __init__(self, problems: Iterable[Problem] = ()) -> None:
        super().__init__(problems=problems)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems]
        return lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} problems", *lines])


def require(recipe: Recipe, stages: list[str]) -> None:
    """Stop now where the run would stop later.

    Args:
        stages: those that will run; reused ones are not looked at.

    Raises:
        NotReady: all that is wrong, a line each: field, problem, fix.
    """
    for error in require_each([(recipe, stages)]):
        if error is not None:
            raise error


def require_each(runs: list[tuple[Recipe, list[str]]]) -> Iterator[NotReady | None]:
    """`require` for many recipes, whose questions one process answers: for each in order what is wrong, or None."""
    looks = [None if passed(*run) else PreflightCheck(*run, asks=False) for run in runs]
    asked = Asked([question for look in looks if look is not None for question in look.asked_for])
    answers = iter(asked.answers() if any(looks) else [])
    for look in looks:
        error = None
        if look is not None:
            try:
                look.require([next(answers) for _ in look.asked_for])
            except NotReady as found:
                error = found
        yield error


def passed(recipe: Recipe, stages: list[str]) -> bool:
    """Whether this process has found nothing wrong with these stages before."""
    return all((_identity(recipe), stage) in _passed for stage in stages)


def _identity(recipe: Recipe) -> str:
    return digest(recipe.model_dump(mode="json"))


def summary_file(path: str | None, option: str = "--summary") -> None:
    """The file of `--summary`, or of another option, can be written.

    Raises:
        NotReady: its folder is missing, or it is a folder, or it may not be written.
    """
    if path is None:
        return
    file = Path(path)
    problem = ""
    try:
        if "\0" in path or not path.strip():
            problem = f"{path!r} is no file name"
        elif file.is_dir():
            problem = f"{path} is a folder"
        elif not file.parent.is_dir():
            problem = f"there is no folder {file.parent}"
        elif not os.access(file if file.exists() else file.parent, os.W_OK):
            problem = f"{path} may not be written"
    except OSError as error:
        problem = f"{path[:200]}: {error.strerror}"
    if problem:
        raise NotReady([Problem(option, problem, "Name a file in a folder that exists.")])


def examine(recipe: Recipe, stages: list[str]) -> list[Problem]:
    """All problems of the stages that will run."""
    return PreflightCheck(recipe, stages).problems()


class PreflightCheck:
    """A look at the stages that will run, in which another process answers questions while this one does something else.

    Whoever asks for no result must `close` it. Without `asks` somebody else asks what is `asked_for`, and hands the answers over.
    """

    def __init__(self, recipe: Recipe, stages: list[str], asks: bool = True) -> None:
        self.recipe, self.stages = recipe, stages
        self._problems: list[Problem] = []
        self._questions: list[Question] = []
        preflight_sandbox.choose(recipe)
        self._nodes = nodes = [node for node in recipe.nodes() if node.name in stages]
        if nodes:
            asking = {n.name: n for n in recipe.nodes() if n.kind.benchmark_texts is not None and _asks(n, nodes)}
            for node in dict.fromkeys([*(n.name for n in nodes), *asking]):
                self._problems += _look(recipe.node(node), self._questions)
            self._problems += _model(recipe, self._questions)
            self._problems += preflight_sandbox.problems(recipe, nodes)
            shared = any(getattr(node.settings, "dask", None) for node in nodes)
            if shared or recipe.tracking.mirror or recipe.gate is not None or recipe.launch is not None:
                from tasks.preflight import surroundings

                self._problems += surroundings.problems(recipe, stages)
        self._rules = preflight_rules.questions(nodes)
        self.asked_for = [question for *_, question in self._questions] + self._rules
        self._asked = Asked(self.asked_for if asks else [])

    @property
    def wait_is_short(self) -> bool:
        """Whether there is no reason to do something else first: nothing is being asked, or the run will be refused anyway."""
        return bool(self._problems) or not self._asked.waits

    def close(self) -> None:
        """Ask no more."""
        self._asked.close()

    def require(self, answers: list[dict[str, Any]] | None = None) -> None:
        """Stop now where the run would stop later.

        Args:
            answers: what somebody else was told, in the order of `asked_for`.

        Raises:
            NotReady: all that is wrong.
        """
        problems = self.problems(answers)
        if problems:
            raise NotReady(problems)
        _passed.update((_identity(self.recipe), stage) for stage in self.stages)

    def problems(self, answers: list[dict[str, Any]] | None = None) -> list[Problem]:
        """All that is wrong; `answers` as for `require`."""
        problems, recipe, nodes = list(self._problems), self.recipe, self._nodes
        if not nodes:
            return []
        answers = self._asked.answers() if answers is None else answers
        known: dict[str, dict[str, Any]] = {}
        for (field, fix, _), answer in zip(self._questions, answers, strict=False):
            problems += problems_in(answer, field, fix)
            known[field] = answer
        problems += preflight_data.problems(nodes, known)
        problems += _limits(recipe, nodes, known)
        problems += _room(recipe, nodes, known)
        told = zip(self._rules, answers[len(self._questions) :], strict=True)
        passed_rules = {question["stage"] for question, answer in told if answer.get("obeyed")}
        rules = [lambda node=node: check_stage(node) for node in nodes if node.name not in passed_rules]
        for rule in reversed([*rules, lambda: check_base(recipe)]):
            try:
                rule()
            except RecipeError as error:
                fields = {p.field for p in problems}
                problems = [p for p in error.problems if p.field not in fields] + problems
        return problems


def problems_in(answer: dict[str, Any], field: str, fix: str) -> Iterator[Problem]:
    """What an answer says is wrong: with the field that was asked about, a part of it, or its neighbour in a section.

    Args:
        fix: advice where the answer has none.
    """
    told = [Problem.of_record(record) for record in answer.get("problems", ())]
    if answer.get("problem") and not told:
        told = [Problem("", answer["problem"])]
    for each in told:
        name, text = field, each.problem
        if not each.field or each.field.startswith("."):
            name = f"{field}{each.field}"
        elif each.field.partition(".")[0] == field.partition(".")[0]:
            name = each.field if each.field.count(".") >= field.count(".") else field
        else:  # a file that belongs to it
            text = f"{each.field}: {text}"
        yield Problem(name, redact(text), redact(each.fix or fix), each.reported)


def _asks(node: Node, chosen: list[Node]) -> bool:
    """Whether the questions of an evaluation are read: it will run, or data will be held against them."""
    return any(n.name == node.name or getattr(n.settings, "decontaminate", None) is not None for n in chosen)


def _look(node: Node, questions: list[Question]) -> Iterator[Problem]:
    """What is particular to a stage's settings."""
    yield from preflight_corpora.problems(node)
    for file, clash in keys.clashes(node.recipe, node.name).items():
        yield Problem(node.name, f"{os.path.relpath(file)} {clash}")
    if isinstance(node.settings, Curate):
        yield from _curate(node.name, node.settings, questions)
    elif isinstance(node.settings, Rlvr):
        yield from _rlvr(node, node.settings, questions)
    elif isinstance(node.settings, Evaluate):
        yield from _evaluate(node.name, node.settings, text_only(node.recipe.model), questions)
    if not launched(node):  # this machine says nothing of another one
        yield from _processes(node)
    yield from node.kind.problems(node)
    if node.asks_endpoints:
        from tasks.preflight import endpoints

        yield from endpoints.problems(node)
    for files in node.kind.reads(node).models.values():
        if files.place[0] == node.kind.name and node.kind.makes != DATA:
            yield from _hub(".".join(map(str, (node.name, *files.place[1:]))), str(files.path), "model")
    for field, sampler in () if launched(node) else samplers(node):
        from tasks.preflight import server

        yield from server.problems(field, sampler, processes(node))


def shape_of(recipe: Recipe, config: str | None = None) -> memory.Shape | None:
    """Sizes of the recipe's model, or of `config`, a config.json or its folder; None where they cannot be read, such as before a download.

    Raises:
        NotReady: the model cannot be loaded.
    """
    questions: list[Question] = [("--config", "", {"ask": "config", "path": config})] if config else []
    problems = [] if config else list(_model(recipe, questions))
    answers = Asked([question for *_, question in questions]).answers()
    problems += [p for (field, fix, _), a in zip(questions, answers, strict=True) for p in problems_in(a, field, fix)]
    if problems:
        raise NotReady(problems)
    shape = answers and answers[0].get("shape")
    return memory.Shape(**shape) if shape else None


def _curate(stage: str, curate: Curate, questions: list[Question]) -> Iterator[Problem]:
    for number, source in enumerate(curate.sources):
        field = f"{stage}.sources.{number}"
        faults = []
        if source.elsewhere:
            faults = list(preflight_data.fetched_problems(field, source))
        elif source.kind == "file":
            faults = list(preflight_data.file_problems(f"{field}.path", str(source.path)))
        elif source.kind == "hub":
            faults = list(_hub(f"{field}.path", str(source.path), "dataset"))
        yield from faults
        ask = preflight_data.question(source)
        if ask is not None and not faults:
            questions.append((field, "", ask))
    if curate.difficulty is not None and not is_stage_name(curate.difficulty.model):
        yield from _hub(f"{stage}.difficulty.model", curate.difficulty.model, "model")


def _hub(field: str, name: str, what: str) -> Iterator[Problem]:
    """A local folder that is there, for models also a GGUF file, or what can be a name on the hub."""
    if what == "model":
        try:
            file = gguf_of(name)
        except ModelError as error:
            yield from error.moved("model.path", field).problems
            return
        if file is not None:
            if importlib.util.find_spec("gguf") is None:
                yield Problem(
                    field, f"{name} is a GGUF file, and the package gguf is missing", f"Run: {install_hint('gguf')}"
                )
            elif not os.access(file, os.R_OK):
                yield Problem(field, f"{file} may not be read", f"Run: chmod u+r {file}")
            return
    local = Path(name).expanduser()
    if name.startswith(("/", ".", "~")):
        if not local.is_dir():
            yield Problem(
                field, f"there is no folder {name}", f"Give a {what} folder or a hub name such as owner/name."
            )
    elif not local.is_dir() and not _HUB_NAME.fullmatch(name):
        yield Problem(field, f"{name!r} is neither a folder nor a hub name", "Hub names are written owner/name.")


def _model(recipe: Recipe, questions: list[Question]) -> Iterator[Problem]:
    model = recipe.model
    template = model.chat_template
    render = {name: getattr(model, name) for name in probe.TEMPLATE}
    if template is not None and "{" not in template and not Path(template).is_file():
        yield Problem("model.chat_template", f"{template[:200]} is neither Jinja text nor a file", "Give one of them.")
    if model.attention == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        yield Problem("model.attention", "flash_attention_2 needs the package flash_attn", "Use attention: auto.")
    lora = [node.name for node in recipe.nodes() if getattr(node.settings, "lora", None) is not None]
    if lora and importlib.util.find_spec("peft") is None:
        yield Problem(f"{lora[0]}.lora", "adapters need the package peft", "pip install peft")
    quantized = [node.name for node in recipe.nodes() if is_quantized(node.settings)]
    if quantized and importlib.util.find_spec("bitsandbytes") is None:
        fix = f"Run: {install_hint('qlora')}, or leave it out."
        yield Problem(
            f"{quantized[0]}.lora.load_in_4bit", "it needs the package bitsandbytes, which is not installed", fix
        )
    if model.fresh is not None:
        ask = {
            "ask": "fresh",
            "architecture": model.fresh.architecture,
            "config": model.fresh.config,
            "vision": model.fresh.vision and model.fresh.vision.model_dump(),
            "vocabulary": model.tokenizer.vocab_size,
            **render,
        }
        questions.append(("model.fresh", "", ask))
        return
    path = str(model.path)
    hub = list(_hub("model.path", path, "model"))
    yield from hub
    if hub:
        return
    local = gguf_of(path) or Path(path).expanduser()
    if not local.exists():
        from tasks.preflight import hub_cache

        local = hub_cache.downloaded(path, model.revision) or local
    if local.exists():
        about = {"path": str(local), **render, "trust_remote_code": model.trust_remote_code}
        questions.append(("model.path", "", {"ask": "folder" if local.is_dir() else "gguf", **about}))


def _rlvr(node: Node, rl: Rlvr, questions: list[Question]) -> Iterator[Problem]:
    questions += preflight_rewards.questions(node, rl)
    yield from preflight_rewards.problems(node.name, rl)


def _processes(node: Node) -> Iterator[Problem]:
    wanted, devices = processes(node), len(machine.gpu_bytes()) or machine.cores()
    if wanted > devices:
        kind = "GPUs" if machine.gpu_bytes() else "cores"
        yield Problem(
            f"{node.name}.{node.kind.processes_field}",
            f"{wanted} processes on {devices} {kind}",
            f"Use at most {devices}.",
        )


def _evaluate(stage: str, evaluate: Evaluate, blind: bool, questions: list[Question]) -> Iterator[Problem]:
    from evaluation.harness import BENCHMARKS, own_tasks

    include = evaluate.include
    known, own = set(own_tasks(BENCHMARKS)), set()
    if include is not None:
        if not Path(include).is_dir():
            yield Problem(f"{stage}.include", f"there is no folder {include}", "Give a folder with lm-eval task YAMLs.")
            include = None
        else:
            own = set(own_tasks(Path(include)))
    for number, task in enumerate(evaluate.tasks):
        field = f"{stage}.tasks.{number}"
        if task.environment is None and (lacking := named_files.missing(task.asks, task.data)) is not None:
            yield Problem(field, *lacking)
        if task.environment is not None:
            played = task.environment
            ask: dict[str, Any] = {"ask": "problems", "kind": "environment", "task": played.task}
            ask |= {"config": played.config, "seed": played.seed}
            questions.append((f"{field}.environment", "", ask))
        elif task.asks in own or task.asks not in known:
            near = did_you_mean(task.asks, known | own, lists=False)
            fix = near or f"Ours are: {', '.join(sorted(known | own))}."
            ask = {"ask": "benchmark", "name": task.asks, "include": include, "own": task.asks in own}
            ask |= {"endpoints": True} if evaluate.models else {"text_only": True} if blind else {}
            questions.append((field, "" if task.asks in own else fix, ask))
        elif task.rows:
            paths = [str(path) for path in named_files.files_of(task.asks, task.data)] if task.data else []
            questions.append(
                (field, "", {"ask": "benchmark_rows", "name": task.asks, "options": task.rows, "files": paths})
            )


def _limits(recipe: Recipe, nodes: list[Node], known: dict[str, dict[str, Any]]) -> Iterator[Problem]:
    """What is to be generated or read has a place in the model."""
    positions = (known.get("model.fresh") or known.get("model.path") or {}).get("positions")
    if positions is None:
        return
    where = "model.fresh.config.max_position_embeddings" if recipe.model.fresh else "the model's configuration"
    alternative = ", or give the model more positions" if recipe.model.fresh else ""
    limits: dict[str, int] = {}
    for node in nodes:
        length = getattr(node.settings, "max_length", None)
        if length is not None and length > positions:
            text = f"{length} tokens do not fit the {positions} positions of {where}"
            yield Problem(f"{node.name}.max_length", text, f"Use at most {positions}{alternative}.")
        yield from (Problem(*each) for each in rows_beyond(node, positions))
        if isinstance(getattr(node.settings, "sampling", None), Sampling) and not node.asks_endpoints:
            limits[f"{node.name}.sampling.max_tokens"] = node.settings.sampling.max_tokens
            for source, own in getattr(node.settings, "by_source", {}).items():
                limits[f"{node.name}.by_source.{source}.max_tokens"] = own.max_tokens or 0
        for number, task in enumerate(node.settings.tasks if isinstance(node.settings, Evaluate) else []):
            asked = task.sampling.get("max_gen_toks")
            if isinstance(asked, int):
                limits[f"{node.name}.tasks.{number}.sampling.max_gen_toks"] = asked
            if task.environment is not None:
                limits[f"{node.name}.tasks.{number}.environment.max_tokens"] = task.environment.max_tokens
    for field, tokens in limits.items():
        if tokens >= positions:
            text = f"{tokens} tokens and a prompt do not fit the {positions} positions of {where}"
            yield Problem(field, text, f"Use less than {positions}{alternative}.")


def _room(recipe: Recipe, nodes: list[Node], known: dict[str, dict[str, Any]]) -> Iterator[Problem]:
    """Disk, inodes, memory: refused only where it is certain that they do not suffice."""
    home = environment.home()
    base = machine.existing(home)
    if not base.is_dir() or not os.access(base, os.W_OK):
        yield Problem("WHETSTONE_HOME", f"{base} may not be written", "Set WHETSTONE_HOME to a folder of yours.")
        return
    inodes = machine.free_inodes(home)
    if inodes is not None and inodes < FEWEST_INODES:
        yield Problem(
            "WHETSTONE_HOME", f"the disk of {home} can hold {inodes} more files", "Delete some, or set it elsewhere."
        )
    base_known = known.get("model.fresh") or known.get("model.path") or {}
    parameters = base_known.get("parameters") or estimate.parameters_of(recipe.model.path)
    if not parameters:
        return
    needed, free = estimate.disk(nodes, parameters), free_bytes(base) + estimate.already(home, nodes)
    if needed > free:
        yield Problem(
            "WHETSTONE_HOME",
            f"checkpoints and models take at least {machine.gigabytes(needed)}, and {machine.gigabytes(free)} are free at {home}",
            "Free space, lower commit.keep_last, or set WHETSTONE_HOME elsewhere.",
        )
    shape = base_known.get("shape")
    for node in nodes:
        if memory.known(node) and shape and not launched(node):
            yield from _memory(node, memory.Shape(**shape))


def _memory(node: Node, shape: memory.Shape) -> Iterator[Problem]:
    """What no setting gets below must fit; `whetstone plan --memory` says what is needed beyond it."""
    stage, section = node.name, node.settings
    gpus = machine.gpu_bytes()[: getattr(section, "processes", 1)]
    bytes_available, where = (sum(gpus), f"{len(gpus)} GPUs") if gpus else (machine.memory_bytes(), "this machine")
    bytes_needed = memory.least(memory.of_stage(node, shape), shape) * getattr(section, "processes", 1)
    if bytes_needed > bytes_available:
        trains = node.kind.trains
        yield Problem(
            f"{stage}.lora" if trains and section.lora is None else "model",
            f"{shape.parameters / 1e9:.2f} billion parameters take at least {machine.gigabytes(bytes_needed)} to "
            f"{'train' if trains else 'sample'}, and {where} has {machine.gigabytes(bytes_available)}",
            f"{'Train adapters (lora: {}), use' if trains else 'Use'} a smaller model, or more GPUs; whetstone plan --memory "
            "lists what takes it.",
        )
