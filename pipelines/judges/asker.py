"""Whom a method asks: a model behind an endpoint, or one that runs in the stage's own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from pipelines.base.errors import RecipeError
from pipelines.contract.fields import Identifier, Strict
from pipelines.contract.model_endpoint import Concurrency, ModelName, Timeout, Url
from pipelines.contract.scorer import Scorer
from pipelines.data.records import Message

if TYPE_CHECKING:
    from pipelines.judges.endpoint import ChatEndpoint, Reply
    from pipelines.judges.local import LocalJudge

ModelPath = Annotated[str, Field(min_length=1, max_length=4096)]
Instruction = Annotated[str, Field(max_length=8000)]
Temperature = Annotated[float, Field(ge=0, le=10)]
MaxTokens = Annotated[int, Field(ge=1, le=100_000)]


class EndpointSettings(Strict):
    """How an endpoint is asked, whatever about."""

    url: Url | None = None
    api_key_env: Identifier | None = None
    temperature: Temperature = 0.0
    max_tokens: MaxTokens = 512
    concurrency: Concurrency = 16
    timeout_s: Timeout = 120.0
    cache: bool = True


class JudgeSettings(EndpointSettings):
    """Settings of every reward with a judge: a model behind an endpoint, or the one at a path."""

    model: ModelName | None = None
    path: ModelPath | None = None


class Endpoint(EndpointSettings):
    """A judge behind an endpoint, and what it is shown; the fields of `reward: judge` mean the same there."""

    model: ModelName
    instruction: Instruction = ""
    """What to judge by, in words."""
    reference: bool = False

    def asker(self, field: str) -> Asker:
        """What asks it; `field` is the recipe's, for errors."""
        return Asker(JudgeSettings(**self.model_dump(include=set(JudgeSettings.model_fields))), field)


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
        raise RecipeError(where, f"{first['msg']}.") from None


class Asker:
    """A judge's model.

    Args:
        settings: of a `model` that an endpoint knows by that name, or of one at a `path`, which runs here.
        field: of the recipe, for errors.
        required: whether there must be one.

    Raises:
        RecipeError: both, or neither where one is required, or an endpoint's settings without an endpoint's model.
    """

    def __init__(self, settings: JudgeSettings, field: str, *, required: bool = True) -> None:
        self.settings, self.field = settings, field
        model, path, of_endpoint = settings.model, settings.path, settings.url or settings.api_key_env
        if (model and path) or (required and not self.named):
            raise RecipeError(
                field, "a judge is a `model` behind an endpoint, or the model at a `path`: give one of them."
            )
        if path is not None and of_endpoint:
            raise RecipeError(f"{field}.path", "url and api_key_env are those of an endpoint", "Leave them out.")
        if model is None and of_endpoint:
            raise RecipeError(field, "url and api_key_env are those of a judge", "Name its `model`.")
        self._asked: ChatEndpoint | LocalJudge | None = None

    @property
    def named(self) -> bool:
        """Whether the recipe names a judge."""
        return bool(self.settings.model or self.settings.path)

    def connect(self, scorer: Scorer) -> None:
        """Load the model at `path`."""
        own = self.settings
        if own.path is not None:
            from pipelines.judges.local import LocalJudge

            model = scorer.language_model(own.path)
            self._asked = LocalJudge(model, temperature=own.temperature, max_tokens=own.max_tokens)

    def ask(self, questions: Sequence[list[Message]]) -> list[Reply]:
        """A reply to every question, in their order. An endpoint is made when it is first asked: a recipe is read where the key is not.

        Raises:
            UserError: as `ChatEndpoint` does.
        """
        if self._asked is None:
            from pipelines.judges.endpoint import ChatEndpoint

            self._asked = ChatEndpoint(field=self.field, **self.settings.model_dump(exclude={"path"}))
        return self._asked.ask(questions) if questions else []
