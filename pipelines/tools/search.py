"""Search over a local corpus by BM25 (`pip install bm25s`)."""

from __future__ import annotations

from pipelines.base.errors import DataError, RecipeError
from pipelines.tools import Tool, ToolError, function_schema
from pipelines.tools.retrieval import retriever

SCHEMA = function_schema(
    "search", "Search the documents for words.", query={"type": "string", "description": "what to look for"}
)


def tools(*, corpus: str, results: int = 3, characters: int = 300) -> list[Tool]:
    """The search.

    Args:
        corpus: as `pipelines.tools.retrieval` reads it: a text file with a document a line, .jsonl with `text`, or `generated:NAME`.
        results: documents of a reply, the best first; those that share no word with the query are left out.
        characters: of each document that are shown.

    Raises:
        DataError: there is no such corpus, or a line of it is no document.
        RecipeError: bm25s is not installed.
    """
    try:
        documents = retriever(corpus)
    except (DataError, RecipeError) as error:
        raise error.inside("tools.search") from None

    def search(query: str) -> str:
        if not query.strip():
            raise ToolError("the query is empty")
        best = documents.search(query, results)
        lines = [f"[{rank}] {passage.text[:characters]}" for rank, passage in enumerate(best, 1)]
        return "\n".join(lines) or "nothing found"

    return [Tool(SCHEMA, search)]
