"""Search over a local corpus by BM25 (the library bm25s; `pip install "whetstone[search]"`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipelines.errors import DataError, RecipeError
from pipelines.tools import Tool, ToolError, function_schema

SCHEMA = function_schema(
    "search", "Search the documents for words.", query={"type": "string", "description": "what to look for"}
)


def tools(*, corpus: str, results: int = 3, characters: int = 300) -> list[Tool]:
    """The search.

    Args:
        corpus: a text file with a document a line, or .jsonl with `text` and, where there is one, `title`.
        results: documents of a reply, the best first; those that share no word with the query are left out.
        characters: of each document that are shown.
    """
    try:
        import bm25s
    except ImportError:
        raise RecipeError(
            'tools: search needs the library bm25s. Install it: pip install "whetstone[search]".'
        ) from None
    documents = _documents(corpus)
    index = bm25s.BM25()
    index.index(_words(documents), show_progress=False)
    wanted = min(results, len(documents))

    def search(query: str) -> str:
        if not query.strip():
            raise ToolError("the query is empty")
        positions, scores = index.retrieve(_words([query]), k=wanted, show_progress=False)
        ranked = zip(positions[0].tolist(), scores[0].tolist(), strict=True)
        lines = [f"[{rank}] {documents[at][:characters]}" for rank, (at, score) in enumerate(ranked, 1) if score > 0]
        return "\n".join(lines) or "nothing found"

    return [Tool(SCHEMA, search)]


def _words(texts: list[str]) -> Any:
    import bm25s

    return bm25s.tokenize(texts, stopwords=None, show_progress=False)


def _documents(corpus: str) -> list[str]:
    """The documents of a file.

    Raises:
        DataError: it is not there, holds none, or a line of it is no document.
    """
    path = Path(corpus).expanduser()
    if not path.is_file():
        raise DataError(f"tools: search: no corpus at {corpus}.")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    documents = (
        lines if path.suffix != ".jsonl" else [_document(line, number, path) for number, line in enumerate(lines, 1)]
    )
    if not documents:
        raise DataError(f"tools: search: the corpus {corpus} holds no document.")
    return documents


def _document(line: str, number: int, path: Path) -> str:
    try:
        row = json.loads(line)
        title, text = str(row.get("title") or ""), row["text"]
    except (ValueError, KeyError, AttributeError):
        raise DataError(f"tools: search: {path.name}, document {number}: not an object with `text`.") from None
    return f"{title}: {text}" if title else str(text)
