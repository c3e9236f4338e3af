"""Pictures that are nearly the same: a picture that was written in another format or at another size is the one that it was.

A picture is described by the colours of 16 x 16 blocks, and two are the same where no block differs by more than `MOST_BLOCK` levels
of 255 and those of a quarter by at most `MOST_MEAN` on average. The usual hashes of 64 bits (aHash, dHash, pHash) compare the brightness
of blocks: noise decides where a drawing is flat, and a red square and a blue one are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from pipelines.curate.similar import Contamination
from pipelines.data import marks
from pipelines.data.images import IMAGES

if TYPE_CHECKING:
    from PIL.Image import Image

GRID = 16
MOST_BLOCK, MOST_MEAN = 48, 5
"""Levels of 255 by which one block, and those of a quarter on average, may differ."""
MOST_SHAPE = 0.05
"""By which the logarithms of two ratios of width to height may differ: a copy's sides are whole pixels."""
CELL = 2 * MOST_MEAN
"""Levels of 255 that share a bucket: the averages of quarters of pictures that are nearly the same are at most half of it apart."""


def blocks(image: Image) -> np.ndarray:
    """Colours of blocks: int16 [GRID, GRID, 3]."""
    from PIL.Image import Resampling

    return np.asarray(image.convert("RGB").resize((GRID, GRID), Resampling.BOX)).astype(np.int16)


class Pictures:
    """Pictures by number; those that are nearly the same have the number of the first of them.

    Args:
        near: False: only those with the same pixels are the same.
    """

    def __init__(self, *, near: bool = True) -> None:
        self.near = near
        self._picture_of: dict[str, int] = {}
        self._count = 0
        self._buckets: dict[tuple[int, ...], list[tuple[int, float, np.ndarray]]] = {}

    def key(self, text: str) -> str:
        """Equal for texts that show the same pictures in the same order."""
        return " ".join(str(self.number(digest)) for digest in marks.marked(text))

    def number(self, digest: str) -> int:
        """Of a picture, which is known from here on."""
        known = self.find(digest)
        if known is None:
            known = self._picture_of[digest] = self._count
            self._count += 1
            if self.near and digest in IMAGES:
                shape, colours = _described(digest)
                bucket = tuple(int(level // CELL) for level in _averages(colours))
                self._buckets.setdefault(bucket, []).append((known, shape, colours))
        return known

    def find(self, digest: str) -> int | None:
        """Number of a picture; None where none like it is known."""
        if digest in self._picture_of or not self.near or digest not in IMAGES:
            return self._picture_of.get(digest)
        shape, colours = _described(digest)
        sides = []
        for level in _averages(colours):
            place, rest = divmod(level, CELL)
            sides.append((int(place), int(place) + (1 if rest >= CELL / 2 else -1)))
        near = [each for bucket in product(*sides) for each in self._buckets.get(bucket, ())]
        same = (number for number, other, there in near if abs(other - shape) <= MOST_SHAPE and alike(there, colours))
        first = min(same, default=None)
        if first is not None:
            self._picture_of[digest] = first
        return first


@lru_cache(256)
def _described(digest: str) -> tuple[float, np.ndarray]:
    """Shape and blocks of a picture, which is compared with benchmarks and with other rows."""
    image = IMAGES.image(digest)
    return float(np.log(image.width / image.height)), blocks(image)


def _averages(levels: np.ndarray) -> list[float]:
    """Of each quarter, over its blocks and colours."""
    half = GRID // 2
    return [float(level) for level in levels.reshape(2, half, 2, half, 3).mean((1, 3, 4)).flat]


def alike(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two pictures are nearly the same by their `blocks`."""
    difference = np.abs(first - second)
    return bool(difference.max() <= MOST_BLOCK) and max(_averages(difference)) <= MOST_MEAN


class Leaks(Contamination):
    """Overlap with benchmark questions of which some show pictures.

    A picture that stands in over a twentieth of a task's questions (of 20 or more) is their wording, as a run of words is.

    Args:
        texts: (task, question).
        alone: a picture is an overlap whatever is asked about it; otherwise the words have to overlap too.
    """

    def __init__(self, ngram: int, texts: Iterable[tuple[str, str]], *, alone: bool) -> None:
        listed = list(texts)
        super().__init__(ngram, (each for each in listed if marks.PLACE not in each[1]))
        self.texts = len(listed)
        self.pictures = Pictures()
        self.alone = alone
        self.asked: dict[int, list[tuple[str, str]]] = {}
        """Number of a picture → task and words of the questions that show it."""
        self._words_about: dict[int, Contamination] = {}
        """The same, read for overlaps; of a picture that a row has shown."""
        counts: dict[str, Counter[int]] = {}
        questions: Counter[str] = Counter()
        for task, text in listed:
            shown = {self.pictures.number(digest) for digest in marks.marked(text)}
            questions[task] += 1
            counts.setdefault(task, Counter()).update(shown)
            for number in shown:
                self.asked.setdefault(number, []).append((task, marks.MARK.sub(" ", text)))
        self.common = {
            (task, number)
            for task, of_task in counts.items() for number, count in of_task.items()
            if questions[task] >= 20 and count > max(1, questions[task] // 20)
        }  # fmt: skip

    def hit(self, text: str) -> str | None:
        """The task that holds the overlap, or None."""
        words = marks.MARK.sub(" ", text)
        for digest in marks.marked(text):
            number = self.pictures.find(digest)
            if number is None:
                continue
            if self.alone:
                task = next((task for task, _ in self.asked[number] if (task, number) not in self.common), None)
            else:
                task = self._words(number).hit(words)
            if task is not None:
                return task
        return super().hit(text)

    def _words(self, number: int) -> Contamination:
        """Overlap with the words of the questions that show a picture."""
        if number not in self._words_about:
            self._words_about[number] = Contamination(self.ngram, self.asked[number])
        return self._words_about[number]
