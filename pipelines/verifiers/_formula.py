r"""Formulas as answers write them, in LaTeX or as calculators do: a text is read whole, or not at all.

A formula is a tuple of its kind and its parts:

    ("num", Fraction), ("sym", name), ("const", "pi" | "e" | "i" | "inf"), ("pm", 1 | -1) for the signs of \pm and \mp,
    ("add" | "mul" | "div" | "pow", a, b), ("neg" | "deg" | "pct", a), ("fn", name, a, ...), ("sum" | "prod", symbol, from, to, a)
    ("list" | "set", items), ("tuple", items, opening, closing), ("union" | "cap" | "minus", a, b), ("all", name of a set of numbers)
    ("matrix", rows), ("rel", [a, operator, b, operator, c ...]), ("such", symbol, relation), ("unit", a, unit)
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from pipelines.verifiers._tokens import (
    CONSTANTS,
    FUNCTIONS,
    GREEK,
    SAME_FUNCTION,
    Cursor,
    Token,
    Unread,
    exact_number,
    tokens,
)
from pipelines.verifiers._tree import Formula, mapped
from pipelines.verifiers._units import SCALES, is_unit, unit_of

MAX_CHARS, MAX_DEPTH = 2000, 60
_MANY = ("max", "min", "gcd", "lcm")
_SETS = ("R", "Z", "N", "Q", "C")
_COMPARES = ("=", "<", ">", "<=", ">=", "!=", "in", "≈")
_CLOSING = {"(": (")", "]"), "[": ("]", ")"), "{:": (":}",), "<:": (":>",)}
_ENDS = {
    ")", "]", "}", ":}", ":>", ":floor", ":ceil", ",", ";", "and", "or", "&", "\\\\", "\\end", "\\over", "\\choose", "mid", "cup", "cap",
    "minus", *_COMPARES,
}  # fmt: skip


def read(text: str, *, tight: bool = False) -> Formula:
    r"""The formula of a text.

    Args:
        text: LaTeX without dollar signs, or a calculator's form such as `sqrt(2)*pi`.
        tight: whether 1/2x is 1/(2x).

    Raises:
        Unread: a part of it is no formula.

    >>> read("2x + 1")
    ('add', ('mul', ('num', Fraction(2, 1)), ('sym', 'x')), ('num', Fraction(1, 1)))
    """
    if len(text) > MAX_CHARS:
        raise Unread("too long")
    reader = _Reader(tokens(text), tight)
    formula = reader.items()
    if reader.peek() != "":
        raise Unread(f"left over: {reader.peek()}")
    return formula


class _Reader(Cursor):
    """A recursive descent over tokens."""

    def __init__(self, listed: list[Token], tight: bool) -> None:
        super().__init__(listed)
        self.tight, self.depth, self.bars = tight, 0, 0

    def items(self, closing: tuple[str, ...] = ()) -> Formula:
        """One formula, or a list of them; `or` between relations is their union."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unread("nested too deeply")
        listed, words = [self.union()], set()
        while self.peek() in (",", ";", "and", "or"):
            word = self.take()
            while word in (",", ";") and self.peek() in ("and", "or"):
                word = self.take()
            words.add(word)
            listed.append(self.union())
        self.depth -= 1
        if len(listed) == 1:
            return listed[0]
        return ("list", listed, "and" if words <= {"and"} else "or" if words & {"or"} else ",")

    def union(self) -> Formula:
        """Relations, joined as sets are."""
        return self.joined(self.relation())

    def joined(self, formula: Formula) -> Formula:
        """A set with what is united with it, cut with it or taken away."""
        while self.peek() in ("cup", "cap", "minus") or (
            self.peek() == "U" and formula[0] in ("tuple", "set", "union")
        ):
            operator = self.take()
            formula = ("union" if operator in ("cup", "U") else operator, formula, self.relation())
        return formula

    def relation(self) -> Formula:
        """Sides with = < > and the like between them."""
        if self.peek() in ("=", ":") and self.at == 0:
            self.take()
        sides: list[Any] = [self.side()]
        while self.peek() in _COMPARES:
            sides.append(self.take())
            sides.append(self.joined(self.side()) if sides[-1] == "in" else self.side())
        return sides[0] if len(sides) == 1 else ("rel", sides)

    def side(self) -> Formula:
        """A sum, with a unit after it."""
        money = self.peek() if self.peek() in ("$", "\\$", "€", "£", "¥", "₹") else ""
        if money:
            self.take()
        sign = ""
        if self.peek() == "-" and self.peek(1) in ("$", "\\$", "€", "£"):
            sign, money = self.take(), self.take()
        formula: Formula = _signed(sign, self.sum())
        words: list[str] = []
        while self.kind() in ("text", "word") or (words and self.peek() in ("^", "/", "*", ".")):
            words.append(self.unit_word())
        phrase = " ".join(words)
        while phrase and phrase.partition(" ")[0].lower() in SCALES:
            scale, _, phrase = phrase.partition(" ")
            formula = ("mul", formula, ("num", SCALES[scale.lower()]))
        if phrase.lower() in ("percent", "per cent", "percentage"):
            return ("pct", formula)
        if not phrase:
            return ("unit", formula, unit_of(money)) if money else formula
        if not is_unit(phrase):
            raise Unread(f"{phrase!r} is no unit")
        return ("unit", formula, unit_of(phrase))

    def sum(self) -> Formula:
        """Terms with signs."""
        sign = self.take() if self.peek() in ("+", "-", "±", "∓") else ""
        formula = _signed(sign, self.term())
        while self.peek() in ("+", "-", "±", "∓"):
            sign = self.take()
            formula = ("add", formula, _signed(sign, self.signed_term() if self.peek() in ("+", "-") else self.term()))
        return formula

    def signed_term(self) -> Formula:
        """A term with a sign of its own, as in 14 + -1."""
        return _signed(self.take(), self.term())

    def term(self) -> Formula:
        """Factors, with or without a sign between them."""
        formula = self.factor()
        while True:
            operator = self.peek()
            if operator in ("*", "/") or (operator == ":" and self.kind(1) == "num"):
                self.take()
                sign = self.take() if self.peek() in ("+", "-") else ""
                second = self.product() if self.tight or operator == "*" else self.factor()
                formula = ("mul" if operator == "*" else "div", formula, _signed(sign, second))
            elif self.begins_factor():
                formula = self.juxtaposed(formula)
            else:
                return formula

    def product(self) -> Formula:
        """Factors without a sign between them."""
        formula = self.factor()
        while self.begins_factor():
            formula = self.juxtaposed(formula)
        return formula

    def juxtaposed(self, left: Formula) -> Formula:
        """The product of what stands side by side; a whole number and a proper fraction are a mixed number."""
        integral = self.kind(-1) == "num" and _integer(left)
        if self.kind() == "num":
            over = self.kind(-1) == "num" and integral and self.peek(1) == "/" and self.kind(2) == "num"
            if not over or not self.tokens[self.at].spaced:
                raise Unread("two numbers side by side")
            top = exact_number(self.take())
            self.take("/")
            bottom = exact_number(self.take())
            if not 0 < top < bottom:
                raise Unread("a mixed number that is none")
            return ("add", left, ("num", top / bottom))
        proper = integral and self.peek() == "\\frac"
        second = self.factor()
        if proper and second[0] == "pct":
            return ("pct", ("add", left, second[1]))
        fraction = second[0] == "div" and _integer(second[1]) and _integer(second[2])
        mixed = proper and fraction and 0 < second[1][1] < second[2][1]
        return ("add" if mixed else "mul", left, second)

    def begins_factor(self) -> bool:
        """Whether a factor may begin here."""
        text, kind = self.peek(), self.kind()
        if (
            text in ("", "+", "-", "±", "∓", "*", "/", ":", "^", "_", "!", "%", "°", "'")
            or text in _ENDS
            or kind == "text"
        ):
            return False
        if text == "|":
            return self.bars == 0
        if kind == "word" and len(text) > 1 and not self.splits(text):
            return False
        return not (text == "U" and self.peek(1) in ("(", "[", "{:"))

    def splits(self, word: str) -> bool:
        """Whether a word is a function, a constant or a product of letters, rather than a unit or prose."""
        if word in FUNCTIONS or word in SAME_FUNCTION or word in CONSTANTS or len(word) == 1:
            return True
        if self.at and self.kind(-1) in ("num", "sym") and is_unit(word, known=True) and self.peek(1) not in ("^",):
            return False
        return len(word) <= 3 and word.lower() not in ("not", "yes", "no", "nor", "any", "all", "non", "see")

    def factor(self) -> Formula:
        """An atom with what stands after it: powers, factorials, degrees, percent."""
        formula = self.atom()
        while True:
            text = self.peek()
            if text == "^" and self.degrees():
                formula = ("deg", formula)
            elif text == "^":
                self.take()
                if formula[0] == "pow":
                    raise Unread("a power of a power without brackets")
                formula = ("pow", formula, self.exponent())
            elif text == "!":
                self.take()
                formula = ("fn", "factorial", formula)
            elif text == "%":
                self.take()
                formula = ("pct", formula)
            elif text == "°":
                self.take()
                formula = ("deg", formula)
            else:
                return formula

    def exponent(self) -> Formula:
        """A group, or one sign and atom; for calculators a bracket or a number with a sign."""
        if self.peek() == "{":
            return self.group()
        sign, formula = self.take() if self.peek() in ("-", "+") else "", self.atom(digit=False)
        if self.peek() == "^":
            self.take()
            formula = ("pow", formula, self.exponent())
        return _signed(sign, formula)

    def group(self) -> Formula:
        """A formula in braces, with \\over or \\choose a fraction or a binomial."""
        self.take("{")
        formula = self.items()
        if self.peek() in ("\\over", "\\choose"):
            kind = ("div",) if self.take() == "\\over" else ("fn", "binom")
            formula = (*kind, formula, self.items())
        self.take("}")
        return formula

    def argument(self) -> Formula:
        r"""What a command such as \frac takes: a group, one digit or one atom; never a bracket."""
        if self.peek() == "{":
            return self.group()
        if self.peek() in ("(", "[", "|"):
            raise Unread("a bracket in the place of braces")
        return self.atom(digit=True)

    def atom(self, *, digit: bool = False) -> Formula:
        """The smallest formula; `digit`: of a number only the first digit."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unread("nested too deeply")
        kind, text = self.kind(), self.peek()
        if kind == "num":
            formula = self.number(digit)
        elif kind in ("word", "name") or text.removeprefix("\\") in GREEK:
            formula = self.named()
        elif kind == "cmd" or text.startswith("\\"):
            formula = self.command()
        else:
            formula = self.bracketed()
        self.depth -= 1
        return formula

    def number(self, digit: bool) -> Formula:
        """A number, exact; with the index of a base its value in it."""
        text = self.take()
        if digit and len(text) > 1:
            if not text.isdigit():
                raise Unread("a number in the place of a digit")
            self.at -= 1
            self.tokens[self.at] = Token("num", text[1:], False)
            text = text[0]
        if self.peek() != "_":
            return ("num", exact_number(text))
        base = self.index()
        if base in ("10", "ten"):
            return ("num", exact_number(text))
        if not base.isdigit() or not 2 <= int(base) <= 36:
            raise Unread("an index of a number")
        try:
            return ("fn", "base", ("num", Fraction(int(text, int(base)))), ("num", Fraction(int(base))))
        except ValueError:
            raise Unread("no number of that base") from None

    def named(self) -> Formula:
        """A letter, a constant or a function by its name."""
        kind, text = self.kind(), self.take()
        text = SAME_FUNCTION.get(text, text.removeprefix("\\"))
        if kind == "word" and text in FUNCTIONS:
            return self.function(text)
        if kind == "word" and len(text) > 1 and text not in CONSTANTS:
            self.at -= 1
            if not self.splits(text):
                raise Unread(f"the word {text!r}")
            self.tokens[self.at : self.at + 1] = [Token("word", letter, n == 0) for n, letter in enumerate(text)]
            return self.named()
        if text in CONSTANTS and self.peek() != "_":
            return ("const", CONSTANTS[text])
        name = text + (f"_{self.index()}" if self.peek() == "_" else "")
        while self.peek() == "'":
            name += self.take()
        return ("sym", name)

    def function(self, name: str) -> Formula:
        """A function with its power, its base and its argument."""
        power = base = None
        for _ in range(2):
            if self.peek() == "^" and power is None:
                self.take()
                power = self.exponent()
            elif self.peek() == "_" and name == "log" and base is None:
                self.take()
                base = self.argument() if self.peek() == "{" else self.atom(digit=True)
        if name in ("sqrt", "cbrt") or name in _MANY or name in ("abs", "floor", "ceil", "exp"):
            arguments = self.arguments(name)
        else:
            arguments = [self.operand()]
        if power == ("neg", ("num", Fraction(1))) and name in ("sin", "cos", "tan", "cot", "sec", "csc"):
            name, power = "arc" + name, None
        formula: Formula = ("fn", name, *arguments)
        if base is not None:
            formula = ("div", ("fn", "ln", *arguments), ("fn", "ln", base))
        return formula if power is None else ("pow", formula, power)

    def arguments(self, name: str) -> list[Formula]:
        """Arguments in brackets or braces; of a root also one atom."""
        if self.peek() in ("(", "{"):
            closing = ")" if self.take() == "(" else "}"
            formula = self.items()
            self.take(closing)
            listed = list(formula[1]) if formula[0] == "list" else [formula]
        elif name in ("sqrt", "cbrt"):
            listed = [self.atom(digit=False)]
        else:
            raise Unread(f"{name} without brackets")
        if len(listed) > 1 and name not in _MANY:
            raise Unread(f"{name} of several")
        return listed

    def operand(self) -> Formula:
        """The argument of a function: a bracket, or the factors up to the next sign or function."""
        if self.peek() in ("(", "{", "["):
            closing = {"(": ")", "{": "}", "[": "]"}[self.take()]
            formula = self.sum()
            self.take(closing)
            return formula
        sign = self.take() if self.peek() == "-" else ""
        formula = self.factor()
        while self.begins_factor() and not self.is_function():
            formula = self.juxtaposed(formula)
        if self.peek() == "/" and self.kind(1) == "num" and formula[0] != "num":
            self.take()
            formula = ("div", formula, self.factor())
        return _signed(sign, formula)

    def is_function(self) -> bool:
        """Whether a function's name comes next."""
        name = self.peek().removeprefix("\\")
        return SAME_FUNCTION.get(name, name) in FUNCTIONS

    def command(self) -> Formula:
        """What a LaTeX command makes."""
        text = self.take()
        name = text.removeprefix("\\")
        if name == "pi":
            return ("const", "pi")
        if name in ("frac", "binom"):
            first, second = self.argument(), self.argument()
            return ("div", first, second) if name == "frac" else ("fn", "binom", first, second)
        if name == "sqrt":
            index = None
            if self.peek() == "[":
                self.take()
                index = self.sum()
                self.take("]")
            inside = self.arguments("sqrt")[0] if self.peek() in ("(", "{") else self.argument()
            return ("fn", "sqrt", inside) if index is None else ("fn", "root", inside, index)
        if name in FUNCTIONS:
            return self.function(name)
        if name in ("sum", "prod"):
            return self.series(name)
        if name in ("mathbb", "R", "Z", "N", "Q", "C", "mathbf"):
            letter = name if name in _SETS else str(self.group()[-1])
            if letter in _SETS:
                return ("all", letter)
        if name == "begin":
            return self.matrix()
        raise Unread(f"the command {text}")

    def series(self, name: str) -> Formula:
        """A sum or product over a symbol."""
        bounds: dict[str, Formula] = {}
        for _ in range(2):
            mark = self.take("_", "^")
            bounds[mark] = self.group() if self.peek() == "{" else self.atom(digit=True)
        start = bounds.get("_", ("none",))
        if "^" not in bounds or start[0] != "rel" or start[1][1] != "=" or len(start[1]) != 3:
            raise Unread("a sum without bounds")
        symbol, body = start[1][0], self.term()
        if symbol == ("const", "i"):
            symbol, body = ("sym", "i"), mapped(body, lambda part: ("sym", "i") if part == ("const", "i") else None)
        if symbol[0] != "sym":
            raise Unread("a sum over no letter")
        return (name, symbol, start[1][2], bounds["^"], body)

    def matrix(self) -> Formula:
        """A matrix; a determinant's bars are a function of it."""
        self.take("{")
        kind = self.take()
        self.take("}")
        if kind not in ("pmatrix", "bmatrix", "matrix", "vmatrix", "Bmatrix", "smallmatrix", "array"):
            raise Unread(f"the environment {kind}")
        if kind == "array" and self.peek() == "{":
            self.skip_columns()
        rows: list[list[Formula]] = [[]]
        while self.peek() != "\\end":
            if self.peek() == "\\\\":
                self.take()
                if self.peek() != "\\end":
                    rows.append([])
            elif self.peek() == "&":
                self.take()
            else:
                rows[-1].append(self.items())
        self.take("\\end")
        for text in ("{", kind, "}"):
            self.take(text)
        if len({len(row) for row in rows}) != 1 or not rows[0]:
            raise Unread("rows of different lengths")
        return ("fn", "det", ("matrix", rows)) if kind == "vmatrix" else ("matrix", rows)

    def bracketed(self) -> Formula:
        """What stands in brackets of any kind, and the empty set."""
        opening = self.take()
        if opening in ("empty", "inf"):
            return ("set", []) if opening == "empty" else ("const", "inf")
        if opening == "{":
            self.at -= 1
            return self.group()
        if opening == "|":
            self.bars += 1
            formula = self.sum()
            self.take("|")
            self.bars -= 1
            return ("fn", "abs", formula)
        if opening in ("floor:", "ceil:"):
            formula = self.sum()
            self.take(":" + opening[:-1])
            return ("fn", opening[:-1], formula)
        if opening not in _CLOSING:
            raise Unread(f"{opening!r}")
        if (opening, self.peek()) == ("{:", ":}"):
            self.at += 1
            return ("set", [])
        bars, self.bars = self.bars, 0
        formula = self.items()
        if opening == "{:" and self.peek() in ("mid", "|", ":") and formula[0] in ("sym", "rel"):
            self.take()
            condition = self.items()
            self.take(":}")
            self.bars = bars
            return ("such", formula, condition)
        closing = self.take(*_CLOSING[opening])
        self.bars = bars
        listed = formula[1] if formula[0] == "list" else [formula]
        if opening == "{:":
            return ("set", listed)
        if len(listed) == 1 and (opening, closing) in (("(", ")"), ("[", "]")):
            return formula
        return ("tuple", listed, opening, closing)


def _signed(sign: str, formula: Formula) -> Formula:
    if sign == "-":
        return ("neg", formula)
    return ("mul", ("pm", 1 if sign == "±" else -1), formula) if sign in ("±", "∓") else formula


def _integer(formula: Formula) -> bool:
    return formula[0] == "num" and formula[1].denominator == 1
