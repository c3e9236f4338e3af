"""Images of raw rows: every form in which data sets write them, and files that are none."""

import base64
import io
import json
import struct
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipelines.contract.model_settings import Model
from pipelines.curate import pictures
from pipelines.curate.run import run
from pipelines.curate.values import RowError
from pipelines.data import images, marks
from pipelines.data.dataset import derive, read_split
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Curate, Source
from pipelines.stage.report import Report
from tasks.keys import files

TEXTS = ("messages", "prompt")


def png(colour="red", size=(4, 3), kind="PNG", **options):
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, kind, **options)
    return buffer.getvalue()


def mark(colour="red", size=(4, 3)):
    return marks.mark(images.digest_of(Image.new("RGB", size, colour)))


def source(**fields):
    return Source(kind="file", path="rows.jsonl", **fields)


def placed(row, **fields):
    return pictures.placed(row, source(**fields), TEXTS)


def address(data):
    return "data:image/png;base64," + base64.b64encode(data).decode()


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "image": png()},
        {"type": "image", "base64": base64.b64encode(png()).decode()}
        if len(png()) > 800
        else {"type": "image", "image": address(png())},
        {"type": "image_url", "image_url": {"url": address(png())}},
        {"type": "image", "image": {"bytes": png(), "path": None}},
    ],
)
def test_content_part(part):
    row = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "Which colour?"}]}]}
    content = placed(row)["messages"][0]["content"]
    assert "".join(each["text"] for each in content) == mark() + "Which colour?"


def test_video_is_its_frames():
    row = {"messages": [{"role": "user", "content": [{"type": "video", "video": [png("red"), png("blue")]}]}]}
    assert placed(row)["messages"][0]["content"][0]["text"] == mark("red") + mark("blue")


def test_column_with_placeholders_in_order():
    row = {"prompt": [{"role": "user", "content": "Is <image> or <image> red?"}], "images": [png("red"), png("blue")]}
    assert placed(row) == {"prompt": [{"role": "user", "content": f"Is {mark('red')} or {mark('blue')} red?"}]}


def test_column_without_placeholders_comes_first():
    row = {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Red?"}], "image": png()}
    assert placed(row)["prompt"][1]["content"] == mark() + "Red?"


def test_trl_parts_without_contents():
    content = [{"type": "image"}, {"type": "text", "text": "Red?"}]
    row = {"prompt": [{"role": "user", "content": content}], "images": [png()]}
    assert placed(row)["prompt"][0]["content"][0]["text"] == mark()


def test_pair_without_prompt():
    talk = [{"role": "user", "content": "<image>Red?"}]
    row = {"chosen": talk, "rejected": talk, "images": [png()]}
    assert placed(row)["chosen"][0]["content"] == placed(row)["rejected"][0]["content"] == mark() + "Red?"


@pytest.mark.parametrize(("text", "count"), [("<image>Red?", 2), ("<image><image>Red?", 1), ("<image>Red?", 0)])
def test_another_number_of_places(text, count):
    with pytest.raises(RowError, match="not as many images as places"):
        placed({"prompt": text, "images": [png()] * count})


def test_dropped():
    assert placed({"prompt": "<image>Red?", "images": [png()]}, images="drop") == {"prompt": "Red?"}


def test_exif_turns_the_image():
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    text = placed({"prompt": "?", "image": png(size=(16, 8), kind="JPEG", exif=exif)})["prompt"]
    assert images.IMAGES.image(marks.marked(text)[0]).size == (8, 16)


def test_smaller():
    text = placed({"prompt": "?", "image": png(size=(40, 10))}, most_pixels=100)["prompt"]
    assert images.IMAGES.image(marks.marked(text)[0]).size == (20, 5)


def bomb():
    """A PNG file whose head says that it has 10^10 pixels."""
    head = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + png()[33:]


@pytest.mark.parametrize("data", [bomb(), png(size=(64, 64), kind="JPEG")[:300], b"text", b""])
def test_no_image(data):
    with pytest.raises(RowError):
        placed({"prompt": "?", "image": {"bytes": data, "path": None}})


def test_paths_stay_in_the_folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(png())
    (tmp_path / "b.png").write_bytes(png())
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "b.png")
    folder = str(tmp_path / "in")
    assert placed({"prompt": "?", "image": "a.png"}, image_folder=folder)["prompt"] == mark() + "?"
    for name in ("../b.png", "link.png", str(tmp_path / "b.png")):
        with pytest.raises(RowError, match="leads out"):
            placed({"prompt": "?", "image": name}, image_folder=folder)
    with pytest.raises(RowError, match="cannot be read"):
        placed({"prompt": "?", "image": "none.png"}, image_folder=folder)
    with pytest.raises(RowError, match="image_folder"):
        placed({"prompt": "?", "image": "a.png"})
    with pytest.raises(RowError, match="not fetched"):
        placed({"prompt": "?", "image": "https://example.org/a.png"}, image_folder=folder)


@given(st.text(st.sampled_from("ab0" + marks.PLACE), max_size=50))
def test_texts_name_no_image(text):
    forged = marks.mark("0" * 32) + text
    assert marks.marked(placed({"prompt": forged})["prompt"]) == []


@given(st.lists(st.sampled_from(["red", "blue", "green"]), min_size=1, max_size=4), st.text(max_size=20))
def test_marks_come_back(colours, between):
    between = between.replace("<image>", "").replace(marks.PLACE, "")
    row = {"prompt": between.join(["<image>"] * len(colours)), "images": [png(each) for each in colours]}
    assert marks.marked(placed(row)["prompt"]) == [marks.marked(mark(each))[0] for each in colours]


def test_artifact_has_the_images_of_its_rows(tmp_path):
    rows = [
        {"data_source": "cells", "prompt": [{"role": "user", "content": f"<image>Which colour has {name}?"}],
         "images": [{"bytes": png(name), "path": None}], "reward_model": {"style": "rule", "ground_truth": name}}
        for name in ("red", "blue")
    ]  # fmt: skip
    rows += [rows[0], rows[0] | {"images": [{"bytes": b"none", "path": None}]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    settings = Curate(
        sources=[{"kind": "file", "path": str(tmp_path / "rows.parquet"), "verifier": "exact"}],
        splits={"train": 1.0}, near_duplicates=None, decontaminate=None,
    )  # fmt: skip
    out = tmp_path / "work" / "out"
    out.mkdir(parents=True)
    metrics = run(settings, Model.model_validate({"fresh": {}}), out=out, report=Report(tmp_path / "work"), seed=0)
    assert (metrics["rows"], metrics["quarantined"]) == (2, 1)
    texts = {problem.answer: problem.prompt[0]["content"] for problem in read_split(out, "train")}
    assert texts == {name: mark(name) + f"Which colour has {name}?" for name in ("red", "blue")}
    known = images.Images()
    known.open_folder(out)
    assert [known.image(marks.marked(text)[0]).getpixel((0, 0)) for text in texts.values()] == [
        {"red": (255, 0, 0), "blue": (0, 0, 255)}[name] for name in texts
    ]
    told = json.loads((out / "report" / "card.json").read_text())
    assert told["images"] == 2 and told["image_sizes"].startswith("4x3 to 4x3 pixels, 0.0001")
    assert "| images | 2 (4x3 to 4x3 pixels" in (out / "report" / "card.md").read_text()
    derived = tmp_path / "derived"
    derived.mkdir()
    kept = next(problem for problem in read_split(out, "train") if problem.answer == "blue")
    derive(out, derived, {"train": [kept]})
    assert images.named(derived) == marks.marked(mark("blue"))
    again = images.Images()
    again.open_folder(derived)
    assert [digest in again for name in ("red", "blue") for digest in marks.marked(mark(name))] == [False, True]


def test_raw_texts_name_no_image():
    assert pictures.placed({"text": mark()}, source(text_column="text"), TEXTS) == {
        "text": images.digest_of(Image.new("RGB", (4, 3), "red"))
    }


def test_key_has_the_files_of_the_folder(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "?", "answer": "1", "image": "a.png"}\n')
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(png("red"))
    path, folder = str(tmp_path / "rows.jsonl"), str(tmp_path / "in")
    fields = {
        "name": "seen",
        "model": {"fresh": {}},
        "curate": {"sources": [{"kind": "file", "path": path, "image_folder": folder}]},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(fields))
    recipe = read_recipe(tmp_path / "recipe.yaml")

    def digests():
        node = recipe.node("curate")
        return files.of_stage(recipe, node.kind.reads(node), tmp_path)[0].digests

    before = digests()
    (tmp_path / "in" / "a.png").write_bytes(png("blue"))
    changed = {name for name, value in digests().items() if value != before[name]}
    assert len(changed) == 1 and changed.pop().endswith("a.png")
