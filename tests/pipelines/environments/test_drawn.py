"""Games that draw themselves: a picture shows what the text says, as the same bytes always, and the text stays as it is."""

from __future__ import annotations

import hashlib
import json
import random

import pytest
from worlds import copy_of, started

from pipelines import environments
from pipelines.base.errors import RecipeError
from pipelines.data.images import IMAGES
from pipelines.data.marks import marked
from pipelines.environments import _drawn, frozen_lake
from pipelines.papers.ragen import sokoban
from pipelines.papers.spiral import tic_tac_toe

GAMES = {
    "frozen_lake": (frozen_lake, {"side": 4, "fog": 2}, frozen_lake.ACTIONS),
    "sokoban": (sokoban, {"boxes": 2}, sokoban.ACTIONS),
    "tic_tac_toe": (tic_tac_toe, {"opening": 2}, tuple("123456789")),
}


def rows(name, size=6, **config):
    return list(environments.problems(name, size, 5, GAMES[name][1] | config))


def read(name, text, cell):
    """The text that a picture was drawn from, letter by letter; free squares of tic-tac-toe look alike."""
    tiles = GAMES[name][0].TILES
    letter_of = {_drawn._pixels(tile, cell).tobytes(): letter for letter, tile in tiles.items()}
    (digest,) = marked(text)
    image = IMAGES.image(digest)
    assert image.size == (image.width // cell * cell, image.height // cell * cell)
    lines = [
        "".join(
            letter_of[image.crop((x, y, x + cell, y + cell)).tobytes()] for x in range(0, image.width, cell)
        )
        for y in range(0, image.height, cell)
    ]  # fmt: skip
    return "\n".join(lines)


@pytest.mark.parametrize("cell", [4, 8])
@pytest.mark.parametrize("name", GAMES)
def test_every_turn_of_a_picture_shows_what_the_text_says(name, cell):
    draw = random.Random(1)
    for seen, told in zip(rows(name, shows="image", cell=cell), rows(name), strict=True):
        picture, text = started(name, seen), started(name, told)
        shown, said = seen["prompt"][-1]["content"], told["prompt"][-1]["content"]
        for _ in range(8):
            words, board = ("", said) if name != "tic_tac_toe" else said.split("\n", 1)
            board = "".join("9" if letter in "12345678" else letter for letter in board)
            assert read(name, shown, cell) == board and shown.startswith(words)
            action = draw.choice(GAMES[name][2])
            copied = copy_of(name, picture).step(action)
            first, second = picture.step(action), text.step(action)
            assert copied == first
            assert (first.reward, first.done, first.info) == (second.reward, second.done, second.info)
            if first.done:
                break
            shown, said = first.observation, second.observation


@pytest.mark.parametrize("name", GAMES)
def test_both_are_the_picture_and_the_text(name):
    for both, seen, told in zip(
        rows(name, shows="both"), rows(name, shows="image"), rows(name, demonstrations=False), strict=True
    ):
        text, image, written = (row["prompt"][0]["content"] for row in (both, seen, told))
        assert text == image + "\n" + (written.split("\n", 1)[1] if name == "tic_tac_toe" else written)


DIGESTS = {
    ("frozen_lake", "fog"): "845d7ba197f90539",
    ("frozen_lake", "beliefs"): "98fb69704ce515e8",
    ("sokoban", ""): "ef0158eabaade9de",
    ("tic_tac_toe", "opening"): "8d75ad5f38b42ddf",
}


@pytest.mark.parametrize(("name", "setting"), DIGESTS)
def test_rows_of_text_are_those_from_before_there_were_pictures(name, setting):
    config = {"fog": {"fog": 1}, "beliefs": {"beliefs": 0.5}, "opening": {"opening": 3}, "": {}}[setting]
    made = list(environments.problems(name, 30, 5, {**config, "demonstrations": True}))
    assert hashlib.sha256(json.dumps(made).encode()).hexdigest()[:16] == DIGESTS[name, setting]


def test_a_picture_is_the_same_bytes_everywhere():
    image = _drawn.board("A.O\n?G.", frozen_lake.TILES)
    assert hashlib.sha256(image.tobytes()).hexdigest()[:16] == "2cc78cc74aa311e3"


@pytest.mark.parametrize("name", [*GAMES, "world_model"])
def test_settings_have_bounds(name):
    if name == "world_model":
        with pytest.raises(RecipeError, match=r"config\.shows.*boards are written here"):
            next(environments.problems(name, 1, 0, {"config": {"shows": "image"}}))
        return
    for config in ({"shows": "sound"}, {"shows": "image", "cell": 1}, {"cell": "8"}):
        with pytest.raises(RecipeError, match=r"shows|cell"):
            next(environments.problems(name, 1, 0, config))
