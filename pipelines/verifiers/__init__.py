"""Text to score. A verifier is a module with `verify(completion, answer, info) -> Verdict`.

It may raise only where the gold answer or the row is bad. Verifiers whose work is linear in the text run in this process;
the others (`POOLED` of registry.py) run in a pool of processes that can be killed, and may bring two more functions: `known` gives the
verdicts that need no process, `warm` loads what a worker should have before its first row.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from pipelines.base.errors import DataError, RecipeError, UserError
from pipelines.data.chat import after_thinking
from pipelines.data.records import Problem
from pipelines.verifiers.in_process import answer_text, extract_here, verify_here
from pipelines.verifiers.registry import (
    BATCHED,
    COMPOUND,
    PACKAGE,
    POOLED,
    READ_THINKING,
    RELABELLED,
    SANDBOXED,
    SLOT,
    SLOW_TO_TRY,
    TRIED_WITH_ANSWER,
    VERIFIERS,
    known,
    load,
    module_name,
)
from pipelines.verifiers.verdict import (
    MAX_CHARS,
    NOT_BEGUN,
    TIMED_OUT,
    UNPARSABLE,
    Verdict,
    correct_or_incorrect,
    failed,
)

__all__ = [
    "BATCHED", "COMPOUND", "MAX_CHARS", "NOT_BEGUN", "POOLED", "READ_THINKING", "RELABELLED", "SANDBOXED", "SLOT", "TIMED_OUT",
    "UNPARSABLE", "VERIFIERS", "Verdict", "answer_text", "correct_or_incorrect", "extract_answer", "extract_answers", "failed",
    "fault", "gold", "known", "load", "module_name", "open_ended", "refusal", "relabel", "use_workers", "verify", "verify_here",
    "verify_many",
]  # fmt: skip


def relabel(problem: Problem, completion: str) -> Problem | None:
    """The problem that an incorrect completion is a correct answer to, with the same uid; None where there is none.

    Raises:
        RecipeError: the verifier's module has no function `relabel(problem, completion)`.
    """
    function = getattr(load(problem.verifier), "relabel", None)
    if function is None:
        raise RecipeError(
            "rlvr.rollout",
            f"the verifier {problem.verifier} cannot say what an incorrect answer answers (its module has no relabel)",
            "Use rollout: single_turn.",
        )
    return function(problem, after_thinking(completion))


def verify(name: str, completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """Score one completion; see `verify_many`."""
    return verify_many([(name, completion, answer, info)])[0]


def verify_many(rows: Sequence[tuple[str, str, str, dict[str, Any]]]) -> list[Verdict]:
    """Score (verifier, completion, answer, info) rows, in order. Of a completion that
    thinks first, the answer alone is judged, except by `READ_THINKING`.

    Verifiers that do more than linear work run in processes that can be killed: such a row comes back `timed_out` when
    its time is over, and `verifier_failed` (unscored) when its process dies. Equal rows are computed once.

    Raises:
        DataError: a verifier has no such name, or refuses the row's task.
        SandboxError: a verifier runs code, and there is no sandbox.
    """
    rows = [(name, _judged(name, text), answer, info) for name, text, answer, info in rows]
    verdicts: list[Verdict | None] = []
    pooled: list[int] = []
    batched: dict[str, list[int]] = {}
    for name, completion, answer, info in rows:
        module = load(name)
        if name in BATCHED:
            batched.setdefault(BATCHED[name], []).append(len(verdicts))
            verdicts.append(UNPARSABLE)
            continue
        if name not in POOLED:
            verdicts.append(verify_here(name, completion, answer, info))
            continue
        try:
            ready = _known(module, completion, answer, info) if len(completion) <= MAX_CHARS else UNPARSABLE
        except UserError:
            raise
        except Exception as error:
            ready = failed(type(error).__name__)
        if ready is None:
            pooled.append(len(verdicts))
        verdicts.append(ready)
    if pooled:
        from pipelines.verifiers import pool

        parts: dict[tuple[str, int], dict[str, Any]] = {}  # what is read of an info, once for all rows that share it
        requests = []
        for i in pooled:
            name, completion, answer, info = rows[i]
            part = parts.get((name, id(info)))
            if part is None:
                part = parts[name, id(info)] = {key: info.get(key) for key in POOLED[name]}
            requests.append(pool.Request("verify", name, completion, answer, part))
        for i, verdict in zip(pooled, pool.shared().run(requests), strict=True):
            assert isinstance(verdict, Verdict)
            verdicts[i] = verdict
    for runner, indices in batched.items():
        together = importlib.import_module(f"{PACKAGE}.{runner}").verify_many([rows[i] for i in indices])
        for i, verdict in zip(indices, together, strict=True):
            verdicts[i] = verdict
    return [v for v in verdicts if v is not None]


def gold(name: str, answer: str, info: dict[str, Any]) -> str | None:
    """A completion that the verifier must call correct: the answer, where it is no test or pattern; None: there is none."""
    module = load(name)
    return module.gold(answer, info) if hasattr(module, "gold") else answer


def open_ended(name: str, answer: str, info: dict[str, Any]) -> bool:
    """Whether texts that have nothing to do with the answer may be correct, as where only a form is asked for."""
    module = load(name)
    return hasattr(module, "open_ended") and module.open_ended(answer, info)


def refusal(name: str, answer: str, info: dict[str, Any]) -> str:
    """Why a verifier refuses a row whatever the completion; empty where it does not."""
    module = load(name)
    try:
        if name in POOLED:
            _known(module, "", answer, info)
        elif name in COMPOUND:
            module.parts("", answer, info)
    except DataError as error:
        return str(error)
    except Exception:  # a row that cannot be read is unscored, not refused
        return ""
    return ""


def fault(name: str, answer: str | None, info: dict[str, Any]) -> str:
    """Why a verifier could judge nothing by what a recipe gives it, such as a pattern that is none; empty where no reason is known.

    What is left to the records comes from the verifier's own test.

    >>> fault("regex", "(", {}), fault("regex", None, {"mode": "search"}), fault("overlap", "cat", {"metric": "bleu"})[:20]
    ('missing ), unterminated subpattern at position 0', '', "metric 'bleu' is non")
    """
    if name in SLOW_TO_TRY or (answer is None and name in TRIED_WITH_ANSWER):
        return ""
    from pipelines.verifiers._examples import examples_of

    examples, module = examples_of(name), load(name)
    if not examples:
        return ""
    example = examples[0]
    replaced = () if answer is None else POOLED.get(name, ())  # which else would come before the answer
    row = {key: value for key, value in example.info.items() if key not in replaced} | info
    try:
        (module.parts if name in COMPOUND else module.verify)("", example.answer if answer is None else answer, row)
    except Exception as error:
        text = (str(error).splitlines() or [""])[0][:200]
        return text if text and isinstance(error, ValueError | re.error) else f"{type(error).__name__}: {text}"
    return ""


def _known(module: ModuleType, completion: str, answer: str, info: dict[str, Any]) -> Verdict | None:
    """The verdict of a pooled verifier that needs no process; None where it needs one."""
    return module.known(completion, answer, info) if hasattr(module, "known") else None


def use_workers(count: int) -> None:
    """How many worker processes this process's verifiers may have, from its next batch on."""
    from pipelines.verifiers import pool

    pool.shared().resize(count)
    from pipelines.sandbox import pool as sandboxes

    sandboxes.configure(workers=count)


def _judged(name: str, completion: str) -> str:
    if name in READ_THINKING:
        return completion
    answer = after_thinking(completion)
    return (
        answer.partition("<think>")[0] if answer.lstrip().startswith("<think>") else answer
    )  # it never ends: no answer


def extract_answer(name: str, completion: str) -> str:
    """The answer in a completion in a form that equal answers share; empty where there is none.

    >>> extract_answer("number", "so 7. #### 1,007.0"), extract_answer("choice", "The answer is (b)")
    ('1007', 'B')
    >>> extract_answer("exact", " ab  c ")
    'ab c'
    """
    return extract_answers([(name, completion)])[0]


def extract_answers(rows: Sequence[tuple[str, str]]) -> list[str]:
    """`extract_answer` of (verifier, completion) rows, under the limits of `verify_many`; empty where they end it."""
    rows = [(name, _judged(name, text)) for name, text in rows]
    answers = ["" if n in POOLED else extract_here(n, text) for n, text in rows]
    pooled = [i for i, (name, text) in enumerate(rows) if name in POOLED and len(text) <= MAX_CHARS]
    if pooled:
        from pipelines.verifiers import pool

        requests = [pool.Request("extract", rows[i][0], rows[i][1], "", {}) for i in pooled]
        for i, answer in zip(pooled, pool.shared().run(requests), strict=True):
            answers[i] = str(answer)
    return answers
