"""Questions about a recipe that need heavy imports or other people's code, answered in a process of its own.

`python -m tasks.preflight.probe QUESTIONS ANSWERS [PLUGIN...]` reads one question a line and writes one answer a line, at once, so that
the asker knows which question a crash or a hang belongs to. An answer is `{"problem": text}`, with its records as
`problems` where it has any, or what is known.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipelines.base import owner, plugins
from pipelines.base.errors import UserError
from pipelines.base.project import python
from tasks import prestart, process
from tasks.preflight import data as preflight_data
from tasks.preflight import estimate
from tasks.preflight import rules as preflight_rules
from tasks.preflight.memory import Shape

SECONDS = 120.0
"""For one question; the slowest that is meant to pass, lm-eval's whole index, took 8 s on two cores."""

TEMPLATE = ("chat_template", "chat_template_kwargs", "chat_template_date")
"""Fields of the recipe's model section that say how prompts are rendered."""


def ask(questions: list[dict[str, Any]], seconds: float = SECONDS) -> list[dict[str, Any]]:
    """Answers in order. A question that ends or hangs its process is answered by a problem that says so."""
    return Asking(questions, seconds).result()


class Asking:
    """Questions that are being answered meanwhile; whoever does not wait for the `result` must `close` it."""

    def __init__(self, questions: list[dict[str, Any]], seconds: float = SECONDS) -> None:
        self.questions, self.seconds = questions, seconds
        self.answers: list[dict[str, Any]] = []
        self._process: process.Child | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._start()

    def result(self) -> list[dict[str, Any]]:
        """Answers in order."""
        try:
            while len(self.answers) < len(self.questions):
                problem = self._wait()
                if len(self.answers) < len(self.questions):
                    self.answers.append({"problem": problem})
                    self._start()
        finally:
            self.close()
        return self.answers

    def close(self) -> None:
        """Leave no process and no folder behind."""
        if self._process is not None:
            process.end(self._process, 0.0)
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        """Ask what is not answered yet in a new process."""
        unanswered = self.questions[len(self.answers) :]
        if not unanswered:
            return
        self._folder = tempfile.TemporaryDirectory()
        asked, answered = Path(self._folder.name) / "questions", Path(self._folder.name) / "answers"
        asked.write_text("".join(json.dumps(q) + "\n" for q in unanswered))
        answered.touch()
        arguments = ["tasks.preflight.probe", str(asked), str(answered), *plugins.named()]
        with open(os.devnull, "wb") as nothing, open(Path(self._folder.name) / "errors", "wb") as errors:
            self._process = prestart.fork(arguments, nothing, errors) or subprocess.Popen(
                python(*arguments), env={**os.environ, owner.PARENT: str(os.getpid())}, stdin=subprocess.DEVNULL, stdout=nothing,
                stderr=errors, start_new_session=True,
            )  # fmt: skip

    def _wait(self) -> str:
        """Take the answers of the process that runs; returns how it ended."""
        assert self._process is not None and self._folder is not None
        seconds = self.seconds * (len(self.questions) - len(self.answers))
        try:
            self._process.wait(seconds)
            errors = (Path(self._folder.name) / "errors").read_bytes()
            last = (errors.decode(errors="replace").strip().splitlines() or [""])[-1][:200]
            ending = f"ended its process with code {self._process.returncode}" + (f" ({last})" if last else "")
        except subprocess.TimeoutExpired:
            ending = f"did not answer within {seconds:.0f} s"
        lines = (Path(self._folder.name) / "answers").read_text().splitlines(keepends=True)
        self.answers += [json.loads(line) for line in lines if line.endswith("\n")]
        self.close()
        return ending


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What is known, or the problem."""
    try:
        return ANSWERS[question["ask"]](question)
    except UserError as error:
        return preflight_data.refusal(error.moved("evaluate.tasks", ""))
    except BaseException as error:  # other people's code: SystemExit too is an answer
        text = " ".join(str(error).split())[:300]
        return {"problem": f"{type(error).__name__}: {text}".rstrip(": ")}


def _folder(question: dict[str, Any]) -> dict[str, Any]:
    """A local model folder: its config loads, its tokenizer renders a conversation."""
    from transformers import AutoConfig

    from pipelines.contract.model_settings import Model
    from pipelines.engine import models

    model = Model.model_validate({k: question[k] for k in ("path", *TEMPLATE, "trust_remote_code")})
    _render(models.load_tokenizer(question["path"], model))
    config = AutoConfig.from_pretrained(question["path"], trust_remote_code=model.trust_remote_code)
    parameters = estimate.parameters_of(question["path"])
    return {"positions": _positions(config), "shape": _shape(config.get_text_config(), parameters)}


def _config(question: dict[str, Any]) -> dict[str, Any]:
    """A configuration alone: built without memory, so that its parameters can be counted."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    from pipelines.engine import vision

    config = AutoConfig.from_pretrained(question["path"])
    with torch.device("meta"):
        if vision.sees(config) and vision.refusal(config.model_type) is None:
            model = AutoModelForImageTextToText.from_config(config)
        else:
            model = AutoModelForCausalLM.from_config(config.get_text_config())
    return {"shape": _shape(config.get_text_config(), sum(p.numel() for p in model.parameters()))}


def _gguf(question: dict[str, Any]) -> dict[str, Any]:
    """A GGUF file, by its header; nothing is converted yet."""
    from pipelines.data.template import habits_of
    from pipelines.engine import gguf_models, models

    file = Path(question["path"])
    header = gguf_models.check_header(file)
    text = header["chat_template"]
    if question["chat_template"] is not None:
        text = models.template_text(question["chat_template"])
    elif not text:
        return {"problem": f"{file} has no chat template; give one in the recipe (model.chat_template)"}
    habits_of(text, text, (("bos_token", ""), ("eos_token", "")), str(file))
    sizes, parameters = SimpleNamespace(**header["sizes"]), header["parameters"]
    shape = _shape(sizes, parameters) if "intermediate_size" in header["sizes"] else None
    return {"positions": header["positions"], "parameters": parameters, "shape": shape}


def _fresh_model(question: dict[str, Any]) -> dict[str, Any]:
    """A fresh model: built without memory, so that its parameters can be counted."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    from pipelines.contract.model_settings import Fresh, Model, Vision
    from pipelines.engine import models

    tokenizer = models.train_tokenizer("char", 64, ["ab"])
    if question["chat_template"] is not None:
        tokenizer.chat_template = models.template_text(question["chat_template"])
    options = {name: question[name] for name in TEMPLATE if name != "chat_template"}
    models.set_template_options(tokenizer, Model.model_validate({"path": "fresh", **options}))
    _render(tokenizer)
    special = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = models.fresh_config(Fresh(architecture=question["architecture"], config=question["config"]), special)
    loader: Any = AutoModelForCausalLM
    if question["vision"] is not None:
        from pipelines.engine import vision

        tower = Vision.model_validate(question["vision"])
        vision.fresh_reader(tower, tokenizer)
        config, loader = vision.fresh_config(tower, config, tokenizer), AutoModelForImageTextToText
    with torch.device("meta"):
        model = loader.from_config(config)
        config.get_text_config().vocab_size = question["vocabulary"]
        full = loader.from_config(config)
    return {
        "positions": _positions(config),
        "parameters": sum(p.numel() for p in model.parameters()),
        "shape": _shape(config.get_text_config(), sum(p.numel() for p in full.parameters())),
    }


def _shape(config: Any, parameters: int | None) -> dict[str, int] | None:
    """Sizes of a text configuration for the memory planner; None where parameters cannot be counted or fields are missing."""
    with contextlib.suppress(AttributeError, TypeError):
        return asdict(Shape.of(config, parameters)) if parameters else None
    return None


def _render(tokenizer: Any) -> None:
    from pipelines.data.chat import render_prompt

    if not render_prompt(tokenizer, [{"role": "user", "content": "2 + 2?"}]):
        raise UserError("the chat template renders a conversation to nothing")


def _positions(config: Any) -> int | None:
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def _problems(question: dict[str, Any]) -> dict[str, Any]:
    """A generator of problems: the task is known, its settings are taken, a first problem is made."""
    from pipelines.curate.sources import rows
    from pipelines.recipe.settings import Source

    source = Source.model_validate(
        {
            "kind": question["kind"],
            "task": question["task"],
            "size": 1,
            "seed": question["seed"],
            "config": question["config"],
        }
    )
    if next(iter(rows(source)), None) is None:
        return {"problem": f"{question['task']} makes no problem with these settings"}
    return {}


def _benchmarks(question: dict[str, Any]) -> dict[str, Any]:
    """lm-eval knows the task, and the files of one of the recipe's own folder have no fault."""
    from evaluation import benchmark_files, harness
    from pipelines.recipe.settings import Evaluate

    settings = Evaluate.model_validate({"tasks": [question["name"]], "include": question["include"]})
    if question["own"]:
        benchmark_files.require(Path(question["include"]), question["name"])
    manager = harness.manager(settings)
    asking = harness.likelihood_tasks(manager.task_index, question["name"]) if question.get("endpoints") else iter(())
    if (likely := next(asking, None)) is not None:
        raise UserError(f"{likely} {benchmark_files.NEEDS_LIKELIHOODS}")
    showing = harness.image_tasks(manager.task_index, question["name"]) if question.get("text_only") else iter(())
    if (shown := next(showing, None)) is not None:
        raise UserError(f"{shown} asks about images, and the recipe's model reads text alone")
    if question["own"] and "custom_dataset" in (
        manager.task_index[question["name"]].cfg or {}
    ):  # else it may be on the hub
        _first_question(harness.load_task(manager, settings.tasks[0]), question["name"])
    return {}


def _rows(question: dict[str, Any]) -> dict[str, Any]:
    """Every row of a benchmark of ours can be asked."""
    from evaluation import harness
    from pipelines.recipe.settings import Evaluate

    settings = Evaluate.model_validate({"tasks": [{"name": question["name"], **question["options"]}]})
    _first_question(harness.load_task(harness.manager(settings), settings.tasks[0]), question["name"])
    return {}


def _first_question(tasks: dict[str, Any], name: str) -> None:
    """A benchmark's first question is rendered."""
    for task in tasks.values():
        first = next(iter(task.eval_docs), None)
        if first is None:
            raise UserError(f"{name} has no questions")
        task.doc_to_text(first)


def _function(question: dict[str, Any]) -> dict[str, Any]:
    from tasks.preflight import functions

    return functions.answer(question)


ANSWERS = {
    "function": _function,
    "folder": _folder,
    "gguf": _gguf,
    "config": _config,
    "fresh": _fresh_model,
    "problems": _problems,
    "benchmark": _benchmarks,
    "benchmark_rows": _rows,
    preflight_rules.ASK: preflight_rules.answer,
    preflight_data.ASK: preflight_data.answer,
}


def main(asked: str, answered: str, *named: str) -> None:
    """Answer a file of questions with the plug-ins of their recipe."""
    owner.bind_rank()
    os.environ.pop(owner.PARENT, None)
    plugins.activate(named)
    with open(answered, "a") as handle:
        for line in Path(asked).read_text().splitlines():
            handle.write(json.dumps(answer(json.loads(line))) + "\n")
            handle.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
