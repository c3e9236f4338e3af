"""Drawn questions: what a picture shows is what its twin in text says, and every kind has answers that its verifier tells apart."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pipelines import environments, verifiers
from pipelines.base.errors import RecipeError
from pipelines.data.images import IMAGES
from pipelines.data.marks import mark, marked
from pipelines.environments.drawn_questions import COLOURS, EMPTY, LETTERS, QUESTIONS

NAMES = {letter: name for name, letter in LETTERS.items()} | {EMPTY: ""}


def rows(size=24, seed=3, **config):
    return list(environments.problems("drawn_questions", size, seed, config))


def _text(row):
    return row["prompt"][0]["content"]


@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_picture_shows_what_its_twin_in_text_says(kind):
    seen, written = rows(kinds=[kind], cell=6), rows(kinds=[kind], cell=6, shows="text")
    assert [row["answer"] for row in seen] == [row["answer"] for row in written]
    for picture, text in zip(seen, written, strict=True):
        (digest,) = marked(_text(picture))
        image = IMAGES.image(digest)
        grid = _text(text).split("\n")[: image.height // 6]
        colours = [[NAMES[letter] for letter in line] for line in grid]
        for r, line in enumerate(colours):
            for c, colour in enumerate(line):
                shown = {image.getpixel((6 * c + x, 6 * r + y)) for x in (0, 5) for y in (0, 5)}
                assert shown == {COLOURS[colour] if colour else (255, 255, 255)}
        assert _text(text).endswith(_text(picture).removeprefix(f"{mark(digest)}\n"))


@pytest.mark.parametrize("kind", QUESTIONS)
def test_gold_answers_pass_and_errors_fail(kind):
    drawn = rows(60, kinds=[kind], demonstrations=True, errors=1.0, side=5)

    def share(texts):
        asked = [(row["verifier"], text, row["answer"], row["info"]) for row, text in zip(drawn, texts, strict=True)]
        return sum(bool(verdict.correct) for verdict in verifiers.verify_many(asked)) / len(drawn)

    assert share([verifiers.gold(row["verifier"], row["answer"], row["info"]) for row in drawn]) == 1
    assert share([row["info"]["solution"] for row in drawn]) < 0.1


def test_kinds_take_turns_and_settings_have_bounds():
    assert [row["info"]["question"] for row in rows(4, kinds=["colour", "count"])] == ["colour", "count"] * 2
    faults: tuple[dict, ...] = ({"colours": 99}, {"kinds": []}, {"side": 1}, {"shows": "sound"})
    for config in faults:
        with pytest.raises((RecipeError, ValidationError), match=next(iter(config))):
            rows(1, **config)
