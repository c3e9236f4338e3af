"""Whom a method asks: a model behind an endpoint, or one that runs in the stage's own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipelines.contract.scorer import Scorer
from pipelines.data.records import Message
from pipelines.errors import RecipeError
from pipelines.judges.endpoint import ChatEndpoint, Reply
from pipelines.judges.local import LocalJudge


class Asker:
    """A judge's model.

    Args:
        model: the name that an endpoint knows it by, or
        path: of a model that runs here; one of them.
        field: of the recipe, for errors.
        settings: `url`, `api_key_env`, `temperature`, `max_tokens`, `concurrency`, `timeout_s` and `cache` of `ChatEndpoint`.

    Raises:
        RecipeError: both, or neither, or an endpoint's settings for a model that runs here.
    """

    def __init__(self, *, model: str | None, path: str | None, field: str, **settings: Any) -> None:
        if (model is None) == (path is None):
            raise RecipeError(
                f"{field}: a judge is a `model` behind an endpoint, or the model at a `path`: give one of them."
            )
        if path is not None and (settings["url"] or settings["api_key_env"]):
            raise RecipeError(f"{field}.path: url and api_key_env are those of an endpoint. Leave them out.")
        self.model, self.path, self.field, self.settings = model, path, field, settings
        self._asked: ChatEndpoint | LocalJudge | None = None

    def connect(self, scorer: Scorer) -> None:
        """Load the model at `path`."""
        if self.path is not None:
            own = {name: self.settings[name] for name in ("temperature", "max_tokens")}
            self._asked = LocalJudge(scorer.language_model(self.path), **own)

    def ask(self, questions: Sequence[list[Message]]) -> list[Reply]:
        """A reply to every question, in their order. An endpoint is made when it is first asked: a recipe is read where the key is not.

        Raises:
            UserError: as `ChatEndpoint` does.
        """
        if self._asked is None:
            self._asked = ChatEndpoint(model=str(self.model), field=self.field, **self.settings)
        return self._asked.ask(questions) if questions else []
