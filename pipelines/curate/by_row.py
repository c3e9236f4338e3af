"""What is computed of a row by itself, in whatever process: its record, the keys that it is compared by, leaks, and its length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines import environments
from pipelines.curate.cells import Cells, text_key
from pipelines.curate.formats import Row
from pipelines.curate.mapping import to_problem
from pipelines.curate.similar import Contamination, MinHash, exact_key, shingles
from pipelines.curate.values import RowError
from pipelines.data import chat, marks, pairs
from pipelines.data.control import rendered_mark
from pipelines.data.dataset import from_row
from pipelines.data.pairs import REJECTED_PROMPT
from pipelines.data.records import Problem
from pipelines.data.template import PLAIN_TEMPLATE, TOOLS_TEMPLATE
from pipelines.recipe.settings import Curate, Source


def question_text(problem: Problem) -> str:
    """What the user says."""
    return "\n".join(m["content"] for m in problem.prompt if m["role"] == "user")


def prompt_text(problem: Problem) -> str:
    """What the repeat and leak filters compare: the user's and system's words, or the raw text."""
    if problem.raw_text is not None:
        return problem.raw_text
    asked = [*problem.prompt, *problem.info.get(REJECTED_PROMPT, ())]
    return "\n".join(m["content"] for m in asked if m["role"] != "assistant")


def _identity(problem: Problem) -> str:
    """What tells records with one prompt apart: the texts that they hold, and what the prompt does not show."""
    return text_key(problem) + environments.hidden(problem.info)


@dataclass(slots=True)
class Record:
    """A row as a record, and what is known of it."""

    problem: Problem
    extra: set[str]
    """Columns that are in `info` because no part of the record was made of them."""
    lost: set[str]
    """Columns, and keys of messages, that are nowhere in it."""
    key: int
    """Equal for exact repeats."""
    compared: bool = False
    """Whether what follows is known."""
    leak: str | None = None
    """The task whose question it overlaps with."""
    signature: bytes = b""
    """`MinHash` of its words."""
    answer: int = 0
    """Equal for equal answers."""


class Reader:
    """Makes records of the rows of a source; of lists of them, where it is called."""

    def __init__(self, curate: Curate, source: Source, *, answered: bool, leaks: Contamination | None) -> None:
        self.source, self.self_check, self.answered = source, curate.self_check, answered
        self.leaks, self.near = leaks, curate.near_duplicates
        self.minhash = MinHash(self.near.permutations) if self.near is not None else None

    def __call__(self, rows: Sequence[Row]) -> list[Record | RowError]:
        """Records that are compared, but for those with images, whose pixels are where the row was read."""
        read = [self.record(row) for row in rows]
        for record in read:
            if isinstance(record, Record) and marks.PLACE not in prompt_text(record.problem):
                self.compare(record)
        return read

    def record(self, row: Row) -> Record | RowError:
        """The record, or why the row is none."""
        try:
            if row.columns is None:
                raise row.error or RowError("row", "could not be read")
            cells = Cells(row.columns)
            if self.source.kind == "stage":  # was checked when its problems were curated
                problem = from_row(cells)
            else:
                problem = to_problem(cells, self.source, self_check=self.self_check, answered=self.answered)
        except RowError as error:
            return error
        return Record(problem, cells.extra, cells.lost, exact_key(prompt_text(problem) + _identity(problem)))

    def compare(self, record: Record, shown: Callable[[Problem], str] | None = None) -> None:
        """Find out whether the record overlaps with a benchmark, and otherwise what it is compared with others by.

        Args:
            shown: equal for records with the same pictures; default: it has none.
        """
        problem = record.problem
        text, question = prompt_text(problem), question_text(problem)
        if self.leaks is not None and (start := environments.start_key(problem)):
            record.leak = self.leaks.hit(start)
        elif self.leaks is not None:
            # A benchmark's question comes without the system message that this recipe may put before it.
            record.leak = self.leaks.hit(text) or (self.leaks.hit(question) if question != text else None)
        if self.near is not None and self.minhash is not None and record.leak is None:
            record.signature = self.minhash(shingles(marks.MARK.sub(" ", text), self.near.shingle)).tobytes()
            record.answer = exact_key(problem.answer + _identity(problem) + (shown(problem) if shown else ""))
        record.compared = True


class Bounds:
    """Whether the model's chat template shows records, and whether they are as long as the recipe wants them."""

    def __init__(self, curate: Curate, tokenizer: Any) -> None:
        self.tokenizer, self.solution = tokenizer, curate.max_solution_tokens
        self.shortest, self.longest = curate.min_prompt_tokens, curate.max_prompt_tokens
        bounded = self.longest is not None or self.shortest > 1
        self.renders = bounded or tokenizer.chat_template not in (PLAIN_TEMPLATE, TOOLS_TEMPLATE)
        """Whether prompts have to go through the template: to be counted, or because it may refuse some or not show all of them."""

    @property
    def travels(self) -> bool:
        """Whether it costs more than a record's way to another process, and works there: images are where they were read."""
        return (self.renders or self.solution is not None) and marks.reader_of(self.tokenizer) is None

    def __call__(self, problems: Sequence[Problem]) -> list[str | RowError | None]:
        """Of each record why it is not kept, None where it is."""
        return [self.fault(problem) for problem in problems]

    def fault(self, problem: Problem) -> str | RowError | None:
        """Why the record is too short or too long, or no record for this model; None where it is."""
        try:
            self._check_plain(problem)
            return self._outside(problem)
        except chat.TemplateRefusal as error:
            return RowError("prompt", "the model's chat template refuses it", str(error)[:200])
        except RowError as error:
            return error

    def _check_plain(self, problem: Problem) -> None:
        """Messages are texts, not what a chat template has made of them.

        Raises:
            RowError: one begins or ends with a control token of the model.
        """
        texts = [("prompt", message["content"]) for message in problem.prompt]
        named = ("solution", *pairs.TEXTS, pairs.COMPLETION)
        texts += [(name, str(problem.info[name])) for name in named if problem.info.get(name)]
        for field, text in texts:
            mark = rendered_mark(self.tokenizer, text)
            if mark is not None:
                fix = f"{mark!r}; give messages with role and content, and answers without an end token"
                raise RowError(field, "it begins or ends with a control token, as a rendered conversation does", fix)

    def _outside(self, problem: Problem) -> str | None:
        """Why the record is too short or too long.

        Raises:
            TemplateRefusal: the chat template refuses the conversation.
        """
        if self.renders and problem.raw_text is None:
            tokens = len(chat.render_prompt(self.tokenizer, problem.prompt, problem.tools))
            if tokens < self.shortest or tokens > (self.longest or tokens):
                return f"the prompt has {tokens} tokens"
        if self.solution is not None and problem.info.get("solution"):
            tokens = len(self.tokenizer(problem.info["solution"], add_special_tokens=False)["input_ids"])
            if tokens > self.solution:
                return f"the solution has {tokens} tokens"
        return None
