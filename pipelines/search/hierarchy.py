"""Hill climbing on whole answers, level by level, from the general to the details (MOOSE-Chem2, arXiv 2505.19209).

The score is the landscape: usually what the searched model itself thinks of an answer. At each level `n` lines start from the best answer
so far. A line asks for a better one, takes what it is given if its score is higher, and ends after `tries` in a row that were not, or
`most` that were: a local optimum. From the best of these a further line goes on that is shown the others, to combine them; what it ends
with enters the next level. Read off the released code, with grades where that compares two answers, one branch a level, and without
its past failures in the request.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import stream_id
from pipelines.data import chat
from pipelines.data.records import Message, Stop
from pipelines.recipe.search import Hierarchy
from pipelines.search.paths import Drawer, Path, Question, Slot
from pipelines.search.scores import Score


@dataclass
class Line:
    """One climb: the answer it stands on, and how it got there."""

    climb: Climb
    number: int
    best: Path
    shown: list[str]
    """Answers that its requests show beside its own."""
    failures: int = 0
    gains: int = 0
    asked: int = 0


@dataclass
class Climb:
    """What is known of one question."""

    question: Question
    best: Path
    level: int = 0
    drawn: int = 0
    scored: int = 0


class Climber:
    """Climbs for many questions side by side; what a question is given does not depend on the others.

    Args:
        drawer: of the searched model.
        system: the system prompt that it was trained with.
    """

    def __init__(
        self, search: Hierarchy, drawer: Drawer, score: Score, tokenizer: Any, system: str | None = None
    ) -> None:
        self.search, self.drawer, self.score, self.tokenizer, self.system = search, drawer, score, tokenizer, system

    def climbs(self, questions: Sequence[Question], sampling: Sampling) -> list[Climb]:
        """The climbs at their ends; they start from what the model answers without a search."""
        climbs = [Climb(question, Path(question)) for question in questions]
        self._draw([(climb, climb.best, Slot(climb.question.stream)) for climb in climbs], sampling)
        for level in range(len(self.search.levels)):
            for climb in climbs:
                climb.level = level
            lines = [Line(climb, number, climb.best, []) for climb in climbs for number in range(self.search.n)]
            self._climb(lines, sampling)
            combining = list(self._combining(climbs, lines))
            self._climb(combining, sampling)
            for line in combining:
                line.climb.best = line.best
        return climbs

    def _combining(self, climbs: Sequence[Climb], lines: Sequence[Line]) -> Iterator[Line]:
        """A line from the best local optimum of each climb that found one; it has others to show where there are different ones."""
        for climb in climbs:
            optima = [line.best for line in lines if line.climb is climb and line.gains]
            if not optima:
                continue
            best = max(optima, key=_rank)
            texts = dict.fromkeys(_text(each) for each in optima)
            others = [text for text in texts if text != _text(best)]
            yield Line(climb, self.search.n, best, others, failures=0 if others else self.search.tries)

    def _climb(self, lines: Sequence[Line], sampling: Sampling) -> None:
        """Lines go on until all of them stand on a local optimum."""
        while going := [line for line in lines if self._goes_on(line)]:
            prompts = chat.render_prompts(self.tokenizer, [self._request(line) for line in going])
            drawn = []
            for line, prompt in zip(going, prompts, strict=True):
                question = line.climb.question
                stream = stream_id("hierarchy", question.stream, line.climb.level, line.number, line.asked)
                drawn.append((line.climb, Path(replace(question, prompt=prompt)), Slot(stream)))
                line.asked += 1
            self._draw(drawn, sampling)
            for line, (_, path, _) in zip(going, drawn, strict=True):
                if _rank(path) > _rank(line.best):
                    line.best, line.failures, line.gains = path, 0, line.gains + 1
                else:
                    line.failures += 1

    def _goes_on(self, line: Line) -> bool:
        return line.failures < self.search.tries and line.gains < self.search.most

    def _request(self, line: Line) -> list[Message]:
        """The question, the line's own answer, and what is wanted of the next one."""
        problem = line.climb.question.problem
        assert problem is not None
        level = self.search.levels[line.climb.level]
        template = self.search.combination if line.shown else self.search.template
        wanted = template.replace("{level}", level).replace("{answers}", "\n\n".join(line.shown))
        answered: list[Message] = [
            {"role": "assistant", "content": _text(line.best)}, {"role": "user", "content": wanted}
        ]  # fmt: skip
        return chat.with_system_prompt([*problem.prompt, *answered], self.system)

    def _draw(self, drawn: Sequence[tuple[Climb, Path, Slot]], sampling: Sampling) -> None:
        """Draw each path to its end, and score it as an answer to the question itself."""
        self.drawer.to_the_end([(path, slot) for _, path, slot in drawn], sampling)
        fine = [(climb, path) for climb, path, _ in drawn if path.stop != Stop.ERROR]
        scores = self.score([replace(path, question=climb.question) for climb, path in fine])
        for (climb, path), score in zip(fine, scores, strict=True):
            path.score = score
            climb.scored += len(path.tokens) if self.score.reads else 0
        for climb, _, slot in drawn:
            climb.drawn += slot.drawn


def _text(path: Path) -> str:
    """As the next request shows it."""
    return chat.after_thinking(path.question.text(path.tokens)).strip()


def _rank(path: Path) -> float:
    """An answer without a score is worse than any."""
    return -math.inf if math.isnan(path.score) else path.score
