"""Whether an answer's formula says the same as the gold answer's: numbers, lists, sets, intervals, equations, matrices."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from mpmath import mp

from pipelines.verifiers._tree import Formula, free, has, mapped, parts
from pipelines.verifiers._units import conflict
from pipelines.verifiers._values import DIGITS, NoValue, equal, number

MOST_ITEMS = 60
"""Of a list or set; longer ones are not compared."""
_INFINITY = float("inf")
_PLACE = Fraction(37, 31)
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
_SCALARS = ("num", "sym", "const", "add", "mul", "div", "pow", "neg", "deg", "pct", "fn", "sum", "prod", "pm")
_SETS = ("set", "union", "cap", "minus", "all", "such", "tuple", "rel", "list")


def same(gold: Formula, answer: Formula) -> bool:
    """Whether the answer is the gold answer in another form.

    An equation answers with its last side, a list without brackets may be a set or a tuple, and a unit may be left out.
    """
    gold, answer = _spread(gold), _spread(answer)
    if gold[0] == "unit" or answer[0] == "unit":
        (gold, unit), (answer, other) = _united(gold), _united(answer)
        if conflict(unit, other):
            return False
    gold, answer = _sides(gold, answer)
    if gold == answer:
        return True
    if ("fn", "base") in (gold[:2], answer[:2]):
        return False  # 101_2 is asked for as it is, and no answer where 5 is asked for
    if gold[0] in _SCALARS and answer[0] in _SCALARS:
        return _same_scalars(gold, answer)
    if gold[0] == "matrix" and answer[0] == "matrix":
        rows, others = gold[1], answer[1]
        return len(rows) == len(others) and all(_same_items(r, o) for r, o in zip(rows, others, strict=True))
    if gold[0] == "rel" and answer[0] == "rel" and "=" in gold[1]:
        return _same_equations(gold[1], answer[1])
    listed = [f[0] == "list" and not _relations(f) for f in (gold, answer)]
    if any(listed):
        return _same_lists(gold, answer)
    if (gold[0] == "set") != (answer[0] == "set") and {gold[0], answer[0]} & {"tuple", *_SCALARS}:
        return False
    within = _same_sets(gold, answer) if gold[0] in _SETS and answer[0] in _SETS else None
    if within is not None:
        return within
    return _same_shapes(gold, answer)


def _united(formula: Formula) -> tuple[Formula, str]:
    return (formula[1], formula[2]) if formula[0] == "unit" else (formula, "deg" if formula[0] == "deg" else "")


def _spread(formula: Formula) -> Formula:
    """With both values in the place of plus or minus; a list's doubles are left out."""
    if formula[0] in ("list", "set"):
        spread: list[Formula] = []
        for item in formula[1]:
            inner = _spread(item)
            spread += inner[1] if inner[0] == "list" else [inner]
        return (formula[0], spread, *formula[2:])
    signs = [("pm", 1), ("pm", -1)]
    if formula[0] in ("rel", "tuple", "union") or not any(has(formula, sign) for sign in signs):
        if formula[0] == "rel" and formula[1][-2] == "=" and any(has(formula[1][-1], sign) for sign in signs):
            return _spread(formula[1][-1])
        return formula
    return ("list", [_with_sign(formula, 1), _with_sign(formula, -1)], ",")


def _with_sign(formula: Formula, sign: int) -> Formula:
    def signed(part: Formula) -> Formula | None:
        if part[0] != "mul" or part[1][0] != "pm":
            return None
        inner = _with_sign(part[2], sign)
        return inner if part[1][1] == sign else ("neg", inner)

    return mapped(formula, signed)


def _defines(sides: list[Any]) -> bool:
    """Whether the first side only names what is asked: a letter, f(x), a pair of letters."""
    first = sides[0]
    return (
        first[0] == "sym"
        or (first[0] == "mul" and first[1][0] == "sym" and first[2][0] in ("sym", "num"))
        or (first[0] in ("tuple", "list") and all(item[0] == "sym" for item in first[1]))
    )


def _sides(gold: Formula, answer: Formula) -> tuple[Formula, Formula]:
    """Both without the name of what is asked."""
    for _ in range(2):
        gold, answer = _member(gold), _member(answer)
        gold_part, answer_part = _equation(gold), _equation(answer)
        if answer_part and not gold_part and (_defines(answer[1]) or answer[1][-1] != ("num", 0)):
            answer = answer[1][-1]
        elif gold_part and not answer_part and _defines(gold[1]):
            gold = gold[1][-1]
        elif gold_part and answer_part and gold[1][0] == answer[1][0] and _defines(gold[1]):
            gold, answer = gold[1][-1], answer[1][-1]
        else:
            break
    return _solutions(gold), _solutions(answer)


def _equation(formula: Formula) -> bool:
    if formula[0] != "rel":
        return False
    operators = formula[1][1::2]
    return set(operators) == {"="}


def _member(formula: Formula) -> Formula:
    """The set of which a letter is said to be a member; what a letter is about."""
    if formula[0] != "rel":
        return formula
    sides = formula[1]
    if sides[1:2] == ["in"] and len(sides) == 3 and _defines(sides):
        return sides[2]
    if sides[1:2] == ["≈"] and len(sides) == 3 and (_defines(sides) or not _plain(sides[0])):
        return ("rel", [sides[0], "=", sides[2]])
    return formula


def _plain(formula: Formula) -> bool:
    inner = formula[0] in ("neg", "div", "pct", "unit")
    return formula[0] == "num" or (inner and all(_plain(f) for f in formula[1:] if isinstance(f, tuple)))


def _solutions(formula: Formula) -> Formula:
    """The values of a list of equations of one letter: x = 3 or x = 4; of several letters a tuple."""
    if formula[0] != "list" or not all(_equation(item) and _defines(item[1]) for item in formula[1]):
        if (
            formula[0] == "list"
            and formula[1]
            and _equation(formula[1][0])
            and not any(i[0] == "rel" for i in formula[1][1:])
        ):
            first = formula[1][0]
            return _spread(("list", [first[1][-1], *formula[1][1:]], formula[2])) if _defines(first[1]) else formula
        return formula
    names = [item[1][0] for item in formula[1]]
    values = [item[1][-1] for item in formula[1]]
    stems = {re.sub(r"_\d+$", "", str(name[1])) if name[0] == "sym" else name for name in names}
    if all(name == names[0] for name in names) or (len(stems) == 1 and len(set(names)) == len(names)):
        return _spread(("list", values, ","))
    if len(set(names)) == len(names) and all(name[0] == "sym" for name in names):
        order = sorted(range(len(names)), key=lambda n: names[n][1])
        return ("tuple", [values[n] for n in order], "(", ")")
    return formula


def _same_scalars(gold: Formula, answer: Formula) -> bool:
    if gold[0] == "deg" or answer[0] == "deg":  # 90 degrees are the number 90 and the angle pi/2
        bare = [f[1] if f[0] == "deg" else f for f in (gold, answer)]
        return equal(bare[0], bare[1]) or equal(gold, answer)
    if (gold[0] == "pct") != (answer[0] == "pct"):
        share, value = (gold, answer) if gold[0] == "pct" else (answer, gold)
        return equal(share, value) or equal(share[1], value)
    return equal(gold, answer) or _other_case(gold, answer)


def _other_case(gold: Formula, answer: Formula) -> bool:
    """Equal but for the case of letters, where no letter has both."""
    letters = [free(gold), free(answer)]
    if letters[0] == letters[1] or any(len({name.lower() for name in names}) < len(names) for names in letters):
        return False
    return {n.lower() for n in letters[0]} == {n.lower() for n in letters[1]} and equal(_lower(gold), _lower(answer))


def _lower(formula: Formula) -> Formula:
    return mapped(formula, lambda part: ("sym", part[1].lower()) if part[0] == "sym" else None)


def _same_items(items: list[Formula], others: list[Formula], *, ordered: bool = True) -> bool:
    """Whether the items are the same, one by one or in any order."""
    if len(items) != len(others) or len(items) > MOST_ITEMS:
        return False
    unmatched = list(others)
    for item in items:
        candidates = unmatched[:1] if ordered else unmatched
        position = next((n for n, other in enumerate(candidates) if same(item, other)), None)
        if position is None:
            return False
        del unmatched[position]
    return True


def _different(items: list[Formula]) -> list[Formula]:
    """The items without those that stand there twice."""
    kept: list[Formula] = []
    for item in items[: MOST_ITEMS + 1]:
        if not any(same(other, item) for other in kept):
            kept.append(item)
    return kept


def _same_lists(gold: Formula, answer: Formula) -> bool:
    """A list without brackets, as what the other one is."""
    gold_part, answer_part = (f[1] if f[0] in ("list", "set", "tuple") else [f] for f in (gold, answer))
    if max(len(gold_part), len(answer_part)) > MOST_ITEMS:
        return False
    if gold[0] == "tuple" or answer[0] == "tuple":
        return _same_items(gold_part, answer_part)
    if any(f[0] not in ("list", "set", *_SCALARS, "unit") for f in (gold, answer)):
        return False
    return _same_items(_different(gold_part), _different(answer_part), ordered=False)


def _same_shapes(gold: Formula, answer: Formula) -> bool:
    if gold[0] != answer[0]:
        return False
    if gold[0] == "tuple":
        return gold[2:] == answer[2:] and _same_items(gold[1], answer[1])
    if gold[0] in ("set", "list"):
        return _same_items(_different(gold[1]), _different(answer[1]), ordered=False)
    if gold[0] in ("union", "cap", "minus"):
        gold_part, answer_part = ([f[1], f[2]] for f in (gold, answer))
        return _same_items(gold_part, answer_part, ordered=gold[0] == "minus")
    if gold[0] == "rel":
        return _same_inequalities(gold[1], answer[1])
    return False


def _same_equations(gold: list[Any], answer: list[Any]) -> bool:
    """Equations of two sides, whose differences are multiples of one another."""
    if len(gold) != 3 or len(answer) != 3 or gold[1] != answer[1] or gold[1] != "=":
        return len(gold) == len(answer) and gold[1::2] == answer[1::2] and _same_items(gold[::2], answer[::2])
    return _multiple(gold, answer) is not None


def _multiple(gold: list[Any], answer: list[Any]) -> int | None:
    """The sign of the number by which the sides' difference of one differs from the other's; None: by no number."""
    if any(side[0] not in _SCALARS for side in (*gold[::2], *answer[::2])):
        return None
    gold_part, answer_part = (("add", f[0], ("neg", f[2])) for f in (gold, answer))
    if not (free(gold_part) and free(gold_part) == free(answer_part)):
        return None
    at_one = {name: ("num", _PLACE + n) for n, name in enumerate(sorted(free(gold_part)))}
    first, second = (_at(f, at_one) for f in (gold_part, answer_part))
    try:
        ratio = number(("div", first, second))
    except NoValue:
        return None
    if not equal(("mul", gold_part, second), ("mul", answer_part, first)):
        return None
    return 1 if ratio > 0 else -1


def _at(formula: Formula, point: dict[str, Formula]) -> Formula:
    return mapped(formula, lambda part: point.get(part[1]) if part[0] == "sym" else None)


def _same_inequalities(gold: list[Any], answer: list[Any]) -> bool:
    if len(gold) != 3 or len(answer) != 3:
        return len(gold) == len(answer) and gold[1::2] == answer[1::2] and _same_items(gold[::2], answer[::2])
    sign = _multiple(gold, answer)
    if sign is None or gold[1] not in _FLIPPED:
        return False
    return answer[1] == (gold[1] if sign > 0 else _FLIPPED[gold[1]])


def _relations(formula: Formula) -> bool:
    return all(item[0] == "rel" and not _equation(item) for item in formula[1])


Member = Callable[[int], bool]


def _same_sets(gold: Formula, answer: Formula) -> bool | None:
    """Whether two sets of real numbers are the same; None where one is no such set."""
    letters = {letter for letter in (_letter(gold), _letter(answer)) if letter}
    if len(letters) > 1:
        return None
    ends: list[Any] = []
    try:
        for formula in (gold, answer):
            _ends(formula, ends)
    except NoValue:
        return None
    ends = sorted(set(ends) - {_INFINITY, -_INFINITY})
    positions = range(-1, 2 * len(ends))  # 2n is the n-th end, 2n + 1 what follows it
    gold_part, answer_part = _members(gold, ends), _members(answer, ends)
    return all(gold_part(position) == answer_part(position) for position in positions)


def _letter(formula: Formula) -> str | None:
    """The letter that relations are about."""
    if formula[0] == "rel":
        names = sorted(set().union(*(free(side) for side in formula[1][::2])))
        return names[0] if len(names) == 1 else None
    names = sorted({name for part in parts(formula) if (name := _letter(part))})
    return names[0] if names else None


def _place(formula: Formula) -> Any:
    """A value, rounded so that equal ends are one.

    Raises:
        NoValue: it is no real number.
    """
    if formula[0] not in _SCALARS or free(formula):
        raise NoValue("no end")
    value = number(formula)
    with mp.workdps(DIGITS):
        return value if mp.isinf(value) else mp.mpf(mp.nstr(value, 40))


def _index(formula: Formula, ends: list[Any]) -> int:
    value = _place(formula)
    if value in (_INFINITY, -_INFINITY):
        return -2 if value < 0 else 2 * len(ends)
    return 2 * ends.index(value)


def _ends(formula: Formula, ends: list[Any]) -> None:
    """Collect the ends of intervals and the points of a set.

    Raises:
        NoValue: it is no set of real numbers.
    """
    kind = formula[0]
    if kind == "tuple" and len(formula[1]) == 2 and formula[2] in "([":
        low, high = (_place(end) for end in formula[1])
        if low >= high or (formula[2] == "[" and low == -_INFINITY) or (formula[3] == "]" and high == _INFINITY):
            raise NoValue("a pair")
        ends += [low, high]
    elif kind == "set":
        ends += [_place(item) for item in formula[1]]
    elif kind == "all" and formula[1] == "R":
        ends += []
    elif kind in ("union", "cap", "minus"):
        _ends(formula[1], ends)
        _ends(formula[2], ends)
    elif kind == "such":
        _ends(formula[2], ends)
    elif kind == "list":
        for item in formula[1]:
            _ends(item, ends)
    elif kind == "rel" and (chain := _chain(formula[1])):
        ends += [_place(end) for _, end in chain]
    else:
        raise NoValue(kind)


def _chain(sides: list[Any]) -> list[tuple[str, Formula]]:
    """What an inequality says of its letter: an operator and an end each; empty where the letter is on no side alone."""
    bounds: list[tuple[str, Formula]] = []
    for before, operator, after in zip(sides[::2], sides[1::2], sides[2::2], strict=False):
        if operator not in _FLIPPED:
            return []
        if before[0] == "sym" and not free(after):
            bounds.append((operator, after))
        elif after[0] == "sym" and not free(before):
            bounds.append((_FLIPPED[operator], before))
        else:
            return []
    return bounds


def _members(formula: Formula, ends: list[Any]) -> Member:
    """Whether a place among the ends belongs to a set."""
    kind = formula[0]
    if kind == "tuple":
        low, high = (_index(end, ends) for end in formula[1])
        closed, closes = formula[2] == "[", formula[3] == "]"
        return lambda at: low < at < high or (at == low and closed) or (at == high and closes)
    if kind == "set":
        points = {_index(item, ends) for item in formula[1]}
        return lambda at: at in points
    if kind == "all":
        return lambda at: True
    if kind in ("union", "cap", "minus"):
        first, second = _members(formula[1], ends), _members(formula[2], ends)
        if kind == "union":
            return lambda at: first(at) or second(at)
        return lambda at: first(at) and second(at) == (kind == "cap")
    if kind == "such":
        return _members(formula[2], ends)
    if kind == "list":
        several = [_members(item, ends) for item in formula[1]]
        both = formula[2] == "and"
        return lambda at: all(m(at) for m in several) if both else any(m(at) for m in several)
    bounds = [(operator, _index(end, ends)) for operator, end in _chain(formula[1])]
    return lambda at: all(_holds(at, operator, end) for operator, end in bounds)


def _holds(at: int, operator: str, end: int) -> bool:
    return {"<": at < end, "<=": at <= end, ">": at > end, ">=": at >= end, "=": at == end, "!=": at != end}[operator]
