"""One record out of many conventions: TRL, verl, open-r1, verifiers, GSM8K, and columns named by the recipe."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from typing import Any

from pipelines import verifiers
from pipelines.data.records import Message, Problem
from pipelines.errors import DataError
from pipelines.recipe.settings import Source
from pipelines.stage.files import dumps

PROMPTS = ("prompt", "problem", "question", "instruction", "input", "query", "Question")
ANSWERS = ("answer", "ground_truth", "target", "final_answer", "label", "output", "Answer")
SOLUTIONS = ("solution", "completion", "response", "rationale", "generated_solution")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_METADATA = re.compile(r"\{metadata\.(\w+)\}")
_BOXED = re.compile(r"\\boxed\s*\{")
_GSM8K = re.compile(r"####\s*(.+?)\s*$", re.S)


class Rejected(ValueError):
    """A row that cannot become a record; the message is the reason written to the quarantine file."""


def to_problem(row: dict[str, Any] | str, source: Source, *, self_check: bool) -> Problem:
    """A record from a raw row.

    Args:
        row: the columns, or the text of an unreadable line.
        source: says which columns hold what, where it is not recognised.
        self_check: require that the gold answer verifies itself.

    Raises:
        Rejected: the reason, in words.
    """
    if isinstance(row, str):
        raise Rejected("not a JSON object")
    prompt = [{"role": m["role"], "content": normalise(m["content"])} for m in _prompt(row, source)]
    if not any(m["role"] == "user" and m["content"] for m in prompt):
        raise Rejected("the prompt is empty")
    answer, solution = _answer(row, source)
    verifier = source.verifier or str(row.get("verifier") or "math")
    if verifier not in verifiers.VERIFIERS:
        raise Rejected(f"unknown verifier {verifier!r}")
    info = dict(row["info"]) if isinstance(row.get("info"), dict) else {}
    if isinstance(row.get("extra_info"), dict):
        info |= row["extra_info"]
    info.setdefault("split", source.split)
    if solution:
        info["solution"] = solution
    name = str(row.get("data_source") or source.task or source.path)
    if self_check:
        try:
            verdict = verifiers.verify(verifier, answer, answer, info)
        except DataError as error:
            raise Rejected(str(error)) from error
        if not verdict.correct:
            raise Rejected(f"the answer {answer[:80]!r} does not verify itself with {verifier} ({verdict.status})")
    uid = str(row["uid"]) if row.get("uid") and len(str(row["uid"])) <= 64 else problem_uid(name, prompt)
    return Problem(
        uid=uid, prompt=prompt, answer=answer, verifier=verifier, source=name, licence=source.licence, info=info
    )


def problem_uid(source: str, prompt: list[Message]) -> str:
    """32 hexadecimal characters that depend on the source's name and the prompt only."""
    return hashlib.sha256(dumps([source, prompt]).encode()).hexdigest()[:32]


def normalise(text: Any) -> str:
    r"""NFC, Unix line ends, no control characters, no white space at line ends or around the text.

    >>> normalise("  a\r\nb \x00 ")
    'a\nb'
    """
    text = unicodedata.normalize("NFC", str(text)).replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROL.sub("", text)
    return "\n".join(line.rstrip() for line in text.split("\n")).strip()


def _pick(row: dict[str, Any], source: Source, what: str, known: tuple[str, ...]) -> Any:
    if what in source.columns:
        column = source.columns[what]
        if column not in row:
            raise Rejected(f"no column {column!r} (curate.sources.columns.{what}); the row has {', '.join(row)}")
        return row[column]
    return next((row[c] for c in known if row.get(c) not in (None, "", [])), None)


def _prompt(row: dict[str, Any], source: Source) -> list[Message]:
    value = _pick(row, source, "prompt", PROMPTS)
    if value is None and isinstance(row.get("messages"), list):
        value = row["messages"]
    if isinstance(row.get("Body"), str) and isinstance(value, str):
        value = f"{row['Body'].rstrip(' .')}. {value}"
    if value is None:
        raise Rejected(f"no prompt: none of {', '.join(PROMPTS)} or messages")
    if isinstance(value, list):
        if not all(isinstance(m, dict) and {"role", "content"} <= set(m) for m in value):
            raise Rejected("the prompt is a list of something other than messages with role and content")
        messages = [{"role": str(m["role"]), "content": str(m["content"])} for m in value]
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
    else:
        messages = [{"role": "user", "content": str(value)}]
    if source.prompt_template:
        messages[-1]["content"] = _fill(source.prompt_template, messages[-1]["content"], row)
    system = source.system or (row.get(source.columns["system"]) if "system" in source.columns else None)
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": str(system)})
    return messages


def _fill(template: str, prompt: str, row: dict[str, Any]) -> str:
    info = row.get("info")
    metadata = json.loads(info["metadata"]) if isinstance(info, dict) and "metadata" in info else {}

    def value(match: re.Match[str]) -> str:
        key = match.group(1)
        if key not in metadata:
            raise Rejected(f"prompt_template asks for metadata {key!r}; the entry has {', '.join(metadata)}")
        found = metadata[key]
        if not isinstance(found, list):
            return str(found)
        return ("" if all(len(str(f)) == 1 for f in found) else " ").join(map(str, found))

    return _METADATA.sub(value, template).replace("{prompt}", prompt)


def _answer(row: dict[str, Any], source: Source) -> tuple[str, str | None]:
    """Gold answer and worked solution (or None)."""
    value = _pick(row, source, "answer", ANSWERS)
    solution = _pick(row, source, "solution", SOLUTIONS)
    reward_model = row.get("reward_model")
    if value is None and isinstance(reward_model, dict):
        value = reward_model.get("ground_truth")
    if isinstance(solution, list) and solution and isinstance(solution[-1], dict):
        solution = solution[-1].get("content")
    if solution is None and isinstance(row.get("messages"), list) and row["messages"][-1].get("role") == "assistant":
        solution = row["messages"][-1]["content"]
    if value is None and isinstance(solution, str):
        value = boxed(solution)
    if isinstance(value, list):
        value = value[0] if value else None
    if value is None or not normalise(value):
        raise Rejected("the row has no answer")
    text = normalise(value)
    how = source.answer_from
    if how == "gsm8k" or (how is None and isinstance(value, str) and _GSM8K.search(text)):
        found = _GSM8K.search(text)
        if not found:
            raise Rejected("the answer has no '#### value' line (answer_from: gsm8k)")
        solution, text = solution or text, found.group(1).replace(",", "").strip()
    elif how == "boxed" or (how is None and _BOXED.search(text)):
        inner = boxed(text)
        if inner is None:
            raise Rejected(r"the answer has no \boxed{} (answer_from: boxed)")
        solution, text = solution or text, inner
    return text, normalise(solution) if solution is not None else None


def boxed(text: str) -> str | None:
    r"""Contents of the last `\boxed{...}`, braces balanced; None where there is none.

    >>> boxed(r"so \boxed{\frac{1}{2}} holds")
    '\\frac{1}{2}'
    """
    found = list(_BOXED.finditer(text))
    if not found:
        return None
    depth, start = 1, found[-1].end()
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start:i].strip()
    return None
