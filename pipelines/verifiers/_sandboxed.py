"""Rows of the verifiers that run code, through the sandbox: equal rows once, a budget for the batch."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipelines.sandbox import pool
from pipelines.verifiers import pool as killable
from pipelines.verifiers.registry import load
from pipelines.verifiers.verdict import MAX_CHARS, NOT_BEGUN, TIMED_OUT, UNPARSABLE, Verdict, failed

logger = logging.getLogger(__name__)

BATCH_S = 120.0
ROW_S = 0.5
"""A batch may take this long, plus this much per distinct row. What began and is not done by then is timed out; the rest is unscored."""
_row_s = ROW_S


def be_patient() -> None:
    """Verify every row of this process's batches, however long they take together: each has limits of its own."""
    global _row_s
    _row_s = math.inf
    processes = killable.shared()
    processes.limits = replace(processes.limits, batch_row_s=math.inf)


def verify_many(rows: Sequence[tuple[str, str, str, dict[str, Any]]]) -> list[Verdict]:
    """Verdicts of (verifier, completion, answer, info) rows, in order.

    A row whose tests cannot be read is `verifier_failed`, whatever its completion.

    Raises:
        SandboxError: there is no sandbox here.
    """
    verdicts: dict[str, Verdict] = {}
    jobs: dict[str, Any] = {}
    keys: list[str] = []
    for row in rows:
        name, completion, answer, info = row
        key = _key(row)
        keys.append(key or str(len(keys)))
        if key in verdicts or key in jobs:
            continue
        if key is None:
            verdicts[keys[-1]] = failed("Info")
            continue
        if len(completion) > MAX_CHARS:
            verdicts[key] = UNPARSABLE
            continue
        try:
            job = load(name).job(completion, answer, info)
        except Exception as error:
            verdicts[key] = failed(type(error).__name__)
            continue
        if isinstance(job, Verdict):
            verdicts[key] = job
        else:
            jobs[key] = job
    results = pool.shared().run(list(jobs.values()), BATCH_S + _row_s * len(jobs)) if jobs else []
    for key, result in zip(jobs, results, strict=True):
        if result is pool.Unfinished:
            result = TIMED_OUT
        elif result is pool.Late:
            result = NOT_BEGUN
        elif isinstance(result, pool.Failed):
            logger.warning("the sandbox failed under one row: %s", result.why)
            result = failed(result.error)
        verdicts[key] = result
    return [verdicts[key] for key in keys]


def _key(row: tuple[str, str, str, dict[str, Any]]) -> str | None:
    """A text that equal rows share; None where the info is no plain data."""
    try:
        return json.dumps(row, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):
        return None
