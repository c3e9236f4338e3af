"""Programs that construct something for an open problem, by the value of what they construct (AlphaEvolve, arXiv 2506.13131).

The program defines `entry_point`, which is called without arguments in the sandbox; what it returns is checked and valued here. The
answer is the value to reach, such as the best one known, and the score how near the construction comes to it:

    value / answer        where larger is better
    answer / value        where smaller is better (`autocorrelation`)

so 1 is as good, more is better, and it is correct from 1 on; 0 where the construction breaks a rule. `info`: `construction` (its
`kind` and settings: see `_constructions.py`), `entry_point` (default `construct`), `timeout_s` and `memory_mb` as for `python`.
"""

from __future__ import annotations

import math
import re
from typing import Any

from pipelines.sandbox.compare import plain
from pipelines.sandbox.interface import Sandbox
from pipelines.sandbox.worker import Limits
from pipelines.verifiers import verify as verify_row
from pipelines.verifiers._code import program
from pipelines.verifiers._constructions import Construction, construction
from pipelines.verifiers._tests import limits_of
from pipelines.verifiers.python import LANGUAGES
from pipelines.verifiers.verdict import UNPARSABLE, Verdict

ENTRY_POINT = "construct"


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """How near the construction comes to the answer.

    Raises:
        SandboxError: there is no sandbox here.
    """
    return verify_row("construction", completion, answer, info)


def job(completion: str, answer: str, info: dict[str, Any]) -> Any:
    """What the pool is to run for a row.

    Raises:
        ValueError: the row names no construction, or the answer is no positive number.
    """
    what, settings = construction(info)
    what.value([], settings)  # settings that cannot be read are the row's fault
    wanted = float(answer)
    if not (math.isfinite(wanted) and wanted > 0):
        raise ValueError("the answer is no positive number")
    name = str(info.get("entry_point") or ENTRY_POINT)
    source = program(completion, LANGUAGES, rf"(?m)^def {re.escape(name)}\b")
    if not source.strip():
        return UNPARSABLE
    return lambda worker: _judge(worker, source, name, limits_of(info), what, settings, wanted)


def gold(answer: str, info: dict[str, Any]) -> str | None:
    """None: nobody knows a program that reaches the answer."""
    return None


def _judge(
    worker: Sandbox, source: str, name: str, limits: Limits, what: Construction, settings: dict[str, Any], wanted: float
) -> Verdict:
    with worker.run({"mode": "functions", "source": source}, limits) as running:
        reply = running.ask(None)
        if "ready" in reply:
            reply = running.ask({"name": name, "args": [], "kwargs": {}})
    if "value" not in reply:
        late = reply.get("gone") == "timed_out"
        return Verdict(0.0, "timed_out" if late else "unparsable", {"valid": 0.0})
    value = what.value(plain(reply["value"]), settings)
    if value is None or value <= 0:
        return Verdict(0.0, "incorrect", {"valid": 0.0})
    score = wanted / value if what.smaller_is_better else value / wanted
    return Verdict(score, "correct" if score >= 1 - 1e-9 else "incorrect", {"valid": 1.0, "value": value})
