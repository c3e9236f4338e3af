"""The laws of kinds of stages (`pipelines.recipe.stage_kind.Kind`) that plug-ins bring; a subject is a name in the table or a reference."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from pipelines.base import plugins
from pipelines.laws import NotApplicable, require
from pipelines.recipe.json_schema import explanations
from pipelines.recipe.stage_kind import Kind, kind_of


def _kind(name: str) -> Kind:
    return kind_of(name, plugins.origins()[plugins.STAGES][name])


def a_recipe_can_name_it(name: str) -> None:
    """It has a name of its own, settings, what it takes and makes, and its work."""
    require(_kind(name).__doc__, "its class has no docstring, which says what its stages do")


def settings_say_what_they_mean(name: str) -> None:
    """Every setting of its own has a text below it, which editors show."""
    settings = _kind(name).settings
    own = [field for field in settings.model_fields if field in settings.__annotations__]
    unsaid = [field for field in own if field not in explanations(settings)]
    require(not unsaid, f"nothing says what {', '.join(unsaid)} means")


def settings_survive_json(name: str) -> None:
    """Settings with their defaults are equal after a way through JSON, as the stage's process gets them."""
    settings = _kind(name).settings
    try:
        default = settings()
    except ValidationError:
        raise NotApplicable("a setting has no default") from None
    require(settings.model_validate_json(default.model_dump_json()) == default, "they come back as others")


LAWS: tuple[Callable[[str], None], ...] = (a_recipe_can_name_it, settings_say_what_they_mean, settings_survive_json)
