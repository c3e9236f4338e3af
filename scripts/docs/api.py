"""docs/api.md: the Python API, from the docstrings of `whetstone_rlvr`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import whetstone_rlvr

INTRODUCTION = '''# Python API

Generated from the code by `make docs`; do not edit.

{summary}

Two notebooks use it: [a first run](notebooks/first_run.ipynb), and [a method of your own](notebooks/method_of_your_own.ipynb).

A recipe is a YAML file, a dict of its fields, or typed objects, whose fields are those of [settings](settings.md). All examples of this
page follow each other:

```python
>>> import whetstone_rlvr as whetstone
>>> from whetstone_rlvr.settings import *
>>> model = Model(
...     fresh=Fresh(architecture="llama", config={{
...         "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
...         "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
...     }}),
...     tokenizer=Tokenizer(kind="char", vocab_size=128),
... )
>>> palindromes = Source(
...     kind="reasoning_gym", task="palindrome_generation", size=800, seed=3, config={{"min_length": 3, "max_length": 4}},
...     prompt_template="palindrome {{metadata.letters}}",
... )
>>> toy = whetstone.Recipe(
...     name="toy", threads=1, model=model,
...     curate=Curate(sources=[palindromes], splits={{"train": 0.9, "heldout": 0.1}}),
...     sft=Sft(steps=12, max_length=64, tokens_per_step=512, micro_batch_tokens=512, optimizer=Optimizer(learning_rate=0.003)),
...     rlvr=Rlvr(steps=4, prompts=4, group_size=4, sampling=Sampling(max_tokens=8)),
...     evaluate=Evaluate(tasks=[Task(name="palindromes", limit=6, samples=2)]),
... )
```

An object that cannot be raises pydantic's `ValidationError` where it is built; everything else that a person can fix is a `UserError`.
'''
SECTIONS = ("Args", "Returns", "Raises")
ORDER = ("recipe", "plan", "run", "find_run", "verify", "sample", "compare", "methods")
CLASSES = {"plan": "Plan", "run": "Run"}
"""Function → what it returns."""


def markdown() -> str:
    """The text of the page."""
    summary = text(inspect.getdoc(whetstone_rlvr) or "")
    lines = [INTRODUCTION.format(summary=summary)]
    for name in ORDER:
        lines += _entry(name, getattr(whetstone_rlvr, name))
        if name in CLASSES:
            lines += _class(CLASSES[name])
    lines += ["## Errors", "", text(inspect.getdoc(whetstone_rlvr.UserError) or "").split("\n\n")[0] + " Each of its `problems` has a",
              "`field`, a `problem` and a `fix`:", "", ERRORS]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


ERRORS = """```python
>>> try:
...     whetstone.recipe(toy, set={"rlvr.stepz": 3})
... except whetstone.UserError as error:
...     problem = error.problems[0]
>>> problem.field, problem.fix
('rlvr.stepz', "Did you mean 'steps'?")
```"""


def _class(name: str) -> list[str]:
    """What a class has: its summary, then a line for each attribute and method."""
    cls = getattr(whetstone_rlvr, name)
    lines = [f"### {name}", "", text(inspect.getdoc(cls) or ""), ""]
    for member, value in vars(cls).items():
        if member.startswith("_") or not (isinstance(value, property) or inspect.isfunction(value)):
            continue
        call = f"{member}{_signature(value)}" if inspect.isfunction(value) else member
        lines.append(f"- `{call}`: {_paragraphs(value)}")
    return [*lines, ""]


def _paragraphs(value: Any) -> str:
    """The summary of an attribute in one line, its arguments left to their names."""
    return " ".join(re.split(r"\n\n(?:Args|Raises|Returns):", inspect.getdoc(value) or "")[0].split())


def _entry(name: str, function: Callable[..., Any]) -> list[str]:
    return [f"## {name}", "", "```text", f"{name}{_signature(function)}", "```", "", text(inspect.getdoc(function) or ""), ""]


def _signature(function: Callable[..., Any]) -> str:
    """The parameters without their types, which the text says in words.

    >>> _signature(whetstone_rlvr.recipe), _signature(whetstone_rlvr.Run.metrics)
    ('(source, set=None)', '(stage=None)')
    """
    signature = inspect.signature(function)
    kept = [p.replace(annotation=p.empty) for name, p in signature.parameters.items() if name != "self"]
    return str(signature.replace(parameters=kept, return_annotation=signature.empty))


def text(doc: str) -> str:
    """A docstring as Markdown: its sections as lists, its examples as blocks.

    >>> print(text("Add.\\n\\nArgs:\\n    a: one\\n        number."))
    Add.
    <BLANKLINE>
    - `a`: one number.
    """
    parts = []
    for block in doc.split("\n\n"):
        heading, _, rest = block.partition(":\n")
        if block.startswith(">>>"):
            parts.append(f"```python\n{block}\n```")
        elif heading in SECTIONS:
            entries = re.sub(r"\n {8,}", " ", rest).splitlines() if heading != "Returns" else [" ".join(rest.split())]
            parts.append("\n".join(_item(heading, entry.strip()) for entry in entries))
        else:
            parts.append(block)
    return "\n\n".join(parts)


def _item(heading: str, entry: str) -> str:
    name, _, about = entry.partition(": ")
    if heading == "Returns":
        return f"Returns {entry}"
    return f"- `{name}`: {about}" if heading == "Args" else f"- Raises `{name}`: {about}"
