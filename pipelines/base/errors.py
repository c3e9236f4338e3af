"""Errors that a person caused and can fix, as records of field, problem and fix. Everything else is a bug and propagates."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from dataclasses import field as dataclass_field
from difflib import get_close_matches
from typing import Any, Self

USER_ERROR_EXIT = 3
"""Exit code of a stage process that stopped because of a `UserError`."""


@dataclass(frozen=True)
class Problem:
    """One thing that a person can fix. As text it is "field: problem. fix".

    >>> str(Problem("rlvr.steps", "-1 is below 1", "Choose 1 or more."))
    'rlvr.steps: -1 is below 1. Choose 1 or more.'
    """

    field: str
    """The field of the recipe, the option, the row or the file; empty where there is none."""
    problem: str
    fix: str = ""
    """What to do; empty where the problem says it."""
    reported: Mapping[str, Any] = dataclass_field(default_factory=dict)
    """What a validator reported, in its own words: pydantic's `type`, `loc` and `ctx`."""

    scope: str = ""
    """The run of a sweep that it is about; empty elsewhere."""

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.scope, self.field, self.problem) if part)
        return f"{text}{'' if text[-1:] in '.?!' else '.'} {self.fix}" if self.fix else text

    def moved(self, old: str, new: str) -> Problem:
        """The same of another section: a field in `old` becomes one in `new`. An option before the field (`--set `) stays.

        >>> Problem("--set rlvr.steps", "no number").moved("rlvr", "short").field
        '--set short.steps'
        """
        option, space, name = self.field.partition(" ") if self.field.startswith("--") else ("", "", self.field)
        if not old or (name != old and not name.startswith(f"{old}.")):
            return self
        return replace(self, field=f"{option}{space}{new}{name[len(old) :]}")

    def inside(self, section: str) -> Problem:
        """The same of a part of a section, which the part itself does not know: `path` becomes `section.path`."""
        return replace(self, field=f"{section}.{self.field}" if self.field else section)

    def record(self) -> dict[str, Any]:
        """Its fields for JSON; `reported` and `scope` only where there is any."""
        return {name: value for name, value in asdict(self).items() if value or name in ("field", "problem", "fix")}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Problem:
        """What `record` gave, from a file that anything may have happened to."""
        field, problem, fix, scope = (str(record.get(name, "")) for name in ("field", "problem", "fix", "scope"))
        return cls(field, problem, fix, record.get("reported") or {}, scope)


def kind_of(error: type[BaseException]) -> str:
    """What a program calls an error of this class.

    >>> kind_of(FileNotFoundError)
    'file_not_found'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__.removesuffix("Error")).lower()


class UserError(ValueError):
    """Something the user can fix.

    Args:
        parts: the field, row or file, what is wrong with it, and, if there is one, the fix; or one part: what is wrong.
        fix: as the last of three parts.
        problems: the records, in place of all the others.

    >>> UserError("rlvr.steps", "-1 is below 1", "Choose 1 or more.").problems[0].fix
    'Choose 1 or more.'
    """

    kind = "user"
    """For programs: the name of the class, as `disk_full` of DiskFull."""

    def __init_subclass__(cls) -> None:
        cls.kind = kind_of(cls)

    def __init__(self, *parts: object, fix: str = "", problems: Iterable[Problem] = ()) -> None:
        super().__init__(*parts)
        self.problems = list(problems)
        if parts:
            field, problem, *rest = map(str, parts if len(parts) > 1 else ("", *parts))
            self.problems = [Problem(field, problem, rest[0] if rest else fix)]

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))

    def inside(self, section: str) -> Self:
        """This error, of a part of a section, which the part itself does not know."""
        self.problems = [problem.inside(section) for problem in self.problems]
        return self

    def moved(self, old: str, new: str) -> Self:
        """This error, with the fields in `old` called by their names in `new`."""
        self.problems = [problem.moved(old, new) for problem in self.problems]
        return self


class RecipeError(UserError):
    """The recipe cannot run."""


class DataError(UserError):
    """The data cannot be used."""


class ModelError(UserError):
    """The model or its tokenizer cannot be used."""


class Interrupted(UserError):
    """The run stopped itself for a stated reason; the last checkpoint is good."""


class StaleWeights(Interrupted):
    """A decoding server does not hold the weights that were pushed to it."""


class PassTooLarge(Exception):
    """Memory ran out in a pass of one of several processes, and smaller passes would be the same computation: all must make them."""


NO_MEMORY = (
    "failed to map segment", "cannot allocate memory", "can't allocate memory", "can't start new thread", "cuda error: out of memory",
    "cublas_status_alloc_failed",
)  # fmt: skip
"""What the loader of libraries, threads and torch say where there is none to be had: they raise no type of their own for it."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or what caused it, is that memory ran out, on the GPU or the CPU: for objects, libraries or threads.

    >>> out_of_memory(MemoryError()), out_of_memory(ImportError("x.so: failed to map segment from shared object"))
    (True, True)
    >>> out_of_memory(ImportError("No module named 'x'"))
    False
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or getattr(cause, "errno", None) == errno.ENOMEM:
            return True
        if type(cause).__name__ == "OutOfMemoryError":  # torch's, which is slow to import
            return True
        if isinstance(cause, ImportError | RuntimeError) and any(text in str(cause).lower() for text in NO_MEMORY):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


LIKE = 0.62
"""Least likeness of a misspelt name to what it is taken for: swapped letters in a word of three are at 0.67, and below it most words
are others (`patience` and `divergence` are at 0.56, `deepspeed` and `seed` at 0.615)."""
LEAST_LETTERS = 4
"""Of a name's beginning that is taken for the name."""
LISTED = 40
"""Names that a hint lists at most."""


def did_you_mean(word: str, known: Iterable[str], *, lists: bool = True) -> str:
    """A hint for a misspelt word: the nearest known one, else the list, cut where it is long. Capitals and hyphens make no difference.

    Args:
        lists: whether the hint is the list where no known word is near; else it is empty.

    >>> did_you_mean("grppo", ["grpo", "rloo"])
    "Did you mean 'grpo'?"
    >>> did_you_mean("Dr-GRPO", ["dr_grpo", "grpo"])
    "Did you mean 'dr_grpo'?"
    >>> did_you_mean("temp", ["temperature", "top_p"])
    "Did you mean 'temperature'?"
    >>> did_you_mean("zzz", ["grpo", "rloo"])
    'Known: grpo, rloo.'
    """
    known = sorted(set(known))
    spelt = {name.casefold().replace("-", "_"): name for name in known}
    asked = word.casefold().replace("-", "_")
    near = get_close_matches(asked, spelt, n=1, cutoff=LIKE)
    if not near and len(asked) >= LEAST_LETTERS:
        near = sorted((name for name in spelt if name.startswith(asked)), key=len)
    if near:
        return f"Did you mean {spelt[near[0]]!r}?"
    if not lists:
        return ""
    rest = f" and {len(known) - LISTED} more" if len(known) > LISTED else ""
    return f"Known: {', '.join(known[:LISTED]) or 'none'}{rest}."
