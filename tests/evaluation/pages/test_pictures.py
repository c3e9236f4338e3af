"""Marks in the texts of pages become pictures, and nothing else does."""

from __future__ import annotations

import re

import vision_models
from hypothesis import given
from hypothesis import strategies as st

from evaluation.pages.pictures import Pictures
from pipelines.data import marks, thumbnails

DIGEST = "a1b2c3d4" * 4
KNOWN = {DIGEST: thumbnails.of(vision_models.picture(64, 48, 1))}


def test_a_mark_is_a_picture_among_escaped_text():
    shown = Pictures(KNOWN).html(f"<b>{marks.mark(DIGEST)}</b>\x1b")
    assert shown.startswith('&lt;b&gt;<img class="picture" src="data:image/') and shown.endswith("&lt;/b&gt;\ufffd")
    assert 'width="64" height="48" alt="[image 64x48 a1b2c3d4]"' in shown


def test_words_where_there_is_no_picture_and_no_room():
    one = len(KNOWN[DIGEST].address)
    pictures = Pictures(KNOWN, most=one)
    shown = pictures.html(marks.mark(DIGEST) * 2 + marks.mark("0" * 32))
    assert shown.count("<img") == 1
    assert '<span class="muted">[image 64x48 a1b2c3d4]</span><span class="muted">[image 00000000]</span>' in shown
    assert pictures.words(f"a {marks.mark(DIGEST)}") == "a [image 64x48 a1b2c3d4]"


def test_small_and_large_images_are_seen():
    sizes = {side: thumbnails.Thumbnail(side, side, "data:image/png;base64,AA") for side in (8, 16, 90, 150, 4000)}
    shown = {
        side: re.search(r'width="(\d+)"', Pictures({DIGEST: each}).html(marks.mark(DIGEST)))[1]
        for side, each in sizes.items()
    }
    assert shown == {8: "96", 16: "96", 90: "90", 150: "150", 4000: "160"}


@given(st.lists(st.sampled_from([marks.PLACE, DIGEST, DIGEST[:31], "0" * 32, "<img src=x>", '"', "&"]), max_size=12))
def test_whatever_a_text_holds_only_whole_marks_of_known_images_are_pictures(parts):
    text = "".join(parts)
    shown = str(Pictures(KNOWN).html(text))
    assert shown.count("<img") == marks.marked(text).count(DIGEST)
    assert "<img src=x" not in shown
