"""Records out of the prompts that a model wrote: length, keywords, ROUGE-L with what there is, and what reads them."""

from __future__ import annotations

import pytest
import toys
import yaml
from drawn_samples import chosen, curated, write
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import DataError, RecipeError
from pipelines.curate import written
from pipelines.data import dataset, samples
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.verifiers.overlap import rouge_l

SEEDS = {"a": "name a red fruit that is sweet", "b": "list the days of the week in order"}
RAIN, LIKE_RAIN = "explain how rain forms over the sea", "explain how rain forms over the land"
SPIDER = "how many legs has a spider"


def drafts(tmp_path, texts, cut=()):
    """Samples of a stage that writes prompts, for two seeds with a system message."""
    seeds = {
        uid: {samples.WRITTEN_FROM: [{"role": "system", "content": "s"}, {"role": "user", "content": text}]}
        for uid, text in SEEDS.items()
    }
    drawn = {uid: [(text, None) for text in texts[uid]] for uid in SEEDS if uid in texts}
    return write(tmp_path / "drafts", drawn, verifier="exact", cut=cut, info=seeds)


def new(folder, **select):
    return [p.prompt[-1]["content"] for p in chosen(folder, kind="prompts", **select)]


def test_new_prompts_are_unlike_all_before_them(tmp_path):
    """ROUGE-L with a seed 6 of 7 words (0.86), with a new one 6 of 7; one is too short, one was cut, one names an image."""
    texts = {
        "a": [f"<think>hm</think>\n{RAIN}", "name a red fruit that is sour", "too short", RAIN],
        "b": [LIKE_RAIN, SPIDER, "draw an image of a spider please", "cut off in the middle of"],
    }
    folder = drafts(tmp_path, texts, cut=("cut off in the middle of",))
    assert new(folder, keywords=["Image"]) == [RAIN, SPIDER]
    assert new(folder, words=[2, 2]) == ["too short"]
    assert LIKE_RAIN in new(folder, rouge=0.9) and "draw an image of a spider please" in new(folder)
    records = chosen(folder, kind="prompts")
    assert records[0].prompt[0] == {"role": "system", "content": "s"} and records[0].info == {}
    assert records[0].answer == "" and len({p.uid for p in records}) == len(records)


@given(st.lists(st.text("abc ", min_size=1, max_size=9), max_size=12), st.sampled_from([0.4, 0.7, 1.0]))
def test_no_two_that_stay_are_alike(texts, bound):
    from pipelines.recipe.selection import Selection

    select = Selection.model_validate({"kind": "prompts", "words": [1, 9], "rouge": bound})
    kept = [["a", "b"]]
    for text in texts:
        own = text.split()
        alike = any(rouge_l(other, own) >= bound for other in kept)
        fits = written._fits(own, kept, set(), select)
        assert fits == (bool(own) and not alike), "the bound by lengths decides nothing"
        kept += [own] if fits else []


def test_new_prompts_between_marks(tmp_path):
    folder = drafts(tmp_path, {"a": ["so: [count the stars in the sky] ok", "count the fish in the sea", "[ ]"]})
    assert new(folder, marks=["[", "]"]) == ["count the stars in the sky"]


def test_answers_are_no_prompts(tmp_path):
    with pytest.raises(DataError, match="holds answers and no prompts"):
        chosen(write(tmp_path / "drafts"), kind="prompts")


def test_curation_keeps_records_without_an_answer(tmp_path):
    folder = drafts(tmp_path, {"a": [RAIN], "b": [SPIDER]})
    out = curated(tmp_path, folder, {"select": "prompts"}, splits={"train": 1.0})
    rows = dataset.read_split(out, "train")
    assert {p.prompt[-1]["content"] for p in rows} == {RAIN, SPIDER} and {p.answer for p in rows} == {""}


def graph(tmp_path, select="prompts", **writes):
    """Prompts that the model writes, answered and paired by its own grades."""
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    _, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    stages = {
        "data": {"kind": "curate", **data},
        "cold": {"kind": "sft", "data": "data", **sft},
        "writes": {"kind": "sample", "data": "data", "model": "cold", "new_prompts": {}, **writes},
        "prompts": {"kind": "curate", "sources": [{"kind": "stage", "path": "writes", "select": select}]},
        "drafts": {"kind": "sample", "data": "prompts", "model": "cold", "self_judge": {}},
        "pairs": {"kind": "curate", "sources": [
            {"kind": "stage", "path": "drafts", "select": {"kind": "pairs", "by": "judge"}}]},
        "dpo": {"kind": "preference", "data": "pairs", "model": "cold", "epochs": 1},
    }  # fmt: skip
    path = tmp_path / "self.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages}, sort_keys=False))
    return read_recipe(path)


def test_the_graph_of_a_round(tmp_path):
    recipe = graph(tmp_path)
    check(recipe)
    dpo = recipe.node("dpo")
    assert [p.text for p in dpo.kind.provenance(dpo)] == ["loss: dpo: preferences (pairs of drafts by judge)"]


@pytest.mark.parametrize(
    ("select", "writes", "words"),
    [
        ("best", {}, "writes writes new prompts, and best is about answers"),
        ("prompts", {"new_prompts": None}, "writes answers problems"),
        ({"kind": "best", "rouge": 0.5}, {}, "rouge is read by prompts"),
        ({"kind": "prompts", "words": [9, 2]}, {}, "words are the fewest"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, select, writes, words):
    with pytest.raises(RecipeError, match=words):
        check(graph(tmp_path, select, **writes))
