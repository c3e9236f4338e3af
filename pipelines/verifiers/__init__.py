"""Text to score. A verifier is a module with `verify(completion, answer, info) -> Verdict`.

It may raise only where the gold answer or the row is bad. Verifiers whose work is linear in the text run in this process;
the others (`POOLED`) run in a pool of processes that can be killed, and may bring two more functions: `known` gives the
verdicts that need no process, `warm` loads what a worker should have before its first row.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import isfinite  # `import math` here would be replaced by the module of that name beside this file
from types import ModuleType
from typing import Any, Literal

from pipelines.base import plugins
from pipelines.base.errors import DataError, RecipeError, UserError, did_you_mean
from pipelines.data.chat import after_thinking
from pipelines.data.records import Problem

SLOT = "verifiers"
"""Under this name plug-ins bring verifiers."""
Status = Literal["correct", "incorrect", "unparsable", "timed_out", "verifier_failed"]
VERIFIERS = (
    "choice", "construction", "exact", "grades", "instructions", "inverse_dynamics", "json_schema", "math", "number", "overlap", "python",
    "reasoning_gym", "regex", "retrieval", "semantic", "sql", "staged", "tool_calls", "tool_format",
)  # fmt: skip
"""Every verifier: a module of this package that defines `verify`."""
POOLED: dict[str, tuple[str, ...]] = {
    "json_schema": ("schema",),
    "math": (),
    "reasoning_gym": ("task", "question", "metadata"),
    "regex": ("pattern", "mode", "flags"),
}
"""Verifiers that run in killable processes → the keys of `info` that they read."""
SANDBOXED = ("construction", "python", "sql")
"""Verifiers that run code: `job` says what the sandbox is to do."""
COMPOUND = ("semantic", "staged")
"""Verifiers that ask others: `parts` gives the rows that those verify, `combine` makes a batch's verdicts of theirs."""
BATCHED = dict.fromkeys(SANDBOXED, "_sandboxed") | dict.fromkeys(COMPOUND, "_compound")
"""Verifiers whose rows are verified together → the module that does."""
SLOW_TO_TRY = (*SANDBOXED, "math", "reasoning_gym", "retrieval")
"""Verifiers that need seconds, programs or files before they judge anything."""
TRIED_WITH_ANSWER = ("grades",)
"""Verifiers whose info says which answers there can be."""
RELABELLED = ("reasoning_gym",)
"""Verifiers that say what an incorrect answer answers: their modules have a function `relabel`."""
READ_THINKING = ("regex", "retrieval", "tool_format")
"""Verifiers that judge the form of the whole completion; the others are given what follows its reasoning."""
MAX_CHARS = 1_000_000
"""A longer completion is unparsable for them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier found.

    `score` is None only where the verifier itself failed: such a rollout is unscored, not incorrect.
    """

    score: float | None
    status: Status
    components: dict[str, float] = field(default_factory=dict)

    @property
    def correct(self) -> bool | None:
        """True where correct, None where unscored."""
        return None if self.score is None else self.status == "correct"


def correct_or_incorrect(ok: bool) -> Verdict:
    """1 or 0."""
    return Verdict(1.0, "correct") if ok else Verdict(0.0, "incorrect")


def failed(why: str) -> Verdict:
    """Unscored: the verifier itself failed.

    >>> failed("MemoryError").components
    {'error/MemoryError': 1.0}
    """
    return Verdict(None, "verifier_failed", {f"error/{why}": 1.0})


UNPARSABLE = Verdict(0.0, "unparsable")
TIMED_OUT = Verdict(0.0, "timed_out")
"""The completion took longer than a verifier may; 0, because whatever pays more than an incorrect answer is learned."""
NOT_BEGUN = failed("BatchTime")
"""The time of the batch was over before the completion had its turn: that is the others' fault, so it is unscored, never incorrect."""


def known() -> list[str]:
    """Every verifier: those of this package, and those of plug-ins (`PARTS["verifiers"]`: name → module)."""
    return sorted({*VERIFIERS, *plugins.origins().get(SLOT, {})})


def module_name(name: str) -> str:
    """Dotted name of the module that defines a verifier.

    Raises:
        DataError: there is none of that name.
    """
    if name in VERIFIERS:
        return f"{__name__}.{name}"
    brought = plugins.origins().get(SLOT, {}).get(name)
    if brought is None:
        raise DataError(f"unknown verifier {name!r}. {did_you_mean(name, known())}")
    return brought.module


@cache
def load(name: str) -> ModuleType:
    """The module of the verifier of that name.

    Raises:
        DataError: there is none.
    """
    return importlib.import_module(module_name(name))


def answer_text(completion: str) -> str:
    """The text in the last `<answer>` tags where there are any, else the whole completion, trimmed.

    >>> answer_text("x <answer> 4 </answer> y"), answer_text(" 5 ")
    ('4', '5')
    """
    if "<answer>" in completion:
        completion = completion.rsplit("<answer>", 1)[1].split("</answer>", 1)[0]
    return completion.strip()


def relabel(problem: Problem, completion: str) -> Problem | None:
    """The problem that an incorrect completion is a correct answer to, with the same uid; None where there is none.

    Raises:
        RecipeError: the verifier's module has no function `relabel(problem, completion)`.
    """
    function = getattr(load(problem.verifier), "relabel", None)
    if function is None:
        raise RecipeError(
            f"rlvr.rollout: the verifier {problem.verifier} cannot say what an incorrect answer answers (its module has no relabel). Use "
            "rollout: single_turn."
        )
    return function(problem, after_thinking(completion))


def extract_here(name: str, completion: str) -> str:
    """`extract_answer` in this process, without a limit."""
    module = load(name)
    if hasattr(module, "extract_answer"):
        return module.extract_answer(completion)
    return " ".join(answer_text(completion).split())


def verify_here(name: str, completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """`verify` in this process, without a limit; an exception gives an unscored verdict, never an incorrect one."""
    check = load(name).verify
    try:
        verdict = check(completion, answer, info)
    except Exception as error:
        return failed(type(error).__name__)
    if verdict.score is not None and not isfinite(verdict.score):
        return failed("NotFinite")
    return verdict


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
            known = _known(module, completion, answer, info) if len(completion) <= MAX_CHARS else UNPARSABLE
        except UserError:
            raise
        except Exception as error:
            known = failed(type(error).__name__)
        if known is None:
            pooled.append(len(verdicts))
        verdicts.append(known)
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
    for module_name, indices in batched.items():
        together = importlib.import_module(f"{__name__}.{module_name}").verify_many([rows[i] for i in indices])
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
    from pipelines.verifiers._self_test import EXAMPLES

    example, module = EXAMPLES[name][0], load(name)
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
