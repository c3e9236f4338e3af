"""Characters that are written in several ways, in one: what the verifiers read is ASCII where it can be. Linear in the text."""

from __future__ import annotations

import re
import unicodedata

_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_EXPONENT = re.compile(r"[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_INDEX = re.compile(r"[₀-₉]+")
_VULGAR = re.compile(r"(\d ?)?([¼-¾⅐-⅞])")
_PLACES = re.compile(r"(?<=\d)٫(?=\d)")
_DASH = re.compile(r"(?<![\w)\]}%°.$])[–—](?=[$€£¥]?\.?\d)")
"""A dash that can only be a sign: right before a number, and after nothing that it could be subtracted from."""
_SAME = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2212\ufe63\u02d7", "-")
    | {
        "\u2044": "/",
        "\u2215": "/",
        "\u066a": "%",
        "\u066c": ",",
        "\u3002": ".",
        "\u3001": ",",
        "\u3000": " ",
        "\u22c5": "*",
    }
)


def ascii_forms(text: str) -> str:
    r"""The text without characters that cannot be seen, and with digits, signs and fractions of any script in ASCII.

    >>> ascii_forms("\uff11\uff12\uff05"), ascii_forms("1\u200b2"), ascii_forms("\u22125"), ascii_forms("10\u00b2 + 7\u00bd")
    ('12%', '12', '-5', '10^{2} + 7 1/2')
    """
    if text.isascii():
        return text
    text = _EXPONENT.sub(lambda m: f"^{{{m[0].translate(_RAISED)}}}", text)
    text = _INDEX.sub(lambda m: f"_{{{m[0].translate(_LOWERED)}}}", text)
    text = _VULGAR.sub(_fraction, text)
    text = _PLACES.sub(".", text).translate(_SAME)
    return _DASH.sub("-", "".join(c if c < "\x80" else _form(c) for c in text))


def _fraction(match: re.Match[str]) -> str:
    before = match[1].rstrip() + " " if match[1] else ""
    return before + unicodedata.normalize("NFKC", match[2]).replace("\u2044", "/")


def _form(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Cf" or character == "\ufe0f":
        return ""
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if "\uff01" <= character <= "\uff5e" or "\U0001d400" <= character <= "\U0001d7ff":
        return unicodedata.normalize("NFKC", character)
    return character
