"""Hidden tests of a program, in the forms that data sets have them."""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.sandbox.inside import wire
from pipelines.sandbox.worker import Limits

MOST_TESTS = 1000
MOST_SECONDS, MOST_BYTES = 30, 2 << 30
FIELDS = ("cases", "asserts", "test_list", "check", "test", "stdin", "stdio", "inputs", "input_output")


@dataclass(frozen=True)
class Case:
    """A call and its value, both as the wire carries them."""

    arguments: list[Any]
    keywords: dict[str, Any]
    expected: Any
    literal: bool
    """Whether the value was written as a Python literal: then a tuple is no list."""
    raises: str
    """The built-in exception that the call must raise, instead of a value; empty: none."""


@dataclass(frozen=True)
class Tests:
    """What a program must pass: exactly one of cases, sources and runs."""

    entry_point: str = ""
    cases: list[Case] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    """Statements that raise where the program is wrong."""
    check: bool = False
    """The sources define `check(candidate)`, which is to be called."""
    setup: str = ""
    """Python that runs before the sources, out of the program's reach."""
    runs: list[tuple[str, str]] = field(default_factory=list)
    """Standard input and what must come out."""
    prompt: str = ""
    """Python before the completion, for completions that go on with it."""
    prelude: str = ""
    """Python that runs before the program, as part of it: the imports that a benchmark gives every program."""
    verbatim: bool = False
    """The completion is the program, fences and tags and all."""
    decimals: bool = False
    """What runs print is compared as LiveCodeBench compares it: lines without blanks around them, numbers by value."""
    graded: bool = False
    """The share that passed is the score."""
    limits: Limits = field(default_factory=Limits)

    @property
    def count(self) -> int:
        """How many tests there are."""
        return len(self.cases) or len(self.sources) or len(self.runs)


def tests_of(answer: str, info: Mapping[str, Any]) -> Tests:
    """The tests of a row: in `info`, in `info["tests"]`, or in the answer as JSON.

    Raises:
        ValueError: there are none, or they are damaged.
    """
    body = info.get("tests", info)
    if isinstance(body, str):
        body = json.loads(body)
    if isinstance(body, list):
        body = {"asserts" if all(isinstance(item, str) for item in body) else "cases": body}
    if not any(name in body for name in FIELDS):
        try:
            parsed = json.loads(answer)
        except ValueError:
            parsed = None
        if isinstance(parsed, list):
            parsed = {"asserts" if all(isinstance(item, str) for item in parsed) else "cases": parsed}
        if not isinstance(parsed, dict) or not any(name in parsed for name in FIELDS):
            raise ValueError("the row has no tests")
        body = parsed
    body = {**info, **body}
    if isinstance(body.get("input_output"), str | dict):  # APPS, TACO
        inner = body["input_output"]
        body |= json.loads(inner) if isinstance(inner, str) else inner
    tests = _read(body)
    if not 1 <= tests.count <= MOST_TESTS:
        raise ValueError(f"{tests.count} tests; there must be 1 to {MOST_TESTS}")
    return tests


def limits_of(body: Mapping[str, Any]) -> Limits:
    """What a row lets its program use: `timeout_s` (or `time_limit`) seconds of processor time, `memory_mb`.

    >>> limits_of({"timeout_s": 0.2}).cpu_s, limits_of({"time_limit": 99}).cpu_s
    (1, 30)
    """
    seconds = round(float(body.get("timeout_s") or body.get("time_limit") or Limits.cpu_s))
    return Limits(
        cpu_s=max(1, min(MOST_SECONDS, seconds)),
        memory_bytes=max(64 << 20, min(MOST_BYTES, int(float(body.get("memory_mb", 512)) * 2**20))),
    )


def _read(body: dict[str, Any]) -> Tests:
    name = str(body.get("entry_point") or body.get("fn_name") or body.get("function") or "")
    common: dict[str, Any] = {
        "graded": bool(body.get("graded", False)),
        "verbatim": bool(body.get("verbatim", False)),
        "prelude": str(body.get("prelude") or ""),
        "decimals": bool(body.get("decimals", False)),
        "limits": limits_of(body),
    }
    if "cases" in body and not name and all(isinstance(c, dict) and _is_run(c) for c in body["cases"]):
        return Tests(runs=[_run(case) for case in body["cases"]], **common)
    if "cases" in body:
        return Tests(_needed(name), cases=[_case(case) for case in body["cases"]], **common)
    if "inputs" in body and name:
        pairs = zip(body["inputs"], body["outputs"], strict=True)
        return Tests(name, cases=[_case({"args": a, "expected": _only(b)}) for a, b in pairs], **common)
    if "inputs" in body:
        return Tests(
            runs=[(_text(a), _text(b)) for a, b in zip(body["inputs"], body["outputs"], strict=True)], **common
        )
    runs = body.get("stdin") or body.get("stdio")
    if isinstance(runs, list) and runs:
        return Tests(runs=[_run(run) for run in runs], **common)
    sources = body.get("asserts") or body.get("test_list") or body.get("check") or body.get("test")
    sources = [sources] if isinstance(sources, str) else list(sources or ())
    if not all(isinstance(source, str) for source in sources):
        raise ValueError("tests that are not text")
    prompt = str(body.get("prompt") or "")
    setup = str(body.get("setup") or body.get("test_setup_code") or closed(prompt))
    check = any("def check(" in source for source in sources)
    if check and len(sources) > 1:
        raise ValueError("check(candidate) is one text")
    return Tests(name or _called(sources), sources=sources, check=check, setup=setup, prompt=prompt, **common)


def closed(prompt: str) -> str:
    """A prompt as Python that runs by itself: a function that it leaves open gets an empty body; empty where it is no Python.

    >>> closed("def f(x):\\n"), closed("Write a function.")
    ('def f(x):\\n    pass\\n', '')
    """
    last_line = prompt.rstrip().rpartition("\n")[2]
    indent = last_line[: len(last_line) - len(last_line.lstrip())]
    for text in (prompt, f"{prompt.rstrip()}\n{indent}    pass\n"):
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return text
    return ""


def _is_run(case: dict[str, Any]) -> bool:
    return any(isinstance(case.get(key), str) for key in ("stdin", "input")) or "stdout" in case


def _run(case: dict[str, Any]) -> tuple[str, str]:
    """Standard input, and what must come out."""
    for key in ("output", "stdout", "expected"):
        if key in case:
            return _text(case.get("input", case.get("stdin", ""))), _text(case[key])
    raise ValueError("a run without output")


def _needed(name: str) -> str:
    if not name:
        raise ValueError("cases need an entry_point")
    return name


def _case(case: Any) -> Case:
    if not isinstance(case, dict):
        raise ValueError("a case is an object of args, kwargs and expected")
    arguments = case.get("args", case.get("input", []))
    if "args_literal" in case:
        arguments = list(ast.literal_eval(case["args_literal"]))
    if not isinstance(arguments, list):
        raise ValueError("args is a list")
    literal, raises = "expected_literal" in case, str(case.get("raises") or "")
    if not literal and not raises and "expected" not in case and "output" not in case:
        raise ValueError("a case without expected")
    expected = ast.literal_eval(case["expected_literal"]) if literal else case.get("expected", case.get("output"))
    keywords = {str(key): wire.encode(item) for key, item in (case.get("kwargs") or {}).items()}
    return Case([wire.encode(item) for item in arguments], keywords, wire.encode(expected), literal, raises)


def _only(value: Any) -> Any:
    """APPS puts a function's value into a list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _called(sources: list[str]) -> str:
    """The first function that the tests call and neither define nor import."""
    trees = [ast.parse(source) for source in sources]
    known = set(dir(builtins))
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            known.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            known |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in known:
            return node.func.id
    raise ValueError("no entry_point, and none of the tests calls one")
