"""A search query by the rank at which it finds the gold passage (ConvSearch-R1, arXiv 2505.15776).

    rank 1 to 10: (19 - rank) / 9        from 2 down to 1
    rank 11 to 100: (100 - rank) / 90    from 89/90 down to 0
    otherwise 0; a malformed completion -0.1

The answer is the id of the gold passage, or a JSON list of ids of which the best rank counts. `info`: `corpus` (as `tools.retrieval`
reads it), `form` (`tags`: the completion is `<think>...</think>`, a line end and `<rewrite>QUERY</rewrite>`, and nothing else; `plain`:
what follows the reasoning is the query, in one line), `top` (default and at most 100: later ranks count as not found), `within` (the rank
up to which the query is correct, default 10). A retriever that fails, and a gold id that the corpus lacks, leave the row unscored. The
paper's code takes the first of several rewrites; here they are malformed, because each would be a guess.
"""

from __future__ import annotations

import json
from typing import Any

from pipelines.base.errors import DataError
from pipelines.data.chat import after_thinking
from pipelines.tools.retrieval import retriever
from pipelines.verifiers.verdict import Verdict

TOP, WITHIN = 100, 10
MALFORMED = -0.1
MOST_WORDS = 1024
"""Words of a query; a longer one is malformed, as it would be for a search engine."""
TAGS = ("<think>", "</think>\n<rewrite>", "</rewrite>")


def verify(completion: str, answer: str, info: dict[str, Any]) -> Verdict:
    """The rank's reward.

    Raises:
        DataError: there is no such corpus, it lacks the gold passage, or the row's answer or a setting cannot be read.
        RecipeError: the library for BM25 is not installed.
    """
    form, top, within = info.get("form", "tags"), info.get("top", TOP), info.get("within", WITHIN)
    if form not in ("tags", "plain") or type(top) is not int or not 1 <= top <= TOP:
        raise DataError("info", "form is tags or plain, and top a whole number from 1 to 100")
    if type(within) is not int or not 1 <= within <= top:
        raise DataError("info", "within is a whole number from 1 to top")
    passages, gold_ids = retriever(_corpus(info)), ids(answer)
    text = query(completion, form)
    if text is None or len(text.split()) > MOST_WORDS:
        passages.rank("", gold_ids, top)  # a bad row is unscored whatever the completion
        return Verdict(MALFORMED, "unparsable", {"malformed": 1.0, "mrr": 0.0})
    rank = passages.rank(text, gold_ids, top)
    components = {"malformed": 0.0, "mrr": 1 / rank if rank else 0.0}
    return Verdict(reward(rank), "correct" if rank and rank <= within else "incorrect", components)


def reward(rank: int | None) -> float:
    """Of a rank from 1 on; None: not found.

    >>> [round(reward(rank), 6) for rank in (1, 2, 10, 11, 55, 100, 101, None)]
    [2.0, 1.888889, 1.0, 0.988889, 0.5, 0.0, 0.0, 0.0]
    """
    if rank is None or rank > TOP:
        return 0.0
    return (19 - rank) / 9 if rank <= 10 else (100 - rank) / 90


def query(completion: str, form: str) -> str | None:
    """The query of a completion; None where it is malformed.

    >>> query("<think>she is Ada</think>\\n<rewrite>where was Ada born</rewrite>", "tags"), query("Ada's town", "plain")
    ('where was Ada born', "Ada's town")
    >>> query("<rewrite>Ada</rewrite> <rewrite>Bob</rewrite>", "tags"), query("Ada\\nBob", "plain")
    (None, None)
    """
    if form == "plain":
        text = after_thinking(completion).strip()
        return text if text and "\n" not in text else None
    text = completion.strip()
    if any(text.count(tag) != 1 for tag in ("<think>", "</think>", "<rewrite>", "</rewrite>")):
        return None
    start, middle, end = TAGS
    if not text.startswith(start) or not text.endswith(end) or middle not in text:
        return None
    return text.partition(middle)[2].removesuffix(end).strip()


def ids(answer: str) -> list[str]:
    """The gold ids of an answer.

    >>> ids("p7"), ids('["p7", "p9"]')
    (['p7'], ['p7', 'p9'])

    Raises:
        DataError: there are none.
    """
    text = answer.strip()
    try:
        listed = json.loads(text) if text.startswith("[") else [text]
    except ValueError:
        listed = []
    if not listed or not all(isinstance(each, str) and each for each in listed):
        raise DataError("the answer is the id of a passage, or a JSON list of ids")
    return listed


def extract_answer(completion: str) -> str:
    """The query, in either form; empty where there is none."""
    return " ".join((query(completion, "tags") or query(completion, "plain") or "").split())


def gold(answer: str, info: dict[str, Any]) -> str | None:
    """The text of the gold passage as the query.

    Raises:
        DataError: the corpus is not there, or lacks the passage.
    """
    passages, first = retriever(_corpus(info)), ids(answer)[0]
    passages.rank("", [first], 1)
    text = " ".join(passages.text(first).replace("<", " ").split()[:MOST_WORDS])
    return text if info.get("form", "tags") == "plain" else f"<think></think>\n<rewrite>{text}</rewrite>"


def _corpus(info: dict[str, Any]) -> str:
    corpus = info.get("corpus")
    if not isinstance(corpus, str) or not corpus:
        raise DataError("info.corpus names the passages to search")
    return corpus
