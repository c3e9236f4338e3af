"""Instructions that can be checked in the text: the families of IFEval (arXiv 2311.07911), in linear time.

`info`: `instruction_id_list` and `kwargs` as the data set has them, or `instructions`: a list of objects with `id` and
their arguments. The score is the share that is followed; correct where all are. `info["strict"]`: then anything less is 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from pipelines.verifiers import UNPARSABLE, Verdict

_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"[.!?]+(?=[\s\"')\]]|$)")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]{1,200}\]")
_BULLET = re.compile(r"^[ \t]{0,16}[*-][ \t]{1,8}\S", re.MULTILINE)
_HIGHLIGHT = re.compile(r"(?<!\*)\*[^*\n]{1,500}\*(?!\*)|\*\*[^*\n]{1,500}\*\*")
_TITLE = re.compile(r"<<[^<>\n]{1,300}>>")
_RULE = re.compile(r"^[ \t]{0,8}\*\*\*[ \t]{0,8}$", re.MULTILINE)
_CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _relation(count: int, arguments: dict[str, Any], threshold: str, relation: str = "relation") -> bool:
    wanted = int(arguments[threshold])
    how = str(arguments.get(relation) or "at least")
    if how not in ("at least", "less than"):
        raise ValueError(f"{relation} {how!r} is neither `at least` nor `less than`")
    return count >= wanted if how == "at least" else count < wanted


def _occurrences(text: str, keyword: str) -> int:
    """How often a keyword occurs as a word of its own, whatever its case."""
    pattern = rf"(?<!\w){re.escape(keyword.strip())}(?!\w)"
    return len(re.findall(pattern, text, re.IGNORECASE))


def _sentences(text: str) -> int:
    ends = len(_SENTENCE.findall(text))
    return ends + int(bool(text.strip()) and text.strip()[-1] not in ".!?\"')]")


def _paragraphs(text: str) -> list[str] | None:
    """Paragraphs between lines of three stars; None where one between others is empty."""
    parts = _RULE.split(text)
    inner = [part.strip() for part in parts]
    if any(not part for part in inner[1:-1]):
        return None
    return [part for part in inner if part]


def _nth_paragraph(text: str, a: dict[str, Any]) -> bool:
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    number = int(a["nth_paragraph"])
    if len(paragraphs) != int(a["num_paragraphs"]) or not 1 <= number <= len(paragraphs):
        return False
    first = paragraphs[number - 1].split()[0].strip("\"'.,?!").lower()
    return first == str(a["first_word"]).lower()


def _sections(text: str, a: dict[str, Any]) -> bool:
    pattern = rf"(?<!\w){re.escape(str(a['section_spliter']).strip())}[ \t]{{0,4}}\d{{1,4}}"
    return len(re.findall(pattern, text)) >= int(a["num_sections"])


def _json(text: str, a: dict[str, Any]) -> bool:
    body = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        body = body.removeprefix(fence)
    try:
        json.loads(body.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _postscript(text: str, a: dict[str, Any]) -> bool:
    mark = str(a["postscript_marker"]).strip().lower()
    forms = {"p.s.": ("p.s.", "p. s.", "ps."), "p.p.s": ("p.p.s", "p. p. s", "pps")}.get(mark, (mark,))
    return any(line.strip().lower().startswith(forms) for line in text.splitlines())


def _two_responses(text: str, a: dict[str, Any]) -> bool:
    parts = [part.strip() for part in text.split("******")]
    if any(not part for part in parts[1:-1]):
        return False
    answers = [part for part in parts if part]
    return len(answers) == 2 and answers[0] != answers[1]


def _capital_words(text: str) -> int:
    return sum(1 for word in _WORD.findall(text) if word.isupper() and any(c.isalpha() for c in word))


FAMILIES: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    "keywords:existence": lambda t, a: all(_occurrences(t, word) for word in _several(a["keywords"])),
    "keywords:frequency": lambda t, a: _relation(_occurrences(t, str(a["keyword"])), a, "frequency"),
    "keywords:forbidden_words": lambda t, a: not any(_occurrences(t, word) for word in _several(a["forbidden_words"])),
    "keywords:letter_frequency": lambda t, a: _relation(
        t.lower().count(str(a["letter"]).lower()), a, "let_frequency", "let_relation"
    ),
    "length_constraints:number_sentences": lambda t, a: _relation(_sentences(t), a, "num_sentences"),
    "length_constraints:number_words": lambda t, a: _relation(len(_WORD.findall(t)), a, "num_words"),
    "length_constraints:number_paragraphs": lambda t, a: len(_paragraphs(t) or ()) == int(a["num_paragraphs"]),
    "length_constraints:nth_paragraph_first_word": _nth_paragraph,
    "detectable_content:number_placeholders": lambda t, a: len(_PLACEHOLDER.findall(t)) >= int(a["num_placeholders"]),
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": lambda t, a: len(_BULLET.findall(t)) == int(a["num_bullets"]),
    "detectable_format:constrained_response": lambda t, a: sum(choice in t for choice in _CHOICES) == 1,
    "detectable_format:number_highlighted_sections": lambda t, a: (
        len({h.strip("*").strip() for h in _HIGHLIGHT.findall(t)} - {""}) >= int(a["num_highlights"])
    ),
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json,
    "detectable_format:title": lambda t, a: any(h.strip("<>").strip() for h in _TITLE.findall(t)),
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": lambda t, a: t.strip().lower().startswith(str(a["prompt_to_repeat"]).strip().lower()),
    "startend:end_checker": lambda t, a: t.strip().strip('"').lower().endswith(str(a["end_phrase"]).strip().lower()),
    "startend:quotation": lambda t, a: len(t.strip()) > 1 and t.strip()[0] == t.strip()[-1] == '"',
    "change_case:capital_word_frequency": lambda t, a: _relation(
        _capital_words(t), a, "capital_frequency", "capital_relation"
    ),
    "change_case:english_capital": lambda t, a: t.isupper(),
    "change_case:english_lowercase": lambda t, a: t.islower(),
    "punctuation:no_comma": lambda t, a: "," not in t,
}
"""Family → whether a text follows it. `language:response_language` needs a model and is not among them."""


def _several(value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item.strip() for item in value):
        raise ValueError("keywords are a list of words")
    return value


def instructions_of(info: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Family and arguments of every instruction of a row.

    Raises:
        ValueError: there are none, or a family is unknown.
    """
    if "instructions" in info:
        listed = [(str(entry["id"]), dict(entry)) for entry in info["instructions"]]
    else:
        names = info.get("instruction_id_list") or []
        listed = [(str(n), dict(k or {})) for n, k in zip(names, info.get("kwargs") or [{}] * len(names), strict=True)]
    if not listed:
        raise ValueError("the row has no instructions")
    unknown = [name for name, _ in listed if name not in FAMILIES]
    if unknown:
        raise ValueError(f"no instruction {unknown[0]!r}; known: {', '.join(FAMILIES)}")
    return listed


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The share of instructions that the completion follows.

    Raises:
        ValueError, KeyError: an instruction is unknown, or lacks an argument.
    """
    listed = instructions_of(info)
    followed = {
        f"{name}/{at}": float(FAMILIES[name](completion, arguments)) for at, (name, arguments) in enumerate(listed)
    }
    if not completion.strip():
        return UNPARSABLE
    share = sum(followed.values()) / len(followed)
    components = {"followed": share} | followed
    score = share if share == 1.0 or not info.get("strict") else 0.0
    return Verdict(score, "correct" if share == 1.0 else "incorrect", components)


def open_ended(answer: str, info: dict[str, Any]) -> bool:
    """True: only a form is asked for."""
    return True


def gold(answer: str, info: dict[str, Any]) -> str | None:
    """A text that must be correct: the row's `example`."""
    return info.get("example")
