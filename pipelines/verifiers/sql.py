"""SQL by what it returns, on a database in memory built from the row's schema (Arctic-Text2SQL-R1, arXiv 2505.20315).

1 where the rows are those of the gold query, 0.1 where the query runs and returns others, 0 where it does not run.
`info`: `schema` (a script that makes and fills the tables), `ordered` (default: whether the gold query ends with an ORDER
BY of its own). Rows compare as multisets, NULL and duplicates count, integers are exact, floats of the gold query may be missed by 1e-9.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

from pipelines.sandbox.compare import canonical, equal
from pipelines.sandbox.interface import Sandbox
from pipelines.sandbox.worker import Limits
from pipelines.verifiers import verify as verify_row
from pipelines.verifiers._code import program
from pipelines.verifiers.verdict import UNPARSABLE, Verdict, failed

RUNS = 0.1
"""Score of a query that runs and returns other rows."""
ROWS, STEPS = 10_000, 50_000_000
"""A query may return so many rows, and take so many steps of sqlite's machine."""
LIMITS = Limits(cpu_s=3)
_STRINGS = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*")
_ORDER = re.compile(r"\border\s{1,9}by\b", re.I)


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """1, 0.1 or 0.

    Raises:
        SandboxError: there is no sandbox here.
    """
    return verify_row("sql", completion, answer, info)


def job(completion: str, answer: str, info: dict[str, Any]) -> Any:
    """What the pool is to run for a row.

    Raises:
        ValueError: the row has no schema.
    """
    schema = info.get("schema")
    if isinstance(schema, list):
        schema = ";\n".join(map(str, schema))
    if not isinstance(schema, str) or not schema.strip():
        raise ValueError("the row has no schema")
    gold = query(answer)
    ordered = bool(info.get("ordered", ends_ordered(gold)))
    text = query(completion)
    return (lambda worker: _judge(worker, schema, gold, text, ordered)) if text else UNPARSABLE


def query(completion: str) -> str:
    """The last fenced block named sql or sqlite, or the whole text; without a semicolon at its end.

    >>> query("So:\\n```sql\\nSELECT 1;\\n```")
    'SELECT 1'
    """
    return program(completion, ("sql", "sqlite", "sqlite3")).strip().rstrip(";").rstrip()


def ends_ordered(text: str) -> bool:
    """Whether a query orders its own rows: an ORDER BY outside of all brackets.

    >>> ends_ordered("SELECT a FROM t ORDER BY b"), ends_ordered("SELECT * FROM (SELECT a FROM t ORDER BY b)")
    (True, False)
    """
    text = _STRINGS.sub("''", text)
    depth, outside = 0, []
    for character in text:
        depth += (character == "(") - (character == ")")
        outside.append(character if depth == 0 else " ")
    return bool(_ORDER.search("".join(outside)))


def _judge(worker: Sandbox, schema: str, gold: str, text: str, ordered: bool) -> Verdict:
    expected = _gold(worker, schema, gold)
    if isinstance(expected, str):
        return failed(expected)
    reply = _run(worker, schema, text)
    if "gone" in reply:
        late = reply["gone"] == "timed_out"
        return Verdict(0.0, "timed_out" if late else "incorrect", {f"stopped/{reply['gone']}": 1.0})
    rows = reply.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        late = reply.get("error") == "steps"
        return Verdict(0.0, "timed_out" if late else "incorrect", {"runs": 0.0})
    if same_rows(expected, rows, ordered):
        return Verdict(1.0, "correct", {"runs": 1.0})
    return Verdict(RUNS, "incorrect", {"runs": 1.0})


def same_rows(expected: list[Any], rows: list[Any], ordered: bool) -> bool:
    """Whether two results hold the same rows, in any order unless `ordered`."""
    if len(expected) != len(rows):
        return False
    if not ordered:
        expected, rows = sorted(expected, key=_rank), sorted(rows, key=_rank)
    return all(equal(a, b) for a, b in zip(expected, rows, strict=True))


def _rank(row: Any) -> str:
    """Rows that differ by rounding only sort alike."""
    return canonical([_rounded(cell) for cell in row])


def _rounded(cell: Any) -> Any:
    if isinstance(cell, dict) and "f" in cell:
        try:
            value = float.fromhex(cell["f"])
            return cell if value.is_integer() else {"f": float(f"{value:.8g}").hex()}
        except (ValueError, TypeError, OverflowError):
            return cell
    return cell


def _run(worker: Sandbox, schema: str, text: str) -> dict[str, Any]:
    request = {"mode": "sql", "schema": schema, "query": text, "rows": ROWS, "steps": STEPS}
    with worker.run(request, LIMITS) as running:
        return running.ask(None)


def _gold(worker: Sandbox, schema: str, gold: str) -> list[Any] | str:
    """Rows of the gold query, or why there are none."""
    kept = _kept(schema, gold)
    if not kept:
        reply = _run(worker, schema, gold)
        if "gone" in reply:  # its time was over, which another time it may not be
            return "GoldFails"
        rows = reply.get("rows")
        kept.append(json.dumps(rows) if isinstance(rows, list) else None)
        kept.append("SchemaFails" if reply.get("error") == "schema" else "GoldFails")
    return kept[1] if kept[0] is None else json.loads(kept[0])


@lru_cache(maxsize=4096)
def _kept(schema: str, gold: str) -> list[Any]:
    """A place for a gold query's result."""
    return []
