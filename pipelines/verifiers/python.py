"""Programs against hidden tests, in the sandbox. What a test expects never enters the program's process.

`info` (or the answer, as JSON) holds one of: `entry_point` with `cases` of args, kwargs and expected; `asserts`; a
`test` that defines `check(candidate)`, with its `prompt`; `stdin` runs of input and output. See docs/data.md.
"""

from __future__ import annotations

import re
import time
from decimal import Decimal, InvalidOperation
from typing import Any

from pipelines.sandbox.compare import equal
from pipelines.sandbox.interface import RunningProgram, Sandbox
from pipelines.sandbox.worker import ended_late
from pipelines.verifiers import verify as verify_row
from pipelines.verifiers._code import program
from pipelines.verifiers._tests import Tests, closed, tests_of
from pipelines.verifiers.verdict import UNPARSABLE, Verdict

LANGUAGES = ("python", "py", "python3")


def job(completion: str, answer: str, info: dict[str, Any]) -> Any:
    """What the pool is to run for a row: a function of a sandbox, or a verdict that needs none.

    Raises:
        ValueError: the row's tests cannot be read.
    """
    tests = tests_of(answer, info)
    source = completion if tests.verbatim else source_of(completion, tests)
    if not source.strip():
        return UNPARSABLE
    source = tests.prelude + source
    kind = _cases if tests.cases else _asserts if tests.sources else _runs
    return lambda worker: kind(worker, source, tests)


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """Every test passes: 1, else 0; where the row says `graded`, the share that passes.

    Raises:
        SandboxError: there is no sandbox here.
    """
    return verify_row("python", completion, answer, info)


def gold(answer: str, info: dict[str, Any]) -> str | None:
    """The reference solution; None where the answer holds the tests."""
    return None if answer.lstrip().startswith(("{", "[")) else answer


def source_of(completion: str, tests: Tests) -> str:
    """The program: what the completion defines, after the prompt's own lines where it goes on with them."""
    defines = rf"(?m)^[ \t]*(?:async )?def {re.escape(tests.entry_point)}\b" if tests.entry_point else ""
    source = program(completion, LANGUAGES, defines)
    if not tests.prompt:
        return source
    if defines and re.search(defines, source):
        return f"{closed(tests.prompt)}\n\n{source}"
    fenced = "```" in completion or "~~~" in completion
    return tests.prompt + (source if fenced else completion)  # a body keeps its first line's indentation


class _Outcome:
    """Tests passed, and what stopped the rest."""

    def __init__(self, tests: Tests) -> None:
        self.tests = tests
        self.passed = 0
        self.stopped = ""

    def verdict(self) -> Verdict:
        """All, or the share where the row is graded."""
        share = self.passed / self.tests.count
        components = {"passed": share} | ({f"stopped/{self.stopped}": 1.0} if self.stopped else {})
        if share == 1.0:
            return Verdict(1.0, "correct", components)
        score = share if self.tests.graded else 0.0
        if self.stopped == "timed_out":
            return Verdict(score, "timed_out", components)
        return Verdict(score, "unparsable" if self.stopped == "unreadable" else "incorrect", components)


def _started(running: RunningProgram, outcome: _Outcome) -> bool:
    ready = running.ask(None)
    if "ready" in ready:
        return True
    outcome.stopped = "unreadable" if "unreadable" in ready else str(ready.get("gone", "import"))
    return False


def _cases(worker: Sandbox, source: str, tests: Tests) -> Verdict:
    """Calls whose values are compared here."""
    outcome = _Outcome(tests)
    with worker.run({"mode": "functions", "source": source}, tests.limits) as running:
        if not _started(running, outcome):
            return outcome.verdict()
        for case in tests.cases:
            call = {"name": tests.entry_point, "args": case.arguments, "kwargs": case.keywords}
            reply = running.ask(call)
            if case.raises:
                passed = reply.get("error") == case.raises
            else:
                passed = "value" in reply and equal(case.expected, reply["value"], tuples=not case.literal)
            if passed:
                outcome.passed += 1
            elif "gone" in reply:
                outcome.stopped = reply["gone"]
                break
            elif not tests.graded:
                break
    return outcome.verdict()


def _asserts(worker: Sandbox, source: str, tests: Tests) -> Verdict:
    """Tests in a second sandbox, which calls the program in the first."""
    outcome = _Outcome(tests)
    request = {
        "mode": "tests", "setup": tests.setup, "tests": tests.sources, "check": tests.check, "graded": tests.graded,
        "entry_point": tests.entry_point,
    }  # fmt: skip
    with worker.run({"mode": "functions", "source": source}, tests.limits) as running:
        if not _started(running, outcome):
            return outcome.verdict()
        with worker.run(request, tests.limits) as tester:
            message = tester.ask(None)
            while isinstance(message.get("call"), dict):
                call = message["call"]
                reply = running.ask({"name": tests.entry_point, "mutable": True, **call})
                if "gone" in reply or "uncrossable" in reply:
                    outcome.stopped = outcome.stopped or str(reply.get("gone", "uncrossable"))
                    reply = {"gone": outcome.stopped}
                message = tester.ask({k: reply[k] for k in ("value", "args", "error", "gone") if k in reply})
            if isinstance(message.get("passed"), int):
                outcome.passed = min(message["passed"], tests.count)
            else:
                outcome.stopped = outcome.stopped or str(message.get("gone", "tests"))
    return outcome.verdict()


def _runs(worker: Sandbox, source: str, tests: Tests) -> Verdict:
    """A run per test on standard input; it must exit with 0 and print what is expected."""
    outcome = _Outcome(tests)
    worker.until = min(worker.until, time.monotonic() + tests.limits.together_s(len(tests.runs)))
    for text, expected in tests.runs:
        if worker.left_s == 0:
            outcome.stopped = "timed_out"
            break
        request = {"mode": "script", "source": source}
        with worker.run(request, tests.limits, text.encode(errors="replace")) as running:
            printed = running.output()
            status = {} if running.overflow else running.finish(running.left_s())
        if running.overflow or ended_late(status):
            outcome.stopped = "overflow" if running.overflow else "timed_out"
        elif status["status"] == 0 and same_output(printed.decode(errors="replace"), expected, decimals=tests.decimals):
            outcome.passed += 1
            continue
        if not tests.graded:
            break
    return outcome.verdict()


def same_output(printed: str, expected: str, *, decimals: bool = False) -> bool:
    """Whether a program printed what was expected: the same lines, but for blanks and empty lines at their ends.

    Args:
        decimals: as LiveCodeBench's `testing_util.py` compares: blanks at both ends of lines and of the whole do not count, and a line
            of numbers is met by numbers of exactly the same values.

    >>> same_output("1.0 2", "1 2.00", decimals=True), same_output("1.0 2", "1 2.00"), same_output("yes", "Yes", decimals=True)
    (True, False, False)
    """
    if not decimals:
        return _lines(printed) == _lines(expected)
    lines, wanted = ([line.strip() for line in text.strip().split("\n")] for text in (printed, expected))
    return len(lines) == len(wanted) and all(
        line == other or (_decimals(line) is not None and _decimals(line) == _decimals(other))
        for line, other in zip(lines, wanted, strict=True)
    )


def _decimals(line: str) -> list[Decimal] | None:
    """The numbers of a line; None where it has anything else."""
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None


def _lines(text: str) -> list[str]:
    """Lines without trailing blanks, without empty ones at the end."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
