"""Values of formulas: exact where they are rational, else to 250 digits; two formulas are equal where their values are.

Formulas with letters are compared at points: rational ones between 0 and 4, with either sign, and small integers. Where one of two
formulas has no real value, as ln x at -1, the point tells nothing. Work is bounded: what would take long has no value.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from mpmath import mp, mpc, mpf

from pipelines.verifiers._tree import Formula, free, has

MAX_BITS = 100_000
"""Of an exact number; a larger one is compared by its digits."""
MAX_NODES, MAX_STEPS = 20_000, 60_000
"""Steps of one exact evaluation, and of all the others of one comparison."""
MAX_EXPONENT = 10**12
DIGITS, MORE_DIGITS = 60, 250
LEAST_POINTS = 3
"""Points at which both formulas must have a value."""


class NoValue(ArithmeticError):
    """A formula has no value here, or none that could be had in reasonable time."""


class TooMuchWork(ArithmeticError):
    """A comparison takes more steps than it may."""


class _Exact:
    """Rational values."""

    def __init__(self) -> None:
        self.steps = 0

    def value(self, f: Formula, known: Mapping[str, Fraction]) -> Fraction | None:
        """The value; None where it is not rational, or too large.

        Raises:
            NoValue: a division by zero.
        """
        self.steps += 1
        if self.steps > MAX_NODES:
            return None
        kind = f[0]
        if kind == "num":
            return f[1]
        if kind == "sym":
            return known.get(f[1])
        if kind in ("sum", "prod"):
            return self.series(f, known)
        if kind not in ("add", "mul", "div", "pow", "neg", "pct", "fn"):
            return None
        inner = [self.value(part, known) for part in f[1:] if isinstance(part, tuple)]
        values = [value for value in inner if value is not None]
        if len(values) < len(inner):
            return None
        self.steps += sum(value.numerator.bit_length() + value.denominator.bit_length() for value in values) // 1000
        return _bounded(_function(f[1], values) if kind == "fn" else _operation(kind, values))

    def series(self, f: Formula, known: Mapping[str, Fraction]) -> Fraction | None:
        """The value of a sum or product whose bounds are integers."""
        name, symbol, start, stop, body = f
        low, high = self.value(start, known), self.value(stop, known)
        if low is None or high is None or low.denominator > 1 or high.denominator > 1 or high - low > MAX_NODES:
            return None
        total = Fraction(name == "prod")
        for index in range(int(low), int(high) + 1):
            term = self.value(body, {**known, symbol[1]: Fraction(index)})
            result = _bounded(None if term is None else total + term if name == "sum" else total * term)
            if result is None:
                return None
            total = result
        return total


def exact(formula: Formula) -> Fraction | None:
    """The rational value of a formula without letters; None where it is none, or too large.

    Raises:
        NoValue: a division by zero.
    """
    return _Exact().value(formula, {})


def _bounded(value: Fraction | None) -> Fraction | None:
    large = value is not None and max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS
    return None if large else value


def _operation(kind: str, values: list[Fraction]) -> Fraction | None:
    first, second = values[0], values[-1]
    if kind == "add":
        return first + second
    if kind == "mul":
        return first * second
    if kind == "neg":
        return -first
    if kind == "pct":
        return first / 100
    if (kind == "div" and second == 0) or (kind == "pow" and first == 0 and second < 0):
        raise NoValue("a division by zero")
    if kind == "div":
        return first / second
    bits = max(first.numerator.bit_length(), first.denominator.bit_length())
    if second.denominator > 1000 or abs(second.numerator) * bits > MAX_BITS:
        return None if abs(first) != 1 or second.denominator > 1 else first ** (second.numerator % 2)
    power = first**second.numerator
    return power if second.denominator == 1 else _root(power, second.denominator)


def _root(value: Fraction, index: int) -> Fraction | None:
    """The rational root; None where there is none."""
    if index < 1 or (value < 0 and index % 2 == 0):
        return None
    top, bottom = _whole_root(abs(value.numerator), index), _whole_root(value.denominator, index)
    if top is None or bottom is None:
        return None
    return Fraction(-top if value < 0 else top, bottom)


def _whole_root(number: int, index: int) -> int | None:
    if number < 2 or index == 1:
        return number
    if index == 2:
        root = math.isqrt(number)
    else:
        low, high = 0, 1 << (number.bit_length() // index + 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**index <= number else (low, middle - 1)
        root = low
    return root if root**index == number else None


def _function(name: str, values: list[Fraction]) -> Fraction | None:
    first, integral = values[0], all(value.denominator == 1 for value in values)
    if name in ("sqrt", "cbrt", "root"):
        index = {"sqrt": Fraction(2), "cbrt": Fraction(3)}.get(name, values[-1])
        return _root(first, int(index)) if index.denominator == 1 and 1 <= index <= 1000 else None
    if name in ("floor", "ceil", "abs", "base"):
        return {"floor": Fraction(math.floor(first)), "ceil": Fraction(math.ceil(first)), "abs": abs(first)}.get(
            name, first
        )
    if name in ("max", "min"):
        return max(values) if name == "max" else min(values)
    if not integral:
        return None
    integers = [int(value) for value in values]
    if name in ("gcd", "lcm"):
        return Fraction((math.gcd if name == "gcd" else math.lcm)(*integers))
    if name == "factorial" and 0 <= integers[0] <= 3000:
        return Fraction(math.factorial(integers[0]))
    if name == "binom" and 0 <= integers[1] <= 3000 and 0 <= integers[0] <= 10**9:
        return Fraction(math.comb(*integers)) if integers[1] * integers[0].bit_length() < MAX_BITS else None
    return None


class _Numeric:
    """Values in floating point of the precision that is set; real ones alone unless `imaginary`."""

    def __init__(self, known: Mapping[str, Fraction], steps: list[int], *, imaginary: bool) -> None:
        self.known, self.imaginary, self.steps = dict(known), imaginary, steps

    def value(self, f: Formula) -> Any:
        """The value.

        Raises:
            NoValue: there is none.
            TooMuchWork: it would take long.
        """
        self.steps[0] += 1
        if self.steps[0] > MAX_STEPS:
            raise TooMuchWork
        kind = f[0]
        if kind == "num" or kind == "sym":
            value = f[1] if kind == "num" else self.known.get(f[1])
            if value is None:
                raise NoValue(f"the letter {f[1]}")
            return mpf(value.numerator) / value.denominator
        if kind == "const":
            return self.constant(f[1])
        if kind in ("sum", "prod"):
            return self.series(f)
        if kind == "pow":
            return self.power(self.value(f[1]), f[2])
        if kind not in ("add", "mul", "div", "neg", "pct", "deg", "fn"):
            raise NoValue(kind)
        values = [self.value(part) for part in f[1:] if isinstance(part, tuple)]
        if kind == "fn":
            return self.checked(self.function(f[1], values))
        if kind == "div" and values[1] == 0:
            raise NoValue("a division by zero")
        first, second = values[0], values[-1]
        if kind in ("neg", "pct", "deg"):
            return {"neg": -first, "pct": first / 100}.get(kind, first * mp.pi / 180)
        return first + second if kind == "add" else first * second if kind == "mul" else first / second

    def constant(self, name: str) -> Any:
        """pi, e, infinity, and i where it is allowed."""
        if name == "i":
            return mpc(0, 1)
        return {"pi": +mp.pi, "e": +mp.e}.get(name, mp.inf)

    def checked(self, value: Any) -> Any:
        """The value, if it is of the numbers that are looked at."""
        if not self.imaginary and isinstance(value, mpc):
            raise NoValue("no real number")
        if mp.isnan(value):
            raise NoValue("no number")
        return value

    def power(self, base: Any, exponent: Formula) -> Any:
        """A power; of a negative number the real root where the exponent's denominator is odd."""
        value = self.value(exponent)
        if abs(value) > MAX_EXPONENT or mp.isinf(base):
            raise NoValue("a power that is too large")
        if base == 0 and mp.re(value) < 0:
            raise NoValue("a division by zero")
        if not self.imaginary and base < 0 and not mp.isint(value):
            ratio = _Exact().value(exponent, self.known)
            if ratio is None or ratio.denominator % 2 == 0:
                raise NoValue("no real number")
            return (-1 if ratio.numerator % 2 else 1) * mp.power(-base, value)
        return mp.power(base, value)

    def series(self, f: Formula) -> Any:
        """The value of a sum or product."""
        name, symbol, start, stop, body = f
        low, high = self.value(start), self.value(stop)
        if mp.isinf(high) or not mp.isint(low) or not mp.isint(high) or high - low > MAX_NODES:
            raise NoValue("a sum of too many terms")
        total, before = mpf(name == "prod"), self.known.get(symbol[1])
        for index in range(int(low), int(high) + 1):
            self.known[symbol[1]] = Fraction(index)
            term = self.value(body)
            total = total + term if name == "sum" else total * term
        self.known.pop(symbol[1], None)
        if before is not None:
            self.known[symbol[1]] = before
        return total

    def function(self, name: str, values: list[Any]) -> Any:
        """A function's value."""
        first = values[0]
        if abs(first) > MAX_EXPONENT and name not in _OF_ANY_SIZE:
            raise NoValue("an argument that is too large")
        if name in _SIMPLE:
            if name in ("ln", "log", "lg") and first == 0:
                raise NoValue("a logarithm of zero")
            try:
                return _SIMPLE[name](*values)
            except (ZeroDivisionError, ValueError, TypeError) as error:
                raise NoValue(str(error)) from None
        if name in ("cbrt", "root"):
            index = values[1] if name == "root" else mpf(3)
            if index == 0:
                raise NoValue("a root of index zero")
            if not self.imaginary and first < 0 and mp.isint(index) and int(index) % 2:
                return -mp.root(-first, int(index))
            return mp.power(first, 1 / index)
        raise NoValue(name)


_OF_ANY_SIZE = ("abs", "floor", "ceil", "max", "min", "ln", "log", "lg", "sqrt", "cbrt", "root", "base")
_SIMPLE = {
    "sqrt": mp.sqrt, "ln": mp.ln, "log": mp.log10, "lg": mp.log10, "exp": mp.exp, "abs": abs, "base": lambda value, base: value,
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "cot": mp.cot, "sec": mp.sec, "csc": mp.csc,
    "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan, "arccot": mp.acot, "arcsec": mp.asec, "arccsc": mp.acsc,
    "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh, "coth": mp.coth,
    "factorial": mp.factorial, "binom": mp.binomial, "floor": mp.floor, "ceil": mp.ceil, "max": max, "min": min,
}  # fmt: skip


def number(formula: Formula) -> Any:
    """A value in floating point of `DIGITS` digits.

    Raises:
        NoValue: there is none that is real.
    """
    with mp.workdps(DIGITS):
        try:
            value = _Numeric({}, [0], imaginary=False).value(formula)
        except (TooMuchWork, OverflowError, ZeroDivisionError, ValueError, TypeError) as error:
            raise NoValue(str(error)) from None
        if isinstance(value, mpc):
            raise NoValue("no real number")
        return value


def equal(first: Formula, other: Formula) -> bool:
    """Whether two formulas have the same value, whatever their letters stand for.

    >>> two, x = ("num", Fraction(2)), ("sym", "x")
    >>> equal(("add", x, x), ("mul", two, x)), equal(("pow", x, two), ("mul", two, x))
    (True, False)
    """
    if first == other:
        return True
    try:
        return _equal(first, other, [0])
    except TooMuchWork:
        return False


def _equal(first: Formula, other: Formula, steps: list[int]) -> bool:
    letters = sorted(free(first) | free(other))
    if not letters:
        try:
            values = exact(first), exact(other)
        except NoValue:
            return False
        if None not in values:
            return values[0] == values[1]
    least, points = (LEAST_POINTS, _points(len(letters))) if letters else (1, [()])
    imaginary = any(has(f, ("const", "i")) for f in (first, other))
    for mode in (True,) if imaginary else (False, True):
        agreed = 0
        for point in points:
            close = _close(first, other, dict(zip(letters, point, strict=True)), steps, imaginary=mode)
            if close is False:
                return False
            agreed += close is True
        if agreed >= least:
            return True
    return False


@lru_cache(maxsize=64)
def _points(letters: int) -> list[tuple[Fraction, ...]]:
    """Points at which formulas of so many letters are compared."""
    draw = random.Random(letters)

    def between(low: int, high: int) -> Fraction:
        return Fraction(draw.randint(low, high), 1009)

    points = [tuple(between(50, 950) for _ in range(letters)) for _ in range(3)]
    points += [tuple(between(1100, 4000) for _ in range(letters)) for _ in range(3)]
    points += [tuple(between(50, 3000) * draw.choice((-1, 1)) for _ in range(letters)) for _ in range(4)]
    points += [tuple(-between(50, 3000) for _ in range(letters))]
    return points + [tuple(Fraction(draw.randint(2, 9)) for _ in range(letters)) for _ in range(5)]


def _close(
    first: Formula, other: Formula, known: Mapping[str, Fraction], steps: list[int], *, imaginary: bool
) -> bool | None:
    """Whether two values are equal; None where one is missing. What shrinks with the precision is rounding."""
    sizes = []
    for digits in (DIGITS, MORE_DIGITS):
        with mp.workdps(digits):
            try:
                value = _Numeric(known, steps, imaginary=imaginary).value(first)
                other_value = _Numeric(known, steps, imaginary=imaginary).value(other)
                if mp.isinf(value) or mp.isinf(other_value):
                    return bool(value == other_value)
                size, difference = max(abs(value), abs(other_value)), abs(value - other_value)
            except (NoValue, OverflowError, ZeroDivisionError, ValueError, TypeError):
                return None
            sizes.append(size)
            if size > 1e-30 and difference > size * mpf(10) ** (15 - digits):
                return False
    if sizes[1] <= sizes[0] * mpf(10) ** -100:  # nothing but rounding
        return True
    return bool(difference <= sizes[1] * mpf(10) ** -200)
