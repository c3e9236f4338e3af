"""Types and bounds of settings in words."""

from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, MaxLen, MinLen
from pydantic import BaseModel, Field

from flows.cli import setting_types
from flows.cli.catalogue import PLACES, entries

Name = Annotated[str, Field(min_length=1, max_length=300)]


class Settings(BaseModel):
    """Fields as methods declare them."""

    share: float = Field(0.5, gt=0, le=1)
    model: Name | None = None
    place: Literal["last", "spread"] = "last"
    edges: list[Annotated[float, Ge(0)]] = Field([], min_length=1, max_length=2)
    key: Annotated[str, Field(pattern="^a|b$")] | None = None
    extra: dict[str, Any] | None = None
    words: Annotated[str | None, Field(max_length=8000)] = None


@pytest.mark.parametrize(
    ("field", "kind", "limits"),
    [
        ("share", "float", ["> 0", "≤ 1"]),
        ("model", "str or None", ["at least 1 character", "at most 300 characters"]),
        ("place", "'last' or 'spread'", []),
        ("edges", "list[float]", ["at least 1 entry", "at most 2 entries"]),
        ("key", "str or None", ["matches `^a|b$`"]),
        ("extra", "dict[str, Any] or None", []),
        ("words", "str or None", ["at most 8000 characters"]),
    ],
)
def test_types_and_bounds_in_words(field, kind, limits):
    about = Settings.model_fields[field]
    assert setting_types.type_name(about.annotation) == kind
    assert setting_types.bounds(about.annotation, about.metadata) == limits


def test_a_union_tells_the_bounds_of_each_arm():
    both = Annotated[str, MaxLen(9)] | Annotated[list[str], MinLen(2)] | Annotated[int, Gt(3), Le(7)]
    assert setting_types.type_name(both) == "str or list[str] or int"
    assert setting_types.bounds(both, []) == ["at most 9 characters", "at least 2 entries", "> 3", "≤ 7"]


def test_no_setting_of_the_catalogue_has_a_type_without_its_parts():
    kinds = {about["type"] for place in PLACES for each in entries(place) for about in each["settings"].values()}
    assert "'last' or 'spread'" in kinds
    assert not kinds & {"Literal", "Optional", "Union", "list", "tuple", "dict"}


def test_a_setting_that_must_be_given_has_no_default():
    class Encoded(BaseModel):
        """A field without a default, and one whose default is None."""

        encoder: Name
        model: Name | None = None

    lines = [setting_types.line(*row) for row in setting_types.table(Encoded).items()]
    assert lines[0].endswith("characters), to be set") and lines[1].endswith("characters), default None")
