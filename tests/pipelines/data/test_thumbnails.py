"""Small copies of images beside logs: each once, bounded, and read again whatever a kill left behind."""

from __future__ import annotations

import base64
import io
import json

import vision_models
from PIL import Image

from pipelines.data import marks, thumbnails
from pipelines.data.images import IMAGES


def pictured(address):
    return Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))


def test_each_image_has_one_small_copy(tmp_path):
    large, small = (IMAGES.add(vision_models.picture(*size, 11)) for size in ((640, 320), (20, 30)))
    lines = json.dumps(
        {"prompt": [{"role": "user", "content": f"{large}or {small}{large}"}], "text": marks.mark("0" * 32)}
    )
    for _ in range(2):
        thumbnails.note(tmp_path / "report", lines)
    assert len((tmp_path / "report" / thumbnails.FILE).read_text().split()) > 0
    known = thumbnails.read([tmp_path])
    assert {digest: (each.width, each.height) for digest, each in known.items()} == {
        large[1:-1]: (640, 320), small[1:-1]: (20, 30),
    }  # fmt: skip
    assert pictured(known[large[1:-1]].address).size == (160, 80)
    assert pictured(known[small[1:-1]].address).size == (20, 30)
    assert (tmp_path / "report" / thumbnails.FILE).read_text().count("digest") == 2


def test_a_line_that_a_kill_cut_costs_one_image(tmp_path, monkeypatch):
    marked = [IMAGES.add(vision_models.picture(24, 24, seed)) for seed in (21, 22, 23)]
    thumbnails.note(tmp_path / "report", json.dumps(marked[:2]))
    path = tmp_path / "report" / thumbnails.FILE
    path.write_text(path.read_text()[:-20])
    monkeypatch.setattr(thumbnails, "_THERE", {})  # another process goes on
    assert list(thumbnails.read([tmp_path])) == [marked[0][1:-1]]
    thumbnails.note(tmp_path / "report", json.dumps(marked))
    assert set(thumbnails.read([tmp_path])) == {mark[1:-1] for mark in marked}


def test_no_more_than_so_many_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(thumbnails, "MOST_BYTES", 500)
    thumbnails.note(
        tmp_path / "report", json.dumps([IMAGES.add(vision_models.picture(30, 30, n)) for n in range(30, 40)])
    )
    assert 1 <= len(thumbnails.read([tmp_path])) < 5


def test_an_address_that_is_none_is_passed_over(tmp_path):
    path = tmp_path / "report" / thumbnails.FILE
    path.parent.mkdir()
    line = {"digest": "0" * 32, "width": 4, "height": 4}
    for address in ("https://example.org/a.png", 'data:image/png;base64,AA" onload="x', "data:text/html;base64,AA"):
        path.write_text(json.dumps(line | {"address": address}))
        assert thumbnails.read([tmp_path]) == {}
