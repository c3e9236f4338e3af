"""Answers of the process that is asked before a run (`tasks/preflight/probe.py`), and the good ones from before."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

from pipelines import environments
from pipelines.base import plugins
from pipelines.base.cache import Cache
from pipelines.base.files import digest
from pipelines.base.project import make_home
from tasks import environment
from tasks.preflight import probe
from tasks.preflight import rules as preflight_rules

ANSWERED_BY = tuple(
    f"{folder}/*.py"
    for folder in (
        "tasks/preflight",
        "evaluation",
        *(f"pipelines/{name}" for name in ("curate", "data", "engine", "environments")),
    )
)
"""The code that answers: another version of it may say more."""
MOST = 5000
"""Answers that are remembered."""


class Asked:
    """Questions and their answers in order; good ones from before are used where nothing that they depend on has changed."""

    def __init__(self, questions: list[dict[str, Any]]) -> None:
        first: dict[str, int] = {}
        self._place = [first.setdefault(json.dumps(q, sort_keys=True), i) for i, q in enumerate(questions)]
        """Of each question the first that asks the same."""
        self._marks = [mark_of(q) for q in questions]
        self._cache = Cache(environment.home() / ".checked" / "answers.sqlite", MOST)
        known = self._cache.read(filter(None, self._marks))
        self._answers = [known.get(mark or "") for mark in self._marks]
        self._open = [i for i, answer in enumerate(self._answers) if answer is None and self._place[i] == i]
        self._asking = probe.Asking([questions[i] for i in self._open])

    @property
    def waits(self) -> bool:
        """Whether an answer is on its way."""
        return bool(self._open)

    def close(self) -> None:
        """Ask no more."""
        self._asking.close()

    def answers(self) -> list[dict[str, Any]]:
        """All answers; the new ones are remembered."""
        good: dict[str, Any] = {}
        for i, told in zip(self._open, self._asking.result(), strict=True):
            self._answers[i] = told
            mark = self._marks[i]
            if mark is not None and not told.get("problem"):
                good[mark] = told
        with contextlib.suppress(OSError):
            make_home()
            self._cache.write(good)
        return [answer for i in self._place if (answer := self._answers[i]) is not None]


def mark_of(question: dict[str, Any]) -> str | None:
    """Digest of a question and what its answer depends on; None where that cannot be known."""
    if question["ask"] == "function" or plugins.named():  # code of the user's answers
        return None
    rules = preflight_rules.depends_on(question) if question["ask"] == preflight_rules.ASK else []
    if rules is None:
        return None
    parts: list[Any] = [question]
    for name in ("torch", "transformers", "tokenizers", "reasoning-gym", "lm_eval", "gguf"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts.append(importlib.metadata.version(name))
    folders = [Path(str(question[k])) for k in ("path", "include") if question.get(k)]
    entries = [f for folder in folders for f in (folder.expanduser(), *sorted(folder.expanduser().rglob("*")))]
    files = [f for f in [*entries, *rules, *map(Path, question.get("files", ()))] if f.is_file()]
    files += [f for f in [Path(question.get("chat_template") or "{")] if "{" not in str(f) and f.is_file()]
    files += [file for pattern in ANSWERED_BY for file in sorted(environment.ROOT.glob(pattern))]
    files += environments.plugin_files()
    for file in files:
        about = file.stat()
        parts.append([str(file), about.st_size, about.st_mtime_ns])
    return digest(parts)[:24]
