"""LiveCodeBench's code generation (2403.07974): programs that read standard input, or functions of JSON arguments, in the sandbox.

Columns, prompt, extraction and comparison are those of LiveCodeBench/LiveCodeBench at 28fef95 (`benchmarks/code_generation.py`,
`prompts/code_generation.py`, `utils/extraction_utils.py`, `evaluation/testing_util.py`). A program passes if it passes every public and
private test. Each run on standard input has 6 s of processor time; the calls of a function have 30 s together. A value that a function
returns is compared by type and value, floats to 1e-9, where the released code has Python's `==`.
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

from evaluation import own_rows
from evaluation.own_rows import RowFault
from evaluation.scoring import answers_of, summary
from pipelines import verifiers

COLUMNS: dict[str, type | tuple[type, ...]] = {
    "question_content": str, "question_id": (str, int), "contest_date": (str, date), "starter_code": str, "difficulty": str,
    "public_test_cases": str, "private_test_cases": str, "metadata": str,
}  # fmt: skip
TEST_COLUMNS: dict[str, type | tuple[type, ...]] = {"input": str, "output": str, "testtype": str}
STDIN, FUNCTIONAL = "stdin", "functional"
MOST_UNPACKED = 1 << 30
"""Bytes of the unpacked private tests of one problem."""
RUN_S, CALLS_S, MEMORY_MB = 6, 30, 2048
"""Processor time of a run on standard input (the released timeout) and of a function's calls together; memory of either."""
_IMPORTED = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json"
)
PRELUDE = "".join(
    [f"from {name} import *\n" for name in f"{_IMPORTED} builtins typing".split()]
    + [f"import {name}\n" for name in _IMPORTED.split()]
    + ["sys.setrecursionlimit(50000)\n\n"]
)
"""What every program may use without importing it."""
_WITH_STARTER = "You will use the following starter code to write the solution to the problem and enclose your code within delimiters."
_WITHOUT_STARTER = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on the sample inputs). "
    "Enclose your code within delimiters as follows. Ensure that when the python program runs, it reads the inputs, runs the "
    "algorithm and writes output to STDOUT."
)
_TEXT_OPCODES = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE")
_EMPTY_OPCODES = ("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP")


def documents(data: str, start_date: str | None = None, end_date: str | None = None) -> Iterator[dict[str, Any]]:
    """A document for each problem of a file that was published between two days, both included.

    Raises:
        DataError: the file cannot be read, a row cannot be asked, or no problem is of these days.
    """
    count = 0
    for place, row in own_rows.rows(data, COLUMNS):
        published = _date(place, row["contest_date"])
        if (start_date and published < date.fromisoformat(start_date)) or (
            end_date and published > date.fromisoformat(end_date)
        ):
            continue
        count += 1
        yield {
            "question": prompt(row["question_content"], row["starter_code"]),
            "question_id": str(row["question_id"]),
            "part": row["difficulty"],
            "contest_date": published.isoformat(),
            "tests": json.dumps(tests(place, row)),
        }
    if not count:
        raise own_rows.DataError(
            f"{data}: no problem was published between these days", fix="Change start_date or end_date."
        )


def prompt(question: str, starter_code: str) -> str:
    """The released generic prompt of one problem; the system message is the benchmark's `description`."""
    how, code = (_WITH_STARTER, starter_code) if starter_code else (_WITHOUT_STARTER, "# YOUR CODE HERE")
    text = f"### Question:\n{question}\n\n### Format: {how}\n```python\n{code}\n```\n\n"
    return f"{text}### Answer: (use the provided format with backticks)\n\n"


def tests(place: str, row: dict[str, Any]) -> dict[str, Any]:
    """What the verifier `python` needs to judge programs of a problem.

    Raises:
        RowFault: a column of it cannot be read.
    """
    name = _object(place, "metadata", row["metadata"]).get("func_name")
    cases = [
        *_cases(
            place, "public_test_cases", own_rows.parsed(place, "public_test_cases", row["public_test_cases"]), name
        ),
        *_cases(place, "private_test_cases", _private(place, row["private_test_cases"]), name),
    ]
    if not cases:
        raise RowFault(place, "public_test_cases", "there is no test")
    common = {"verbatim": True, "prelude": PRELUDE, "memory_mb": MEMORY_MB}
    if name:
        return common | {"entry_point": name, "cases": cases, "timeout_s": CALLS_S}
    return common | {"stdin": cases, "decimals": True, "timeout_s": RUN_S}


def _object(place: str, column: str, text: str) -> dict[str, Any]:
    value = own_rows.parsed(place, column, text)
    if not isinstance(value, dict):
        raise RowFault(place, column, "is no JSON object")
    return value


def _cases(place: str, column: str, listed: Any, name: str | None) -> Iterator[dict[str, Any]]:
    if not isinstance(listed, list):
        raise RowFault(place, column, "is no JSON list")
    for number, test in enumerate(listed):
        if not isinstance(test, dict):
            raise RowFault(place, column, f"test {number} is no object")
        own_rows.check(place, {f"{column}[{number}].{key}": value for key, value in test.items()},
                       {f"{column}[{number}].{key}": kinds for key, kinds in TEST_COLUMNS.items()})  # fmt: skip
        if test["testtype"] != (FUNCTIONAL if name else STDIN):
            wanted = "functional, since metadata has a func_name" if name else "stdin, since metadata has no func_name"
            raise RowFault(place, f"{column}[{number}].testtype", f"is {test['testtype']!r}, not {wanted}")
        if not name:
            yield {"input": test["input"], "output": test["output"]}
            continue
        arguments = [own_rows.parsed(place, f"{column}[{number}].input", line) for line in test["input"].split("\n")]
        yield {"args": arguments, "expected": own_rows.parsed(place, f"{column}[{number}].output", test["output"])}


def _private(place: str, text: str) -> Any:
    """The private tests: JSON, or a pickled JSON text, zlib and base64 around it."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        unpacker = zlib.decompressobj()
        packed = unpacker.decompress(base64.b64decode(text, validate=True), MOST_UNPACKED)
        if unpacker.unconsumed_tail:
            raise ValueError(f"over {MOST_UNPACKED:,} bytes")
        return json.loads(pickled_text(packed))
    except (ValueError, binascii.Error, zlib.error, RecursionError) as error:
        fault = f"is neither JSON nor its packed form ({str(error)[:100]})"
        raise RowFault(place, "private_test_cases", fault) from None


def pickled_text(data: bytes) -> str:
    """The text in a pickle that holds a text and nothing else. The pickle is read as a list of opcodes and never run.

    Raises:
        ValueError: it holds anything else.

    >>> import pickle
    >>> pickled_text(pickle.dumps("[1]"))
    '[1]'
    """
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _TEXT_OPCODES:
            texts.append(str(argument))
        elif opcode.name not in _EMPTY_OPCODES:
            raise ValueError(f"a pickle with {opcode.name}")
    if len(texts) != 1:
        raise ValueError("a pickle that is no text")
    return texts[0]


def _date(place: str, value: Any) -> date:
    try:
        when = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise RowFault(place, "contest_date", f"{value[:50]!r} is no date (2024-08-17T00:00:00)") from None
    return when.date() if isinstance(when, datetime) else when


def program(answer: str) -> str:
    """The program in an answer: what stands between its last two lines with a fence; empty where it has fewer.

    >>> program("Try\\n```python\\nprint(1)\\n```\\nor\\n```python\\nprint(2)\\n```"), program("print(1)")
    ('print(2)', '')
    """
    lines = answer.split("\n")
    fences = [number for number, line in enumerate(lines) if "```" in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) if len(fences) > 1 else ""


def source(answer: str, name: str | None) -> str:
    """A program whose function has its own name: of a class `Solution` its method has."""
    code = program(answer)
    return f"{code}\n\n{name} = Solution().{name}\n" if name and "class Solution" in code else code


def process_results(doc: dict[str, Any], results: list[Any]) -> dict[str, Any]:
    """Scores of one problem's programs; pass@1 is their mean.

    Raises:
        SandboxError: there is no sandbox here.
    """
    info = json.loads(doc["tests"])
    name = info.get("entry_point")
    rows = [("python", source(answer, name), "", info) for answer in answers_of(results)]
    return summary(verifiers.verify_many(rows))
