"""A mapping in a file is what a dictionary is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipelines.data.images import Images
from pipelines.data.spilled import Spilled

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.binary(max_size=9)), max_size=12)


@given(STEPS)
def test_as_a_dictionary(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("spilled")
    spilled, plain = Spilled(folder / "file"), dict[str, bytes]()
    assert not list(folder.iterdir()), "nothing is left of it when the process ends"
    for name, value in steps:
        for each in (spilled, plain):
            if value is None:
                each.pop(name, None)
            else:
                each[name] = value
    assert dict(spilled) == plain and len(spilled) == len(plain) and ("a" in spilled) == ("a" in plain)


def test_images_that_were_added_before_and_after(tmp_path):
    known = Images()
    first = known.add(Image.new("RGB", (3, 2), "red"))
    for _ in range(2):
        known.spill(tmp_path / "images")
    second = known.add(Image.new("RGB", (2, 3), "blue"))
    assert [known.image(mark[1:-1]).size for mark in (first, second)] == [(3, 2), (2, 3)]
    assert known.image(second[1:-1]).getpixel((0, 0)) == (0, 0, 255)
