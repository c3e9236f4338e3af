"""Units behind a number: which words are one, which of them are the same, and which change the number."""

from __future__ import annotations

import re
from fractions import Fraction

SCALES = {
    name: Fraction(value)
    for name, value in {
        "dozen": 12, "hundred": 100, "thousand": 1000, "lakh": 10**5, "lakhs": 10**5, "million": 10**6, "crore": 10**7, "crores": 10**7,
        "billion": 10**9, "trillion": 10**12, "quadrillion": 10**15, "mln": 10**6, "bn": 10**9, "dozens": 12, "lac": 10**5, "mio": 10**6,
    }.items()
}  # fmt: skip
"""Words that multiply the number before them."""
_SAME = {
    "millimeter": "mm", "centimeter": "cm", "decimeter": "dm", "meter": "m", "kilometer": "km", "inch": "in", "inche":
    "in", "foot": "ft", "feet": "ft", "yard": "yd", "mile": "mi", "gram": "g", "gm": "g", "kilogram": "kg",
    "milligram": "mg", "ton": "t", "tonne": "t", "pound": "lb", "ounce": "oz", "second": "s", "sec": "s", "minute":
    "min", "hour": "h", "hr": "h", "day": "d", "week": "wk", "month": "mo", "year": "yr", "liter": "l", "milliliter":
    "ml", "gallon": "gal", "quart": "qt", "pint": "pt", "dollar": "$", "usd": "$", "buck": "$", "cent": "¢", "euro":
    "€", "rupee": "₹", "degree": "deg", "radian": "rad", "mph": "mi/h", "kph": "km/h", "kmph": "km/h", "unit": "unit",
    "newton": "n", "joule": "j", "watt": "w", "volt": "v", "amp": "a", "hertz": "hz", "kelvin": "k", "percent": "%",
    "acre": "acre", "hectare": "ha", "fps": "ft/s",
}  # fmt: skip
_KNOWN = {*_SAME, *_SAME.values(), "khz", "mhz", "pm", "am"}
_REFUSED = frozenset({
    "ones", "tens", "or", "and", "not", "no", "nor", "to", "than", "then", "more", "less", "fewer", "least", "most", "any", "all",
    "about", "approximately", "roughly", "around", "plus", "minus", "times", "divided", "squared", "cubed",
    "factorial", "mod", "modulo", "choose", "root", "if", "when", "where", "either", "neither", "except", "but",
    "other", "others", "rather", "instead", "never", "wrong", "incorrect", "false", "maybe", "perhaps", "possibly",
    "percent", "percentage", "half", "halves", "third", "thirds", "fourth", "fourths", "quarter", "fifth", "fifths",
    "sixth", "sixths", "seventh", "sevenths", "eighth", "eighths", "ninth", "ninths", "tenth", "tenths", "hundredth",
    "hundredths", "thousandth", "thousandths", "score", "gross", "couple", "pair", "infinity", "infinite",
    "undefined", "negative", "positive", "is", "are", "was", "equals", "hundreds", "thousands", "millions",
    "billions", "trillions", "between", "from", "through", "until", "up", "something", "anything", "nothing",
    "everything", "unknown", "k", "b", "n", "x", "y", "z",
    *SCALES,
})  # fmt: skip
"""Words that are no unit, or say something else than one."""
_WORD = re.compile(r"[A-Za-z$¢€₹°]{1,20}\.?")
MOST_WORDS = 6


def is_unit(phrase: str, *, known: bool = False) -> bool:
    """Whether words behind a number are a unit or name what is counted; `known`: whether they are a unit of measure.

    >>> is_unit("cm ^2"), is_unit("apples"), is_unit("or more"), is_unit("apples", known=True)
    (True, True, False, False)
    """
    words = [word.lower().rstrip(".") for word in re.split(r"[\s/*·.-]+|\^-?\d+", phrase) if word]
    if known:
        return len(words) == 1 and (words[0] in _KNOWN or words[0].removesuffix("s") in _SAME)
    if not 1 <= len(words) <= MOST_WORDS or not all(_WORD.fullmatch(word) for word in words):
        return False
    return not any(word in _REFUSED for word in words)


def unit_of(phrase: str) -> str:
    """A form that equal units share.

    >>> unit_of("square inches"), unit_of("in^2"), unit_of("miles per hour"), unit_of("mph")
    ('in^2', 'in^2', 'mi/h', 'mi/h')
    """
    text = " ".join(phrase.lower().replace("\\$", "$").replace(" ^", "^").split())
    text = re.sub(r"\s*/\s*|\s+per\s+(?:an?\s+)?|\s+an?\s+", "/", text)
    text = re.sub(r"\b(?:sq\.?|square) (\w+)", r"\1^2", re.sub(r"\b(?:cu\.?|cubic) (\w+)", r"\1^3", text))
    text = re.sub(r"(\w+) squared", r"\1^2", re.sub(r"(\w+) cubed", r"\1^3", text)).replace("tre", "ter")
    return re.sub(r"[a-z$¢€₹]+", lambda m: _stem(m[0]), text)


def _stem(word: str) -> str:
    if word in _SAME:
        return _SAME[word]
    stem = word.removesuffix("s")
    return _SAME.get(stem, stem if len(stem) > 2 else word)


def conflict(first: str, other: str) -> bool:
    """Whether two units are of different things; without a unit, and with `units`, anything goes.

    >>> conflict("km", "m"), conflict("", "km"), conflict("unit^2", "in^2")
    (True, False, False)
    """
    return first != other and not any(unit == "" or unit.startswith("unit") for unit in (first, other))
