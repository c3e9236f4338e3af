"""Sources mixed by shares that change over the stage; raw texts trained whole; the same bytes after SIGKILL."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import DataError, RecipeError
from pipelines.curate.run import run as curate
from pipelines.data import dataset
from pipelines.recipe.read import read_recipe
from pipelines.sft.mixture import Mixture, planned_rows
from pipelines.sft.pack import text_documents
from pipelines.sft.run import Trainer
from pipelines.stage.report import Report

shares = st.lists(
    st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5
).filter(lambda ends: sum(a for a, _ in ends) > 0.01 and sum(b for _, b in ends) > 0.01)  # fmt: skip


@given(shares, st.integers(1, 9), st.integers(1, 40))
def test_every_step_is_full_and_no_source_is_far_from_its_share(ends, per_step, steps):
    read = planned_rows(ends, per_step, steps)
    assert (np.diff(read, axis=0).sum(1) == per_step).all() and (np.diff(read, axis=0) >= 0).all()
    exact = np.zeros(len(ends))
    for step in range(steps):
        place = step / (steps - 1) if steps > 1 else 0.0
        now = np.array([a * (1 - place) + b * place for a, b in ends])
        exact += per_step * now / now.sum()
        assert (np.abs(read[step + 1] - exact) < len(ends) + 1e-6).all()


def test_a_step_s_rows_depend_on_no_step_before_it():
    rows_of = {
        "a": lambda epoch: [f"a{epoch}{i}" for i in range(3)],
        "b": lambda epoch: [f"b{epoch}{i}" for i in range(2)],
    }
    mixture = Mixture(rows_of, {"a": (1, 0), "b": (0, 1)}, 4, 6)
    steps = [mixture.step(i) for i in range(6)]
    again = Mixture(rows_of, {"a": (1, 0), "b": (0, 1)}, 4, 6)
    order = list(range(6))
    random.Random(0).shuffle(order)
    assert {i: again.step(i) for i in order} == dict(enumerate(steps))
    of_a = [row for step in steps for row in step if row[0] == "a"]
    assert of_a == [f"a{i // 3}{i % 3}" for i in range(len(of_a))], "each pass whole, one after the other"
    assert mixture.rows() == {"a": 12, "b": 12}
    assert all(sum(r[0] == "a" for r in x) >= sum(r[0] == "a" for r in y) for x, y in pairwise(steps))


TEXT = "the old mill by the river turned slowly while rain fell on fields of barley and rye"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Palindromes and raw texts, short ones and one longer than a row."""
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(0)
    texts = [" ".join(draw.choice(TEXT.split()) for _ in range(5 if i else 60)) for i in range(80)]
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text, "other": 1}) + "\n" for text in [*texts, "", "  "]))
    recipe = read_recipe(with_texts(folder, file))
    curate(recipe.curate, recipe.model, out=folder, report=Report(folder / "w"), seed=0)
    return folder, file, texts


def with_texts(folder, file, **source):
    """The toy recipe with a second source."""
    read = read_recipe(toys.recipe(folder)).curate.sources[0].model_dump(exclude_defaults=True)
    texts = {"kind": "file", "path": str(file), "text_column": "text", **source}
    return toys.recipe(folder, curate={"sources": [read, texts], "splits": {"train": 0.9, "heldout": 0.1}})


def stage(tmp_path, data, *overrides):
    recipe = read_recipe(toys.recipe(tmp_path), list(overrides))
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True, exist_ok=True)
    report = Report(work, committed=True)
    return Trainer(recipe.sft, recipe.model, data=data, out=work / "out", work=work, report=report, seed=0)


def test_texts_become_records_that_only_sft_reads(data):
    folder, file, texts = data
    with pytest.raises(DataError, match="'train' holds raw texts, which only an sft stage can train on"):
        dataset.read_split(folder, "train")
    records = [p for split in ("train", "heldout") for p in dataset.read_split(folder, split, raw_texts=True)]
    raw = [p for p in records if p.raw_text is not None]
    assert sorted(p.raw_text for p in raw) == sorted(set(texts))
    assert {p.source for p in raw} == {str(file)} and len({p.uid for p in raw}) == len(raw)
    quarantined = [json.loads(line) for line in (folder / "report/quarantine.jsonl").read_text().splitlines()]
    assert [(q["field"], q["reason"]) for q in quarantined] == [("text", "no text")] * 2


def test_every_token_of_a_text_is_trained_once_and_long_texts_are_cut_into_parts(tmp_path, data):
    folder, file, texts = data
    made = stage(tmp_path, folder)
    tokenizer, size = made.tokenizer, made.settings.max_length
    records = [p for split in ("train", "heldout") for p in dataset.read_split(folder, split, raw_texts=True)]
    long = next(p for p in records if p.raw_text == texts[0])
    parts = text_documents(long, tokenizer, size)
    assert len(parts) > 1 and tokenizer.decode([t for part in parts for t in part.tokens]) == texts[0] + "<|end|>"
    assert all(part.trained_count == len(part.tokens) - 1 and len(part.tokens) <= size for part in parts)
    of_texts = [doc for doc in made.documents + made.heldout if doc.source == str(file)]
    assert all(doc.mask()[1:].all() and not doc.mask()[0] for doc in of_texts)
    assert any(doc.tokens == parts[0].tokens for doc in of_texts)


def test_the_mix_moves_from_texts_to_conversations(tmp_path, data):
    folder, file, _ = data
    mixture = f"sft.mixture={{{json.dumps(str(file))}: [1, 0], palindrome_generation: [0, 1]}}"
    made = stage(tmp_path, folder, mixture, "sft.steps=20")
    rows = [[made.documents[i].source for i in row] for step in range(20) for row in made.step_rows(step)]
    assert all(len(set(row)) == 1 for row in rows), "a packed row is of one source"
    share = [sum(made.documents[row[0]].source == str(file) for row in made.step_rows(step)) for step in range(20)]
    assert share[0] == made._rows_per_step() and share[-1] == 0
    assert abs(sum(share) - 10 * made._rows_per_step()) <= 2


def test_a_mix_that_does_not_fit_the_data_is_refused(tmp_path, data):
    folder, file, _ = data
    with pytest.raises(
        DataError, match=r"sft\.mixture: train has no record of the source 'palindromes'\. Did you mean"
    ):
        stage(tmp_path, folder, "sft.mixture={palindromes: 1}")
    with pytest.raises(DataError, match=r"sft\.mixture: train has records of the source .* too\. Give it a share"):
        stage(tmp_path, folder, "sft.mixture={palindrome_generation: 1}")
    alone = stage(tmp_path, folder, f"sft.mixture={{palindrome_generation: 1, {json.dumps(str(file))}: 0}}")
    assert {alone.documents[i].source for step in range(12) for row in alone.step_rows(step) for i in row} == {
        "palindrome_generation"
    }


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (["sft.mixture={a: [0, 1]}"], "some source needs a share over 0 at the first step"),
        (["sft.mixture={a: 1}", "sft.steps=null", "sft.epochs=1"], "its shares change over `steps`"),
        (["sft.mixture={a: [1, 2, 3]}"], r"sft\.mixture"),
    ],
)
def test_a_mix_that_means_nothing_is_refused(tmp_path, override, words):
    with pytest.raises(RecipeError, match=words):
        read_recipe(toys.recipe(tmp_path), override)


@pytest.mark.parametrize("field", [{"verifier": "math"}, {"system": "s"}, {"self_supervised": "masked_span"}])
def test_a_text_column_takes_no_fields_of_questions(tmp_path, field):
    with pytest.raises(RecipeError, match="text"):
        read_recipe(with_texts(tmp_path, "x.jsonl", **field))


@pytest.mark.slow
@pytest.mark.parametrize("at", [4, 7])
def test_an_interrupted_mix_ends_with_the_same_bytes(tmp_path, data, at):
    folder, file, _ = data
    mixture = f"sft.mixture={{{json.dumps(str(file))}: [1, 0], palindrome_generation: [0, 1]}}"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    stage(tmp_path / "a", folder, mixture).run()
    toys.run_stopped(lambda: stage(tmp_path / "b", folder, mixture), at, None)
    weights = [(tmp_path / name / "work/out/model/model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]
