"""Instructions that can be checked in the text: the families of IFEval (arXiv 2311.07911), in linear time.

They are counted as google-research/instruction_following_eval counts them: a keyword is found within longer words too (`cat`
in `concatenate`), a forbidden word only as a word of its own. Keywords are plain text here, not regular expressions.
Sentences and words in capitals, for which the released code asks NLTK, are split by rules of our own, and no text in capitals
or in small letters is asked for its language.

`info`: `instruction_id_list` and `kwargs` as the data set has them, or `instructions`: a list of objects with `id` and
their arguments. The score is the share that is followed; correct where all are. `info["strict"]`: then anything less is 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from pipelines.verifiers.verdict import UNPARSABLE, Verdict

_WORD = re.compile(r"\w+")
_JOINED_WORD = re.compile(r"\w+(?:[-./&]\w+)*")
_SENTENCE = re.compile(r"[.!?]+(?=[\s\"')\]]|$)")
_HIGHLIGHT = re.compile(r"\*[^*\n]*\*")
_DOUBLE_HIGHLIGHT = re.compile(r"\*\*[^*\n]*\*\*")
_CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _relation(count: int, arguments: dict[str, Any], threshold: str, relation: str = "relation") -> bool:
    wanted = int(arguments[threshold])
    how = str(arguments.get(relation) or "at least")
    if how not in ("at least", "less than"):
        raise ValueError(f"{relation} {how!r} is neither `at least` nor `less than`")
    return count >= wanted if how == "at least" else count < wanted


def _occurrences(text: str, keyword: str) -> int:
    """How often a keyword occurs, within longer words too, whatever its case."""
    return len(re.findall(re.escape(keyword.strip()), text, re.IGNORECASE))


def _is_word(text: str, word: str) -> bool:
    """Whether a word occurs between two word boundaries, whatever its case."""
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


def _sentences(text: str) -> int:
    ends = len(_SENTENCE.findall(text))
    return ends + int(bool(text.strip()) and text.strip()[-1] not in ".!?\"')]")


def _paragraphs(text: str) -> int:
    """Paragraphs between dividers of three stars; 0 where one between others is empty."""
    parts = [part.strip() for part in text.split("***")]
    if not all(parts[1:-1]):
        return 0
    return sum(map(bool, parts))


def _nth_paragraph(text: str, a: dict[str, Any]) -> bool:
    paragraphs = text.split("\n\n")
    number, count = int(a["nth_paragraph"]), sum(bool(part.strip()) for part in paragraphs)
    if count != int(a["num_paragraphs"]) or not 1 <= number <= count or not paragraphs[number - 1].strip():
        return False
    word = paragraphs[number - 1].split()[0].lstrip("'").lstrip('"')
    return re.split("[.,?!'\"]", word, maxsplit=1)[0].lower() == str(a["first_word"]).lower()


def _placeholders(text: str) -> int:
    """Texts in square brackets, within a line."""
    count = 0
    for line in text.split("\n"):
        end = 0
        while (start := line.find("[", end)) >= 0 and (end := line.find("]", start)) >= 0:
            count += 1
    return count


def _bullets(text: str) -> int:
    """Lines that begin with a star before something else than a star, or with a dash.

    As in the released pattern, the end of a line is something else, and what follows it then belongs to the bullet.

    >>> _bullets("* a\\n  * b\\n- c\\n** d **"), _bullets("*\\n* a")
    (3, 1)
    """
    lines = [line.lstrip() for line in text.split("\n")]
    stars, at = 0, 0
    while at < len(lines):
        line, alone = lines[at], lines[at] == "*"
        if line.startswith("*") and line[1:2] != "*" and (not alone or at + 1 < len(lines)):
            stars += 1
            at += alone
        at += 1
    return stars + sum(line.startswith("-") for line in lines)


def _highlights(text: str) -> int:
    """Texts between stars, those between two stars on each side counted once more."""
    single = sum(bool(mark.strip("*").strip()) for mark in _HIGHLIGHT.findall(text))
    return single + sum(bool(mark[2:-2].strip()) for mark in _DOUBLE_HIGHLIGHT.findall(text))


def _title(text: str) -> bool:
    """Whether a line has something between its first << and its last >>."""
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end - 2 and line[start:end].lstrip("<").rstrip(">").strip():
            return True
    return False


def _sections(text: str, a: dict[str, Any]) -> bool:
    pattern = rf"{re.escape(str(a['section_spliter']).strip())}\s?\d"
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
    mark = str(a["postscript_marker"]).strip()
    pattern = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}.get(mark, re.escape(mark.lower()))
    return re.search(pattern, text.lower()) is not None


def _two_responses(text: str, a: dict[str, Any]) -> bool:
    parts = [part.strip() for part in text.split("******")]
    if any(not part for part in parts[1:-1]):
        return False
    answers = [part for part in parts if part]
    return len(answers) == 2 and answers[0] != answers[1]


def _capital_words(text: str) -> int:
    """Words in capitals; parts joined by a hyphen, a point, a slash or an ampersand are one word."""
    return sum(word.isupper() for word in _JOINED_WORD.findall(text))


FAMILIES: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    "keywords:existence": lambda t, a: all(_occurrences(t, word) for word in _several(a["keywords"])),
    "keywords:frequency": lambda t, a: _relation(_occurrences(t, str(a["keyword"])), a, "frequency"),
    "keywords:forbidden_words": lambda t, a: not any(_is_word(t, word) for word in _several(a["forbidden_words"])),
    "keywords:letter_frequency": lambda t, a: _relation(
        t.lower().count(str(a["letter"]).lower()), a, "let_frequency", "let_relation"
    ),
    "length_constraints:number_sentences": lambda t, a: _relation(_sentences(t), a, "num_sentences"),
    "length_constraints:number_words": lambda t, a: _relation(len(_WORD.findall(t)), a, "num_words"),
    "length_constraints:number_paragraphs": lambda t, a: _paragraphs(t) == int(a["num_paragraphs"]),
    "length_constraints:nth_paragraph_first_word": _nth_paragraph,
    "detectable_content:number_placeholders": lambda t, a: _placeholders(t) >= int(a["num_placeholders"]),
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": lambda t, a: _bullets(t) == int(a["num_bullets"]),
    "detectable_format:constrained_response": lambda t, a: any(choice in t for choice in _CHOICES),
    "detectable_format:number_highlighted_sections": lambda t, a: _highlights(t) >= int(a["num_highlights"]),
    "detectable_format:multiple_sections": _sections,
    "detectable_format:json_format": _json,
    "detectable_format:title": lambda t, a: _title(t),
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
