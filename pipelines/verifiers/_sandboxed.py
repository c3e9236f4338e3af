"""Rows of the verifiers that run code, through the sandbox: equal rows once, a budget for the batch."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from pipelines.sandbox import pool
from pipelines.verifiers import MAX_CHARS, TIMED_OUT, UNPARSABLE, Verdict, load

logger = logging.getLogger(__name__)

BATCH_S = 120.0
ROW_S = 0.5
"""A batch may take this long, plus this much per distinct row; rows left over are timed out."""
OFFLINE_ROW_S = 100.0
"""The same where nobody waits for the batch: every row has its own limits, and all are run."""
_row_s = ROW_S


def be_patient() -> None:
    """Run every row of this process's batches, however long they take together."""
    global _row_s
    _row_s = OFFLINE_ROW_S


def verify_many(rows: Sequence[tuple[str, str, str, dict[str, Any]]]) -> list[Verdict]:
    """Verdicts of (verifier, completion, answer, info) rows, in order.

    A row whose tests cannot be read is `verifier_failed`, whatever its completion.

    Raises:
        SandboxError: there is no sandbox here.
    """
    verdicts: dict[str, Verdict] = {}
    jobs: dict[str, Any] = {}
    keys = [json.dumps(row, sort_keys=True, default=str) for row in rows]
    for key, (name, completion, answer, info) in zip(keys, rows, strict=True):
        if key in verdicts or key in jobs:
            continue
        if len(completion) > MAX_CHARS:
            verdicts[key] = UNPARSABLE
            continue
        try:
            job = load(name).job(completion, answer, info)
        except (ValueError, TypeError, KeyError, AttributeError, SyntaxError, RecursionError, MemoryError) as error:
            verdicts[key] = failed(type(error).__name__)
            continue
        if isinstance(job, Verdict):
            verdicts[key] = job
        else:
            jobs[key] = job
    results = pool.shared().run(list(jobs.values()), BATCH_S + _row_s * len(jobs))
    for key, result in zip(jobs, results, strict=True):
        if result is pool.Late:
            result = TIMED_OUT
        if isinstance(result, pool.Failed):
            logger.warning("the sandbox failed twice under one row: %s", result.why)
            result = failed("SandboxBroken")
        verdicts[key] = result
    return [verdicts[key] for key in keys]


def failed(why: str) -> Verdict:
    """Unscored."""
    return Verdict(None, "verifier_failed", {f"error/{why}": 1.0})
