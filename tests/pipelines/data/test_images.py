"""Images that an environment drew are known again where a run goes on."""

from __future__ import annotations

import pytest
import torch
import vision_models

from pipelines.base.errors import DataError
from pipelines.data.images import IMAGES, Images
from pipelines.data.marks import FIRST_ID, marked, place_ids


def test_a_commit_holds_the_drawn_images_that_its_rows_name():
    in_text, in_list, in_tensor, unnamed = (
        marked(IMAGES.add(vision_models.picture(8, 8, 50 + n)))[0] for n in range(4)
    )
    rows = [3, [{"tokens": [5, *place_ids(in_list, 2)], "score": 0.5, "text": [f"a \ufffc{in_text}\ufffc", None]}]]
    state = {"rows": rows, "row": torch.tensor([[7, place_ids(in_tensor, 3)[2]]]), "key": [FIRST_ID + (77 << 16), 1.0]}
    files = IMAGES.drawn(state)
    assert set(files) == {in_text, in_list, in_tensor}
    other = Images()
    other.redraw(files)
    for digest in files:
        assert other.image(digest).tobytes() == IMAGES.image(digest).tobytes()
        assert other.named(place_ids(digest, 1)[0]) == digest
    with pytest.raises(DataError, match=f"names the image {unnamed}"):
        other.image(unnamed)
    assert other.drawn([]) == {} and Images().drawn(state) == {}
