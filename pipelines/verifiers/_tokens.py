"""The pieces of a formula as answers write it, in LaTeX or as calculators do."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple


class Unread(ValueError):
    """Something in a text is no formula that is known here."""


MAX_DIGITS = 1000


class Token(NamedTuple):
    """A piece of a formula, and whether white space comes before it."""

    kind: str
    text: str
    spaced: bool = False


_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<num>(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d{1,2}(?:,\d{2})+,\d{3}(?![\d,])|0,\d+(?![\d,])|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,5}(?!\w))?"
    r"|\.\d+(?:[eE][-+]?\d{1,5}(?!\w))?)"
    r"|(?P<text>\\(?:text(?:bf|it|rm|normal|tt)?|math(?:rm|bf|it|sf|tt)|mbox|operatorname\*?|boldsymbol|bm|vec|hat|overrightarrow)\s*"
    r"\{(?P<inner>[^{}]*)\})"
    r"|(?P<cmd>\\(?:[A-Za-z]+|.))"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<sym><=|>=|!=|\*\*|==|[^\s])",
    re.S,
)
_VECTORS = ("\\mathbf", "\\boldsymbol", "\\bm", "\\vec", "\\hat", "\\overrightarrow")
_NOTHING = {
    "\\displaystyle", "\\textstyle", "\\limits", "\\nolimits", "\\big", "\\Big", "\\bigg", "\\Bigg", "\\bigl", "\\bigr",
    "\\Bigl", "\\Bigr", "\\biggl", "\\biggr", "\\Biggl", "\\Biggr", "\\left", "\\right", "\\mleft", "\\mright",
    "\\middle", "\\,", "\\;", "\\:", "\\!", "\\ ", "\\quad", "\\qquad", "\\enspace", "\\thinspace",
}  # fmt: skip
_AS = {
    "\\{": "{:", "\\}": ":}", "\\lbrace": "{:", "\\rbrace": ":}", "\\lparen": "(", "\\rparen": ")", "\\lbrack": "[",
    "\\rbrack": "]", "\\langle": "<:", "\\rangle": ":>", "\\lvert": "|", "\\rvert": "|", "\\vert": "|", "\\mid": "mid",
    "\\lfloor": "floor:", "\\rfloor": ":floor", "\\lceil": "ceil:", "\\rceil": ":ceil", "⌊": "floor:", "⌋": ":floor",
    "⌈": "ceil:", "⌉": ":ceil", "\\cdot": "*", "\\times": "*", "\\ast": "*", "·": "*", "×": "*", "\\div": "/", "÷": "/",
    "**": "^", "\\pm": "±", "\\mp": "∓", "\\le": "<=", "\\leq": "<=", "\\leqslant": "<=", "≤": "<=", "\\ge": ">=",
    "\\geq": ">=", "\\geqslant": ">=", "≥": ">=", "\\lt": "<", "\\gt": ">", "\\ne": "!=", "\\neq": "!=", "≠": "!=",
    "==": "=", "\\in": "in", "∈": "in", "\\cup": "cup", "∪": "cup", "\\cap": "cap", "∩": "cap", "\\setminus": "minus",
    "\\backslash": "minus", "\\approx": "≈", "\\%": "%", "\\lor": "or", "\\vee": "or", "\\land": "and",
    "\\wedge": "and", "\\emptyset": "empty", "\\varnothing": "empty", "∅": "empty", "\\infty": "inf", "∞": "inf",
    "\\degree": "°", "\\prime": "'", "π": "\\pi", "√": "\\sqrt", "∛": "\\cbrt", "\\dfrac": "\\frac",
    "\\tfrac": "\\frac", "\\cfrac": "\\frac", "\\sfrac": "\\frac", "\\nicefrac": "\\frac", "\\dbinom": "\\binom",
    "\\tbinom": "\\binom", "\\imath": "i",
}  # fmt: skip
GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa",
    "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega", "Gamma",
    "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega", "ell",
)  # fmt: skip
LETTERS = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta", "ι":
    "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "ρ": "rho", "σ": "sigma", "τ": "tau", "υ":
    "upsilon", "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega",
}  # fmt: skip
FUNCTIONS = frozenset({
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "arcsec", "arccsc", "sinh",
    "cosh", "tanh", "coth", "ln", "log", "lg", "exp", "sqrt", "cbrt", "abs", "floor", "ceil", "max", "min", "gcd",
    "lcm",
})  # fmt: skip
SAME_FUNCTION = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "ceiling": "ceil", "arcsinh": "arsinh"}
CONSTANTS = {"pi": "pi", "π": "pi", "e": "e", "i": "i", "inf": "inf", "infinity": "inf", "oo": "inf"}


def tokens(text: str) -> list[Token]:
    """The pieces of a text; its words of more than one letter are whole.

    >>> [t.text for t in tokens(r"\\left(2x, \\frac12\\right]")]
    ['(', '2', 'x', ',', '\\\\frac', '12', ']']
    """
    listed: list[Token] = []
    spaced, depth = False, 0
    for match in _TOKEN.finditer(text):
        kind, piece = str(match.lastgroup), match[0]
        if kind == "inner":
            kind = "text"
        if kind == "space" or piece in _NOTHING:
            spaced = True
            continue
        if kind == "text":
            kind, piece = _worded(piece.partition("{")[0].strip(), match["inner"].strip())
            if not piece:
                continue
        piece = _AS.get(piece, piece)
        if piece in ("and", "or") or (kind == "cmd" and piece[0] != "\\"):
            kind = "word" if piece == "i" else "sym"
        depth += (piece in ("(", "[", "{:")) - (piece in (")", "]", ":}"))
        if kind == "num" and depth > 0 and "," in piece:  # (0,9) is a pair
            first, *others = piece.split(",")
            listed.append(Token("num", first, spaced))
            listed += [token for other in others for token in (Token("sym", ","), Token("num", other))]
            continue
        listed.append(Token(kind, LETTERS.get(piece, piece), spaced))
        spaced = False
    return listed


def _worded(command: str, inner: str) -> tuple[str, str]:
    """What a text within a formula is: a function, a letter, a number, a separator, or words."""
    inner = inner.replace("~", " ").strip()
    if command in _VECTORS and re.fullmatch(r"[A-Za-z]{1,2}", inner):
        return "name", f"vector {inner}"
    if re.fullmatch(r"\d+(?:\.\d+)?", inner) and command not in ("\\vec", "\\hat", "\\overrightarrow"):
        return "num", inner
    letter = (
        len(inner) == 1
        and inner.isalpha()
        and (inner in "ei" or (command != "\\text" and inner not in "mstghlLNJWVAKCF"))
    )
    if inner in FUNCTIONS or inner in SAME_FUNCTION or letter:
        return "word", inner
    return ("sym", inner.lower()) if inner.lower().strip(" ,") in ("and", "or") else ("text", inner)


class Cursor:
    """A place among tokens."""

    def __init__(self, listed: list[Token]) -> None:
        self.tokens, self.at = listed, 0

    def peek(self, ahead: int = 0) -> str:
        """The text of a token that comes; empty at the end."""
        at = self.at + ahead
        return self.tokens[at].text if at < len(self.tokens) else ""

    def kind(self, ahead: int = 0) -> str:
        """The kind of a token that comes."""
        at = self.at + ahead
        return self.tokens[at].kind if at < len(self.tokens) else ""

    def take(self, *texts: str) -> str:
        """The next token's text, which must be one of those given, if any are."""
        text = self.peek()
        if text == "" or (texts and text not in texts):
            raise Unread(f"{text!r} in the place of {texts}")
        self.at += 1
        return text

    def unit_word(self) -> str:
        """A word of a unit, its power or what joins two."""
        text = self.take()
        if text != "^":
            return text
        if self.peek() != "{":
            return "^" + self.take()
        self.take()
        sign = self.take("-") if self.peek() == "-" else ""
        power = self.take()
        self.take("}")
        return f"^{sign}{power}"

    def skip_columns(self) -> None:
        """Skip the columns of an array."""
        while self.take() != "}":
            pass

    def index(self) -> str:
        """The text of an index."""
        self.take("_")
        if self.peek() != "{":
            return self.take()
        start, depth = self.at, 0
        while True:
            text = self.take()
            depth += (text == "{") - (text == "}")
            if depth == 0:
                return "".join(t.text for t in self.tokens[start + 1 : self.at - 1])

    def degrees(self) -> bool:
        """Take the circle of degrees, if it comes."""
        for shape in (("^", "\\circ"), ("^", "{", "\\circ", "}"), ("^", "°")):
            if all(self.peek(n) == text for n, text in enumerate(shape)):
                self.at += len(shape)
                return True
        return False


def exact_number(text: str) -> Fraction:
    """The value of a number's token.

    Raises:
        Unread: it has too many digits.
    """
    if len(text) > MAX_DIGITS:
        raise Unread("a number of too many digits")
    if re.fullmatch(r"0,\d+", text):
        text = text.replace(",", ".")
    mantissa, _, exponent = text.replace(",", "").lower().partition("e")
    if exponent and abs(int(exponent)) > MAX_DIGITS:
        raise Unread("a number of too many digits")
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0)
