"""Tasks for the shell, with their hidden tests and an expert's commands: files to change, and small repositories with a planted bug."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipelines.base.errors import RecipeError, did_you_mean
from pipelines.environments._answered import Part, belongs

KINDS = ("files", "repair")
WORDS = (
    "boat",
    "cake",
    "door",
    "fish",
    "gold",
    "hand",
    "iron",
    "lamp",
    "milk",
    "nest",
    "rope",
    "salt",
    "tree",
    "wind",
    "wolf",
    "yard",
)
SUFFIXES = ("txt", "md", "log")
Folder = dict[str, str]


@dataclass(frozen=True)
class Task:
    """What the policy is told, the folder that it begins with, what is tested, and what an expert says."""

    kind: str
    text: str
    files: Folder
    tests: list[dict[str, str]]
    walk: list[str]


class Drawer:
    """Tasks in an order that depends on the seed.

    Args:
        errors: the share of experts who do something else than they were told.

    Raises:
        RecipeError: a kind is unknown.
    """

    def __init__(self, seed: int, kinds: Sequence[str], part: Part, errors: float) -> None:
        for kind in kinds:
            if kind not in KINDS:
                raise RecipeError(f"environment shell: no kind {kind!r}", fix=did_you_mean(kind, KINDS))
        self.draw = random.Random(f"shell {seed}")
        self.choices = random.Random(f"shell {seed} choices")
        self.kinds, self.part, self.errors = list(kinds), part, errors

    def next(self) -> Task:
        """The next task of the wanted kinds and part."""
        while True:
            kind = self.draw.choice(self.kinds)
            errs = self.choices.random() < self.errors
            task = (_files_task if kind == "files" else _repair_task)(self.draw, self.choices if errs else None)
            if belongs(json.dumps([task.text, task.files]), self.part):
                return task


class Errand(NamedTuple):
    """A way to change files: how it is asked for, the command, commands that do something else, and what is to come of it."""

    asks: str
    command: str
    others: tuple[str, ...]
    does: Callable[[Folder, Mapping[str, str]], Folder]
    """The folder and the names in the command → the folder as it is to be."""


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _written(of: Callable[[str, Mapping[str, str]], str]) -> Callable[[Folder, Mapping[str, str]], Folder]:
    """Of an errand that makes the file `b` from the text of the file `a`."""
    return lambda files, names: {**files, names["b"]: of(files[names["a"]], names)}


def _without(files: Folder, names: Mapping[str, str]) -> Folder:
    return {path: text for path, text in files.items() if not path.endswith(f".{names['suffix']}")}


def _moved(files: Folder, names: Mapping[str, str]) -> Folder:
    return {names["b"] if path == names["a"] else path: text for path, text in files.items()}


def _replaced(files: Folder, names: Mapping[str, str]) -> Folder:
    return {**files, names["a"]: files[names["a"]].replace(names["x"], names["y"])}


ERRANDS = (
    Errand("write the number of lines of {a} to {b}", "wc -l < {a} > {b}", ("wc -w < {a} > {b}", "wc -c < {a} > {b}", "cat {a} > {b}"),
           _written(lambda text, _: f"{text.count(chr(10))}\n")),
    Errand("write the lines of {a} with {x} to {b}", "grep {x} {a} > {b}", ("grep -v {x} {a} > {b}", "grep -c {x} {a} > {b}"),
           _written(lambda text, names: "".join(line for line in _lines(text) if names["x"] in line))),
    Errand("write the lines of {a} without {x} to {b}", "grep -v {x} {a} > {b}", ("grep {x} {a} > {b}", "grep -vc {x} {a} > {b}"),
           _written(lambda text, names: "".join(line for line in _lines(text) if names["x"] not in line))),
    Errand("sort {a} into {b}", "sort {a} > {b}", ("sort -r {a} > {b}", "cat {a} > {b}", "tac {a} > {b}"),
           _written(lambda text, _: "".join(sorted(_lines(text))))),
    Errand("write the lines of {a} to {b}, last line first", "tac {a} > {b}", ("sort -r {a} > {b}", "rev {a} > {b}"),
           _written(lambda text, _: "".join(_lines(text)[::-1]))),
    Errand("write the first two lines of {a} to {b}", "head -n 2 {a} > {b}", ("tail -n 2 {a} > {b}", "head -n 1 {a} > {b}"),
           _written(lambda text, _: "".join(_lines(text)[:2]))),
    Errand("write the last line of {a} to {b}", "tail -n 1 {a} > {b}", ("tail -n 2 {a} > {b}", "head -n 1 {a} > {b}"),
           _written(lambda text, _: _lines(text)[-1])),
    Errand("copy {a} to {b}", "cp {a} {b}", ("mv {a} {b}", "sort {a} > {b}"), _written(lambda text, _: text)),
    Errand("rename {a} to {b}", "mv {a} {b}", ("cp {a} {b}", "rm {a}"), _moved),
    Errand("delete every .{suffix} file", "rm *.{suffix}", ("rm *", "ls *.{suffix}"), _without),
    Errand("replace {x} by {y} in {a}", "sed -i s/{x}/{y}/ {a}", ("sed -i s/{y}/{x}/ {a}", "sed s/{x}/{y}/ {a}", "sed -i /{x}/d {a}"),
           _replaced),
)  # fmt: skip


def _files_task(draw: random.Random, errs: random.Random | None) -> Task:
    errand = draw.choice(ERRANDS)
    *stems, new = draw.sample(WORDS, 4)
    files = {f"{stem}.{draw.choice(SUFFIXES)}": _text(draw) for stem in stems}
    chosen = draw.choice(list(files))
    inside = files[chosen].split()
    others = [word for word in WORDS if word not in inside]
    names = {
        "a": chosen,
        "b": f"{new}.{draw.choice(SUFFIXES)}",
        "suffix": chosen.rpartition(".")[2],
        "x": draw.choice(inside),
        "y": draw.choice(others),
    }
    after = errand.does(files, names)
    command = errs.choice(errand.others) if errs else errand.command
    tests = [{"run": "find * -type f | sort", "expect": "\n".join(sorted(after))}]
    if after:
        listed = sorted(after)
        tests.append({"run": f"cat {shlex.join(listed)}", "expect": "".join(after[path] for path in listed)})
    return Task("files", errand.asks.format(**names), files, tests, [f"{command.format(**names)}\nsubmit"])


def _text(draw: random.Random) -> str:
    """Three to five lines of one or two words."""
    words = draw.sample(WORDS, 10)
    return "".join(f"{' '.join(words[2 * n : 2 * n + draw.choice((1, 2))])}\n" for n in range(draw.randint(3, 5)))


class Function(NamedTuple):
    """A function of a module: its parameters, what it returns, bugs, and arguments that tell them apart."""

    name: str
    parameters: str
    returns: str
    bugs: tuple[str, ...]
    arguments: tuple[tuple[Any, ...], ...]

    def value(self, expression: str, arguments: tuple[Any, ...]) -> str:
        """What it returns with one of its expressions, as it is printed; the name of an error that it raises."""
        try:
            return repr(eval(f"lambda {self.parameters}: {expression}", {})(*arguments))
        except Exception as error:
            return type(error).__name__

    def call(self, arguments: tuple[Any, ...]) -> str:
        """As it is written."""
        return f"{self.name}({', '.join(map(repr, arguments))})"


_PAIRS, _LISTS = ((2, 3), (5, 4), (7, 1)), (([3, 1, 5],), ([2, 8],), ([6, 4, 4, 7],))
_TEXTS, _INTEGERS = (("one two",), ("Ab c d",), ("xyz",)), ((3,), (4,), (7,))
MODULES: dict[str, tuple[Function, ...]] = {
    "shapes": (
        Function("area", "w, h", "w * h", ("w + h", "w - h", "h ** w"), _PAIRS),
        Function("perimeter", "w, h", "2 * (w + h)", ("2 * w + h", "w + h", "2 * (w - h)"), _PAIRS),
        Function("volume", "w, h, d", "w * h * d", ("w * h + d", "w + h + d", "w * h - d"), ((2, 3, 4), (5, 2, 3), (7, 1, 2))),
    ),
    "numbers": (
        Function("double", "n", "n * 2", ("n + 2", "n ** 2", "n / 2"), _INTEGERS),
        Function("square", "n", "n ** 2", ("n * 2", "n + 2", "2 ** n"), _INTEGERS),
        Function("is_even", "n", "n % 2 == 0", ("n % 2 == 1", "n / 2 == 0", "n % 2"), _INTEGERS),
        Function("is_odd", "n", "n % 2 == 1", ("n % 2 == 0", "n / 2 == 1", "n % 1 == 1"), _INTEGERS),
        Function("digits", "n", "len(str(n))", ("len(str(n)) + 1", "str(n)", "int(str(n))"), ((5,), (31,), (407,))),
    ),
    "lists": (
        Function("first", "v", "v[0]", ("v[1]", "v[-1]", "v[:1]"), _LISTS),
        Function("last", "v", "v[-1]", ("v[1]", "v[0]", "v[:-1]"), _LISTS),
        Function("largest", "v", "max(v)", ("min(v)", "len(v)", "sum(v)"), _LISTS),
        Function("smallest", "v", "min(v)", ("max(v)", "len(v)", "sum(v)"), _LISTS),
        Function("total", "v", "sum(v)", ("max(v)", "len(v)", "sum(v) - 1"), _LISTS),
        Function("mean", "v", "sum(v) / len(v)", ("sum(v)", "len(v) / sum(v)", "sum(v) * len(v)"), _LISTS),
    ),
    "texts": (
        Function("shout", "s", "s.upper()", ("s.lower()", "s.title()", "s.strip()"), _TEXTS),
        Function("whisper", "s", "s.lower()", ("s.upper()", "s.title()", "s[1:]"), (("One Two",), ("Ab C d",), ("XYZ",))),
        Function("backwards", "s", "s[::-1]", ("s[::1]", "s[:-1]", "s[-1]"), _TEXTS),
        Function("words", "s", "len(s.split())", ("len(s)", "s.split()", "len(s.split()) + 1"), _TEXTS),
    ),
    "money": (
        Function("change", "paid, price", "paid - price", ("price - paid", "paid + price", "paid * price"), _PAIRS),
        Function("cost", "price, count", "price * count", ("price + count", "price - count", "price / count"), _PAIRS),
        Function("share", "bill, people", "bill / people", ("bill * people", "bill - people", "people / bill"), _PAIRS),
        Function("saved", "before, after", "before - after", ("after - before", "before + after", "before / after"), _PAIRS),
    ),
}  # fmt: skip
"""Module → functions that a repository may have in it."""


def _module(functions: Sequence[Function], broken: Mapping[str, str], heading: bool, theme: str) -> str:
    heads = [f'"""Functions of {theme}."""\n\n\n'] if heading else []
    bodies = [f"def {f.name}({f.parameters}):\n    return {broken.get(f.name, f.returns)}\n" for f in functions]
    return "".join(heads) + "\n\n".join(bodies)


def _repair_task(draw: random.Random, errs: random.Random | None) -> Task:
    theme, other = draw.sample(list(MODULES), 2)
    functions, beside = draw.sample(MODULES[theme], 2), draw.sample(MODULES[other], 2)
    function = draw.choice(functions)
    planted = draw.choice(function.bugs)
    path = f"{theme}.py"
    files = {
        path: _module(functions, {function.name: planted}, draw.random() < 0.5, theme),
        f"{other}.py": _module(beside, {}, draw.random() < 0.5, other),
    }
    telling = [
        each for each in function.arguments if function.value(planted, each) != function.value(function.returns, each)
    ]
    shown = draw.choice(telling)
    is_now, should_be = function.value(planted, shown), function.value(function.returns, shown)
    text = f"fix {path}: {function.call(shown)} is {is_now}, should be {should_be}"
    line = files[path].splitlines().index(f"def {function.name}({function.parameters}):") + 2
    written = errs.choice([each for each in function.bugs if each != planted]) if errs else function.returns
    walk = [f"grep -n -A1 {function.name} {path}", f"sed -i '{line}c\\    return {written}' {path}\nsubmit"]
    return Task("repair", text, files, [_test({theme: functions, other: beside})], walk)


def _test(modules: Mapping[str, Sequence[Function]]) -> dict[str, str]:
    """Every function is called, on all of its arguments."""
    lines = ["python -S - <<'END'", "def printed(call):", "    try:", "        print(repr(call()))"]
    lines += ["    except Exception as error:", "        print(type(error).__name__)"]
    values = []
    for theme, functions in modules.items():
        lines.append(f"import {theme}")
        for function in functions:
            for arguments in function.arguments:
                lines.append(f"printed(lambda: {theme}.{function.call(arguments)})")
                values.append(function.value(function.returns, arguments))
    return {"run": "\n".join([*lines, "END"]), "expect": "\n".join(values)}
