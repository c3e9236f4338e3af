"""Scores of benchmarks whose answers are programs: they run in the sandbox, against the tests of the question."""

from __future__ import annotations

from typing import Any

from evaluation.scoring import answers_of, summary
from pipelines import verifiers

TASKS = ("humaneval", "humaneval_instruct", "mbpp", "mbpp_instruct")
"""Ours of these; lm-eval's of the same names run programs where the evaluation runs."""
TESTS = ("prompt", "test", "entry_point", "test_list", "test_setup_code")
"""Columns of HumanEval and MBPP that the verifier `python` reads."""
FENCE = "```"


def process_results(doc: dict[str, Any], results: list[Any]) -> dict[str, Any]:
    """Scores of one question's programs, which go on with its prompt where there is one; pass@1 is their mean.

    Raises:
        SandboxError: there is no sandbox here.
    """
    info = {name: doc[name] for name in TESTS if doc.get(name)}
    return summary(verifiers.verify_many([("python", answer, "", info) for answer in answers_of(results)]))


def process_fenced(doc: dict[str, Any], results: list[Any]) -> dict[str, Any]:
    """The same for answers that begin inside a fenced block: what stands before its end is the program.

    Raises:
        SandboxError: there is no sandbox here.
    """
    return process_results(doc, [[answer.partition(FENCE)[0] for answer in answers_of(results)]])
