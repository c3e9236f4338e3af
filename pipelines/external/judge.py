"""`python -m pipelines.external.judge ABOUT`: batches of rows on standard input, their scores on standard output, until the input ends.

A line is JSON: [[verifier, completion, answer, info], ...]; the reply has `scores`, one a row, or `error`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from pipelines import verifiers
from pipelines.base.errors import UserError
from pipelines.stage import process


def main() -> None:
    """Answer the process that started this one."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no reply
    process.prepare(json.loads(Path(sys.argv[1]).read_text()))
    serve(sys.stdin, replies)


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answer each line of requests."""
    for line in requests:
        try:
            reply: dict[str, Any] = {"scores": scores(json.loads(line))}
        except UserError as error:
            reply = {"error": str(error)}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def scores(rows: list[Any]) -> list[dict[str, float]]:
    """What a trainer learns of each row: the verifier's score, whether it is correct, and whether the verifier itself failed."""
    verdicts = verifiers.verify_many([(name, text, answer, info) for name, text, answer, info in rows])
    return [
        {"score": verdict.score or 0.0, "acc": float(bool(verdict.correct)), "unscored": float(verdict.score is None)}
        for verdict in verdicts
    ]


if __name__ == "__main__":
    main()
