"""IFEval (2311.07911): the share of prompts, and of instructions, that answers follow, strictly and loosely.

Columns, prompts, the eight readings of a loose judgement and the four figures are those of lm-eval's task of this name. What follows an
instruction the verifier `instructions` says, which needs no data of NLTK; languages are detected with langdetect, of the extra `ifeval`.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from typing import Any

from evaluation import own_rows
from evaluation.own_rows import RowFault
from evaluation.scoring import answers_of
from pipelines.base.distribution import install_hint
from pipelines.base.errors import UserError
from pipelines.verifiers import instructions

COLUMNS: dict[str, type | tuple[type, ...]] = {
    "key": (int, str), "prompt": str, "instruction_id_list": list, "kwargs": list,
}  # fmt: skip
HUB = "google/IFEval"
LANGUAGE = "language:response_language"
CASES: dict[str, Callable[[str], bool]] = {
    "change_case:english_capital": str.isupper, "change_case:english_lowercase": str.islower,
}  # fmt: skip
"""Of these the benchmark also asks that the text is English."""
Listed = list[tuple[str, dict[str, Any]]]


def documents(data: str | None = None) -> Iterator[dict[str, Any]]:
    """A document for each prompt of a file, or of the data set on the hub.

    Raises:
        DataError: the file cannot be read, or a row of it cannot be asked.
        UserError: an instruction is about a language, and the extra `ifeval` is missing.
    """
    for place, row in own_rows.rows(data, COLUMNS) if data is not None else _published():
        listed = listed_of(place, row["instruction_id_list"], row["kwargs"])
        if any(name == LANGUAGE or name in CASES for name, _ in listed):
            require_languages()
        yield {
            "prompt": row["prompt"],
            "key": str(row["key"]),
            "instruction_id_list": [name for name, _ in listed],
            "kwargs": json.dumps([arguments for _, arguments in listed]),
        }


def require_languages() -> None:
    """Languages can be detected.

    Raises:
        UserError: the extra is missing.
    """
    if importlib.util.find_spec("langdetect") is None:
        raise UserError(
            "IFEval asks for languages, and langdetect is not installed (extra: ifeval)", fix=install_hint("ifeval")
        )


def _published() -> Iterator[tuple[str, dict[str, Any]]]:
    from datasets import load_dataset

    for number, row in enumerate(load_dataset(HUB, split="train"), 1):
        yield f"{HUB}:{number}", row


def listed_of(place: str, names: list[Any], arguments: list[Any]) -> Listed:
    """Family and arguments of every instruction; arguments without a value are left out, as in the released code.

    Raises:
        RowFault: a family is unknown, or an argument is missing or of another kind.
    """
    if not names:
        raise RowFault(place, "instruction_id_list", "is empty")
    if len(arguments) != len(names):
        raise RowFault(place, "kwargs", f"has {len(arguments)} entries for {len(names)} instructions")
    listed: Listed = []
    for at, (name, told) in enumerate(zip(names, arguments, strict=True)):
        if name != LANGUAGE and name not in instructions.FAMILIES:
            known = ", ".join(sorted([*instructions.FAMILIES, LANGUAGE]))
            raise RowFault(place, f"instruction_id_list[{at}]", f"no instruction {name!r}; known: {known}")
        if not isinstance(told, dict | None):
            raise RowFault(place, f"kwargs[{at}]", "is no object")
        kept = {key: value for key, value in (told or {}).items() if value}
        try:
            _ = kept["language"] if name == LANGUAGE else instructions.FAMILIES[name]("A text.", kept)
        except (KeyError, ValueError, TypeError) as error:
            fault = f"lacks {error}" if isinstance(error, KeyError) else str(error)[:100]
            raise RowFault(place, f"kwargs[{at}]", f"{name}: {fault}") from None
        listed.append((name, kept))
    return listed


def readings(answer: str) -> list[str]:
    """The texts of which one must follow an instruction in a loose judgement: with or without first line, last line and stars.

    >>> readings("Sure!\\n*Yes*")[2:4]
    ['*Yes*', 'Sure!']
    """
    lines = answer.split("\n")
    cut = ["\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1])]
    return [answer, answer.replace("*", ""), *cut, *(text.replace("*", "") for text in cut)]


def follows(text: str, name: str, arguments: dict[str, Any]) -> bool:
    """Whether a text follows an instruction; an empty one follows none."""
    if not text.strip():
        return False
    if name == LANGUAGE:
        return _is_language(text, str(arguments["language"]))
    if name in CASES:
        return CASES[name](text) and _is_language(text, "en")
    return instructions.FAMILIES[name](text, arguments)


def _is_language(text: str, language: str) -> bool:
    """Whether a text is in a language, or in none that can be told."""
    import langdetect

    langdetect.DetectorFactory.seed = 0  # it draws; without a seed two detections of one text may differ
    try:
        return bool(langdetect.detect(text) == language)
    except langdetect.LangDetectException:
        return True


def process_results(doc: dict[str, Any], results: list[Any]) -> dict[str, Any]:
    """The four figures of one prompt: shares of its answers for the prompt, a verdict for every answer and instruction."""
    listed = list(zip(doc["instruction_id_list"], json.loads(doc["kwargs"]), strict=True))
    judged: dict[str, list[list[bool]]] = {"strict": [], "loose": []}
    for answer in answers_of(results):
        judged["strict"].append([follows(answer, *each) for each in listed])
        texts = readings(answer)
        judged["loose"].append([any(follows(text, *each) for text in texts) for each in listed])
    figures: dict[str, Any] = {}
    for how, verdicts in judged.items():
        figures[f"prompt_level_{how}_acc"] = sum(map(all, verdicts)) / len(verdicts)
        figures[f"inst_level_{how}_acc"] = [verdict for each in verdicts for verdict in each]
    return figures


def pooled(verdicts: list[list[bool]]) -> float:
    """The share of all instructions that are followed."""
    every = [verdict for each in verdicts for verdict in each]
    return sum(every) / len(every)
