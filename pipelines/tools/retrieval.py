"""Passages of a local corpus, ranked by BM25 (the library bm25s; `pip install bm25s`).

A corpus is a text file with a passage a line, a .jsonl file of `{id?, title?, text}`, or `generated:NAME`: what `passages()` of the file
pipelines/tools/corpora/NAME.py yields. Passages of equal score stand in the order of their ids, so a ranking does not depend on the order
of the file; where no passage has an id, the number of its line is its id.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipelines.base.distribution import install_hint
from pipelines.base.errors import DataError, Problem, RecipeError, did_you_mean
from pipelines.tools import corpora as corpora_folder
from pipelines.tools.passage import Passage

GENERATED = "generated:"
MISSING = Problem("", "search needs the library bm25s", f"Run: {install_hint('search')}")
WORDS = r"(?u)\b\w+\b"
"""What counts as a word: single letters and digits too."""


class Retriever:
    """BM25 (Lucene's variant, k1 1.5, b 0.75) over passages.

    Args:
        passages: with ids that are all different.

    Raises:
        RecipeError: bm25s is not installed.
        DataError: no passages, two with one id, or none with a word.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        try:
            import bm25s
        except ImportError:
            raise RecipeError(problems=[MISSING]) from None
        self.passages = sorted(passages, key=lambda passage: passage.id)
        self._places = {passage.id: place for place, passage in enumerate(self.passages)}
        if not self.passages:
            raise DataError("it holds no document")
        if len(self._places) < len(self.passages):
            before = zip(self.passages, self.passages[1:], strict=False)
            twice = next(a.id for a, b in before if a.id == b.id)
            raise DataError(f"two documents have the id {twice!r}")
        words = _words([passage.text for passage in self.passages])
        self._known = {word for text in words for word in text}
        if not self._known:
            raise DataError("no document holds a word")
        self._index = bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
        self._index.index(words, show_progress=False)

    def __contains__(self, passage_id: object) -> bool:
        return passage_id in self._places

    def text(self, passage_id: str) -> str:
        """Of the passage with this id.

        Raises:
            KeyError: there is none.
        """
        return self.passages[self._places[passage_id]].text

    def scores(self, query: str) -> Any:
        """Scores [N] of all passages, in the order of `passages`; 0 for one that shares no word with the query."""
        import numpy as np

        words = [word for word in _words([query])[0] if word in self._known]
        return self._index.get_scores(words) if words else np.zeros(len(self.passages), dtype=np.float32)

    def search(self, query: str, top: int) -> list[Passage]:
        """The best `top` passages that share a word with the query, the best first."""
        import numpy as np

        scores = self.scores(query)
        if top < len(scores):  # all that may be among the first: whatever scores as the last of them does
            candidates = np.flatnonzero(scores >= np.partition(scores, -top)[-top])
        else:
            candidates = np.arange(len(scores))
        best = candidates[np.argsort(-scores[candidates], kind="stable")][:top]
        return [self.passages[place] for place in best.tolist() if scores[place] > 0]

    def rank(self, query: str, gold: Collection[str], top: int) -> int | None:
        """Place (1-based) of the first gold passage; None where none is among the best `top`.

        Raises:
            DataError: a gold id is not in the corpus.
        """
        import numpy as np

        missing = [each for each in gold if each not in self._places]
        if missing:
            raise DataError(f"the corpus has no document {missing[0][:80]!r}")
        scores = self.scores(query)
        ranks = []
        for place in (self._places[each] for each in gold):
            if scores[place] > 0:
                better = np.count_nonzero(scores > scores[place])
                ranks.append(1 + better + np.count_nonzero(scores[:place] == scores[place]))
        best = min(ranks, default=None)
        return int(best) if best is not None and best <= top else None


def retriever(corpus: str) -> Retriever:
    """The retriever of a corpus, built once in a process, and again where the file has changed.

    Raises:
        DataError: the corpus is not there, or holds no documents; the message names it.
        RecipeError: bm25s is not installed, or there is no generated corpus of that name.
    """
    if corpus.startswith(GENERATED):
        return _generated(corpus.removeprefix(GENERATED))
    path = Path(corpus).expanduser()
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        raise DataError(f"no corpus at {corpus[:200]}.") from None
    if not path.is_file():
        raise DataError(f"no corpus at {corpus[:200]}: it is no file.")
    return _of_file(str(path), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=4)
def _of_file(path: str, changed_ns: int, size: int) -> Retriever:
    file = Path(path)
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # JSON may hold the other line ends
    except UnicodeDecodeError as error:
        raise DataError(f"the corpus {path} is not UTF-8 (byte {error.start}).") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    digits = len(str(len(lines)))  # ids of one length, so that they sort as numbers do
    if file.suffix == ".jsonl":
        passages = [_passage(line, f"{number:0{digits}}", number, file) for number, line in numbered]
    else:
        passages = [Passage(f"{number:0{digits}}", line) for number, line in numbered]
    try:
        return Retriever(passages)
    except DataError as error:
        raise DataError(f"the corpus {path}: {error}.") from None


@lru_cache(maxsize=4)
def _generated(name: str) -> Retriever:
    known = sorted(path.stem for path in Path(corpora_folder.__file__).parent.glob("[a-z]*.py"))
    if name not in known:
        raise RecipeError(f"no generated corpus called {name!r}", fix=did_you_mean(name, known))
    return Retriever(importlib.import_module(f"{corpora_folder.__name__}.{name}").passages())


def refusal(corpus: str) -> Problem | None:
    """Why a corpus cannot be searched, as far as that is known without reading it; None where it can."""
    if importlib.util.find_spec("bm25s") is None:
        return MISSING
    if corpus.startswith(GENERATED):
        return None
    path = Path(corpus).expanduser()
    fix = "Name a text file with a passage a line, or a .jsonl file of objects with `id` and `text`."
    if "\0" in corpus or not path.is_file():
        return Problem("", f"no corpus at {corpus[:200]}", fix)
    return None if os.access(path, os.R_OK) else Problem("", f"the corpus {corpus[:200]} may not be read", fix)


def _passage(line: str, default_id: str, number: int, file: Path) -> Passage:
    try:
        row = json.loads(line)
        title, text, own_id = str(row.get("title") or ""), row["text"], row.get("id")
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise DataError(f"{file.name}, document {number}: not an object with `text`.") from None
    return Passage(default_id if own_id is None else str(own_id), f"{title}: {text}" if title else str(text))


def _words(texts: list[str]) -> list[list[str]]:
    """The words of each text, in lower case."""
    import bm25s

    return bm25s.tokenize(texts, token_pattern=WORDS, stopwords=None, return_ids=False, show_progress=False)
