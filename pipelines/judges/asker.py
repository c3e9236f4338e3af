"""Whom a method asks: a model behind an endpoint, or one that runs in the stage's own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from pipelines.base.errors import RecipeError
from pipelines.contract.fields import ADDRESS, Identifier, Strict
from pipelines.contract.scorer import Scorer
from pipelines.data.records import Message
from pipelines.judges.endpoint import ChatEndpoint, Reply
from pipelines.judges.local import LocalJudge

ModelName = Annotated[str, Field(min_length=1, max_length=300)]
"""What an endpoint knows a model by."""
ModelPath = Annotated[str, Field(min_length=1, max_length=4096)]
Url = Annotated[str, Field(pattern=ADDRESS)]
Instruction = Annotated[str, Field(max_length=8000)]
Temperature = Annotated[float, Field(ge=0, le=10)]
MaxTokens = Annotated[int, Field(ge=1, le=100_000)]
Concurrency = Annotated[int, Field(ge=1, le=1024)]
Timeout = Annotated[float, Field(gt=0, le=1e6)]
"""Seconds."""


class Endpoint(Strict):
    """How a judge behind an endpoint is asked, whatever about; the fields of `reward: judge` mean the same there."""

    model: ModelName
    url: Url | None = None
    api_key_env: Identifier | None = None
    instruction: Instruction = ""
    """What to judge by, in words."""
    reference: bool = False
    temperature: Temperature = 0.0
    max_tokens: MaxTokens = 512
    concurrency: Concurrency = 16
    timeout_s: Timeout = 120.0
    cache: bool = True

    def asker(self, field: str) -> Asker:
        """What asks it; `field` is the recipe's, for errors."""
        asked = self.model_dump(include=set(Endpoint.model_fields) - {"instruction", "reference"})
        return Asker(path=None, field=field, **asked)


Settings = TypeVar("Settings", bound=Endpoint)


def read_settings(kind: type[Settings], settings: dict[str, Any], field: str) -> Settings:
    """A judge's settings as they stand in a recipe.

    Raises:
        RecipeError: one that it does not take; `field` is the recipe's.
    """
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (field, *first["loc"])))
        raise RecipeError(f"{where}: {first['msg']}.") from None


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

    @classmethod
    def optional(cls, *, model: str | None, path: str | None, field: str, **settings: Any) -> Asker | None:
        """A greedy judge that stores replies, or none where a recipe names neither a `model` nor a `path`.

        Raises:
            RecipeError: both, or an endpoint's settings without its model.
        """
        if model is None and path is None:
            if settings["url"] or settings["api_key_env"]:
                raise RecipeError(f"{field}: url and api_key_env are those of a judge. Name its `model`.")
            return None
        return cls(model=model, path=path, field=field, temperature=0.0, cache=True, **settings)

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
