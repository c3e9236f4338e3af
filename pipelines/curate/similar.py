"""Texts that are (nearly) the same: exact keys, MinHash with banding, n-gram overlap with benchmarks.

Of a row's signature only the keys of its bands are kept, in one integer array, and buckets are found by sorting.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import xxhash

_WORD = re.compile(r"\w+", re.UNICODE)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def words(text: str) -> list[str]:
    """Lower-case words; punctuation is ignored."""
    return _WORD.findall(text.lower())


def pieces(text: str) -> list[str]:
    """The words of a text, case-folded; a line that is mostly not words, such as a board's, is one piece with all that is visible in it.

    Boards differ in what is between their letters, and two that have the same letters are not the same question.

    >>> pieces("Where is G?\\nA..\\n.G.")
    ['where', 'is', 'g', 'a..', '.g.']
    """
    listed: list[str] = []
    for line in text.lower().splitlines():
        of_line, visible = _WORD.findall(line), line.split()
        if _mostly_words(of_line, visible):
            listed += of_line
        elif visible:
            listed.append(" ".join(visible))
    return listed


def _mostly_words(listed: list[str], visible: list[str]) -> bool:
    """Whether more than half of the visible characters are those of words."""
    return 2 * sum(map(len, listed)) > sum(map(len, visible))


def whole_key(text: str, text_pieces: list[str]) -> int:
    """64 bits that agree for texts of the same `pieces`; where words are not most of a text, for the same visible characters alone.

    >>> key = lambda text: whole_key(text, pieces(text))
    >>> key("What is 7 + 1?") == key("what is 7 + 1"), key("A..\\n.G.") == key("A..\\n..G")
    (True, False)
    """
    if not _mostly_words(words(text), text.split()):
        return exact_key(text)
    return xxhash.xxh3_64_intdigest(" ".join(text_pieces).encode())


def exact_key(text: str) -> int:
    """64 bits that agree for texts which differ in white space and case only."""
    return xxhash.xxh3_64_intdigest(" ".join(text.lower().split()).encode())


def shingles(text: str, size: int) -> np.ndarray:
    """Hashes of all runs of `size` words, sorted and unique, uint32; texts shorter than that are one shingle."""
    text_words = words(text)
    runs = [" ".join(text_words[i : i + size]) for i in range(max(1, len(text_words) - size + 1))]
    return np.unique(np.array([xxhash.xxh32_intdigest(r.encode()) for r in runs], dtype=np.uint64).astype(np.uint32))


class MinHash:
    """Signatures of `permutations` 32-bit minima (Broder 1997), with a fixed seed.

    Each permutation is a multiply-shift hash of a mixed shingle: odd multiplier, arithmetic modulo 2^64, high half.
    """

    def __init__(self, permutations: int) -> None:
        draw = np.random.default_rng(20_240_607)
        self.a = draw.integers(0, 1 << 63, permutations, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self.b = draw.integers(0, 1 << 63, permutations, dtype=np.uint64)

    def __call__(self, shingle: np.ndarray) -> np.ndarray:
        """Signature of a set of uint32 hashes: uint32 [permutations]."""
        mixed = shingle.astype(np.uint64)[:, None] * _MULTIPLIER
        mixed ^= mixed >> np.uint64(31)
        hashed = (mixed * self.a + self.b) >> np.uint64(32)
        return hashed.min(axis=0).astype(np.uint32)


def bands(threshold: float, permutations: int) -> tuple[int, int]:
    """Bands and rows per band whose S-curve misses and over-reports least around the threshold.

    The two error areas are weighted 9 to 1 towards few misses: candidates are verified exactly, so a
    false one costs time and a miss costs correctness.

    >>> bands(0.8, 64)
    (9, 7)
    """
    x = np.linspace(0, 1, 201)
    lowest_cost, choice = np.inf, (1, permutations)
    for rows in range(1, permutations + 1):
        count = permutations // rows
        caught = 1 - (1 - x**rows) ** count
        cost = 0.1 * caught[x < threshold].sum() + 0.9 * (1 - caught[x >= threshold]).sum()
        if cost < lowest_cost:
            lowest_cost, choice = cost, (count, rows)
    return choice


def band_keys(signatures: np.ndarray, answers: np.ndarray, threshold: float) -> np.ndarray:
    """For each band a key that rows share which agree in it and in the answer: uint64 [N, bands].

    Args:
        signatures: uint32 [N, permutations].
        answers: uint64 [N], equal for equal answers.
        threshold: smallest Jaccard similarity that counts as a repeat.
    """
    count, rows = bands(threshold, signatures.shape[1])
    banded = signatures[:, : count * rows].reshape(-1, count, rows).astype(np.uint64)
    keys = np.repeat(answers.astype(np.uint64)[:, None], count, 1)
    for column in range(rows):
        keys = (keys ^ banded[:, :, column]) * _MULTIPLIER
        keys ^= keys >> np.uint64(29)
    return keys


def candidate_pairs(keys: np.ndarray) -> np.ndarray:
    """Pairs (earlier, later) of rows that have a key of `band_keys` in common: int64 [P, 2], unique.

    In a bucket every row is paired with the bucket's first, so a bucket of n gives n - 1 pairs.
    """
    pairs_by_band = []
    for key in keys.T:
        order = np.argsort(key, kind="stable")
        same = key[order][1:] == key[order][:-1]
        starts = np.concatenate([[True], ~same])
        first = order[np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))]
        pairs_by_band.append(np.stack([first[1:][same], order[1:][same]], axis=1))
    pairs = np.concatenate(pairs_by_band) if pairs_by_band else np.zeros((0, 2), dtype=np.int64)
    return np.unique(pairs, axis=0)


def near_duplicates(
    keys: np.ndarray, threshold: float, shingles_of: Callable[[np.ndarray], dict[int, np.ndarray]]
) -> dict[int, int]:
    """Row → the earlier row it repeats, by exact Jaccard similarity of the candidates' shingles.

    Problems made from one long template look alike and are not repeats; what distinguishes them is
    their answer. So only rows with equal answers are compared.

    Args:
        keys: `band_keys` of all rows.
        threshold: smallest Jaccard similarity that counts as a repeat.
        shingles_of: shingle arrays of the rows asked for.
    """
    pairs = candidate_pairs(keys)
    if len(pairs) == 0:
        return {}
    sets = shingles_of(np.unique(pairs))
    repeats: dict[int, int] = {}
    for early, late in sorted(pairs.tolist(), key=lambda p: (p[1], p[0])):
        if late in repeats:
            continue
        a, b = sets[early], sets[late]
        both = len(np.intersect1d(a, b, assume_unique=True))
        if both / (len(a) + len(b) - both) >= threshold:
            repeats[late] = repeats.get(early, early)
    return repeats


class Contamination:
    """Overlap with benchmark questions: a run of `ngram` words (`pieces`) in common, or the same whole text (`whole_key`).

    Runs that stand in over a twentieth of a task's questions (of 20 or more) are its wording, not its
    content, and do not count; otherwise every problem made from the same template would be dropped.
    """

    def __init__(self, ngram: int, texts: Iterable[tuple[str, str]]) -> None:
        self.ngram = ngram
        self.grams: dict[int, str] = {}
        self.vocabulary: set[str] = set()
        """The pieces of all questions: only of these a run can be made."""
        self.whole_texts: dict[int, str] = {}
        self.texts = 0
        gram_counts: dict[str, Counter[int]] = {}
        questions: Counter[str] = Counter()
        for task, text in texts:
            self.texts += 1
            questions[task] += 1
            listed = pieces(text)
            self.whole_texts[whole_key(text, listed)] = task
            self.vocabulary.update(listed)
            gram_counts.setdefault(task, Counter()).update(set(self._grams(listed)))
        for task, counts in gram_counts.items():
            most_questions = max(1, questions[task] // 20) if questions[task] >= 20 else questions[task]
            self.grams |= {gram: task for gram, n in counts.items() if n <= most_questions}

    def _grams(self, text_pieces: list[str]) -> Iterator[int]:
        n = self.ngram
        for i in range(len(text_pieces) - n + 1):
            yield xxhash.xxh3_64_intdigest(" ".join(text_pieces[i : i + n]).encode())

    def hit(self, text: str) -> str | None:
        """The task that holds the overlap, or None."""
        listed = pieces(text)
        task = self.whole_texts.get(whole_key(text, listed))
        if task is not None:
            return task
        known = "".join("1" if piece in self.vocabulary else "0" for piece in listed)
        for run in re.finditer(f"1{{{self.ngram},}}", known):  # a word that no question has parts two runs
            for gram in self._grams(listed[run.start() : run.end()]):
                if gram in self.grams:
                    return self.grams[gram]
        return None
