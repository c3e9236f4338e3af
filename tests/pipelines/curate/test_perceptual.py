"""Copies of a picture are the picture, and others are not, however alike the words beside them are."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipelines.contract.model_settings import Model
from pipelines.curate import perceptual
from pipelines.curate.perceptual import Leaks, Pictures
from pipelines.curate.run import run
from pipelines.data import marks
from pipelines.data.dataset import read_split
from pipelines.data.images import IMAGES
from pipelines.recipe.settings import Curate
from pipelines.stage.report import Report

SIZE = (200, 140)


def photo(seed: int, size: tuple[int, int] = SIZE) -> Image.Image:
    """Smooth colours with noise."""
    draw = np.random.default_rng(seed)
    smooth = Image.fromarray(draw.integers(0, 256, (6, 8, 3)).astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
    return Image.fromarray((np.asarray(smooth) + draw.normal(0, 8, (*size[::-1], 3))).clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def mark(image: Image.Image) -> str:
    return IMAGES.add(image)


def jpeg(image: Image.Image, quality: int = 75) -> Image.Image:
    return Image.open(io.BytesIO(encoded(image, "JPEG", quality=quality))).convert("RGB")


COPIES = {
    "format": lambda image: jpeg(image, 60),
    "smaller": lambda image: image.resize((100, 70), Image.Resampling.LANCZOS),
    "larger": lambda image: image.resize((311, 218), Image.Resampling.BICUBIC),
    "both": lambda image: jpeg(image.resize((150, 105)), 75),
}


@pytest.mark.parametrize("copy", COPIES)
def test_a_copy_has_the_number_of_its_picture(copy):
    pictures = Pictures()
    numbers = [pictures.number(mark(photo(seed))[1:-1]) for seed in range(4)]
    assert numbers == [0, 1, 2, 3]
    copies = [mark(COPIES[copy](photo(seed)))[1:-1] for seed in range(4)]
    assert [pictures.number(digest) for digest in copies] == numbers
    assert [Pictures(near=False).find(digest) for digest in copies] == [None] * 4


def test_other_colours_shapes_and_parts_are_other_pictures():
    plain = Image.new("RGB", SIZE, "red")
    other = plain.copy()
    other.paste("blue", (0, 0, 30, 30))
    ones = [plain, Image.new("RGB", SIZE, "blue"), Image.new("RGB", SIZE[::-1], "red"), other]
    pictures = Pictures()
    assert [pictures.number(mark(image)[1:-1]) for image in ones] == [0, 1, 2, 3]


def test_a_picture_that_nobody_has_is_the_one_of_its_digest():
    pictures = Pictures()
    assert [pictures.number(digit * 32) for digit in "aba"] == [0, 1, 0] and pictures.find("c" * 32) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-9, 9)), min_size=1, max_size=12))
def test_buckets_hide_nothing(drawn):
    """The first picture that is nearly the same, as a search through all of them would have it."""
    images = [
        Image.fromarray((np.asarray(photo(seed, (20, 20))).astype(int) + shift).clip(0, 255).astype(np.uint8))
        for seed, shift in drawn
    ]
    pictures, firsts = Pictures(), list[np.ndarray]()
    for image in images:
        colours = perceptual.blocks(image)
        same = [number for number, first in enumerate(firsts) if perceptual.alike(first, colours)]
        assert pictures.number(mark(image)[1:-1]) == min(same, default=len(firsts))
        firsts += [] if same else [colours]


QUESTION = (
    "Look at the picture with care, and tell in one word which of all the animals that you know it shows to us here."
)


def test_contamination_by_picture_and_by_picture_with_words():
    asked = [("animals", mark(photo(seed)) + QUESTION) for seed in range(3)]
    leaks, strict = (Leaks(5, asked, alone=alone) for alone in (True, False))
    copied, other = mark(jpeg(photo(1))), mark(photo(9))
    assert leaks.texts == 3
    for text, alone, with_text in (
        (f"{copied}{QUESTION}", "animals", "animals"),
        (f"{copied}What?", "animals", None),
        (f"{other}{QUESTION}", None, None),
        (QUESTION, None, None),
    ):
        assert (leaks.hit(text), strict.hit(text)) == (alone, with_text)


def test_a_picture_of_many_questions_is_their_wording():
    logo = mark(photo(20))
    questions = [("t", f"{logo}{mark(photo(100 + number, (20, 20)))}Which?") for number in range(40)]
    shown = Leaks(5, questions, alone=True)
    assert shown.hit(f"{logo}What?") is None and shown.hit(mark(photo(107, (20, 20)))) == "t"


def test_rows_are_repeats_where_words_and_pictures_repeat(tmp_path):
    """Of one question with one answer: three pictures, a copy of each, and a benchmark that asks about the third."""
    pictures = [encoded(photo(seed), "PNG") for seed in range(3)] + [
        encoded(photo(seed), "JPEG", quality=80) for seed in range(3)
    ]
    rows = [
        {"prompt": [{"role": "user", "content": f"<image>{QUESTION}"}], "images": [{"bytes": data, "path": None}], "answer": "cat"}
        for data in pictures
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    asked = [("animals", mark(photo(2).resize((100, 70))) + "What is it?")]
    for images, kept in (("near", 2), ("same", 4)):
        settings = Curate(
            sources=[{"kind": "file", "path": str(tmp_path / "rows.parquet"), "verifier": "exact"}], splits={"train": 1.0},
            near_duplicates={"images": images},
        )  # fmt: skip
        out = tmp_path / images / "out"
        out.mkdir(parents=True)
        model = Model.model_validate({"fresh": {}})
        run(settings, model, out=out, report=Report(tmp_path / images), seed=0, benchmark_texts=lambda: asked)
        assert len(read_split(out, "train")) == kept
        card = (out / "report" / "card.md").read_text()
        assert "| contaminated | −2 |" in card and f"| near duplicate | −{4 - kept} |" in card
        assert "overlaps with a question of animals or shows its picture" in card and "[image " in card
        assert all(marks.PLACE not in line for line in (out / "report" / "dropped.jsonl").read_text().splitlines())
