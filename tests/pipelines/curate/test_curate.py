"""Curation: conventions mapped, nothing lost silently, repeats and leaks found, splits stable."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import DataError
from pipelines.curate import run as stage
from pipelines.curate import similar
from pipelines.curate.mapping import to_problem
from pipelines.curate.values import RowError
from pipelines.data import dataset
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Source
from pipelines.stage.report import Report
from tasks.tracking.alarms import alarms_of

FILE = Source(kind="file", path="x.jsonl", verifier="exact")


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"prompt": "2+2?", "answer": "4"}, "2+2?", "4"),
        ({"prompt": [{"role": "user", "content": "2+2?"}], "solution": r"so \boxed{4}"}, "2+2?", "4"),
        (
            {
                "prompt": [{"role": "user", "content": "hi"}],
                "data_source": "x",
                "reward_model": {"style": "rule", "ground_truth": "4"},
            },
            "hi",
            "4",
        ),
        ({"problem": "2+2?", "solution": r"$\boxed{\frac{1}{2}}$"}, "2+2?", r"\frac{1}{2}"),
        ({"question": "2+2?", "answer": "It is 4.\n#### 1,004"}, "2+2?", "1004"),
        (
            {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "answer": "4"},
            "q",
            "4",
        ),
        ({"Body": "Two apples.", "Question": "How many?", "Answer": 2.0}, "Two apples. How many?", "2.0"),
        ({"input": "not True is", "target": "False"}, "not True is", "False"),
    ],
    ids=["plain", "trl", "verl", "open-r1", "gsm8k", "messages", "svamp", "bbh"],
)
def test_conventions(row, prompt, answer):
    problem = to_problem(row, FILE, self_check=False)
    assert problem.prompt[-1]["content"] == prompt
    assert problem.answer == answer


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answer": "4"}, "no prompt"),
        ({"prompt": "  ", "answer": "4"}, "the prompt is empty"),
        ({"prompt": "q"}, "no answer"),
        ({"prompt": "q", "answer": "  "}, "no answer"),
        ({"prompt": [1], "answer": "4"}, "messages"),
        ({"prompt": "q", "answer": "4", "verifier": "nope"}, "unknown verifier"),
    ],
)
def test_bad_rows_say_why(row, reason):
    with pytest.raises(RowError, match=reason):
        to_problem(row, Source(kind="file", path="x"), self_check=False)


def test_gold_answers_must_verify_themselves():
    with pytest.raises(RowError, match="does not verify itself"):
        to_problem(
            {"prompt": "q", "answer": "no number"}, Source(kind="file", path="x", verifier="number"), self_check=True
        )


def curate(tmp_path, rows, texts=None, **fields):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    source = {"kind": "file", "path": str(path), "verifier": "exact", "licence": "MIT"}
    recipe = read_recipe(toys.recipe(tmp_path, curate={"sources": [source], **fields}))
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    stage.run(recipe.curate, recipe.model, out=out, report=Report(tmp_path / "w"), seed=0, benchmark_texts=texts)
    return out, json.loads((out / "report/card.json").read_text())


def test_a_source_of_which_little_is_left_is_told_of(tmp_path):
    rows = [{"prompt": f"what is {i % 9} plus one?", "answer": str(i % 9 + 1)} for i in range(200)] + [
        {"prompt": "x"}
    ] * 20
    curate(tmp_path, rows)
    told = alarms_of(tmp_path / "w/spool.jsonl")
    assert [(a["step"], a["monitor"], a["action"]) for a in told] == [(0, "rows_left", "warn")]
    assert re.search(
        r"^9 of the 220 rows of \S+rows\.jsonl are left \(191 exact duplicate, 20 quarantine\); the commonest reasons: 20 × answer: .+$",
        told[0]["text"],
    )


def test_a_source_of_which_a_tenth_is_left_is_not(tmp_path):
    curate(tmp_path, [{"prompt": f"what is {i % 20} plus one?", "answer": str(i % 20 + 1)} for i in range(200)])
    assert alarms_of(tmp_path / "w/spool.jsonl") == []


LONG = "tom has {} apples and gives some of them to his good friend anna who lives next door to him"


def test_every_row_is_accounted_for(tmp_path):
    rows = [{"prompt": f"question number {i} about the {i * 7} th thing", "answer": str(i)} for i in range(40)]
    rows += [rows[3], {"prompt": "QUESTION  number 4 about the 28 th thing", "answer": "4"}]
    rows += ["{broken", {"prompt": "no answer here"}]
    rows += [{"prompt": LONG.format("nine"), "answer": "9"}, {"prompt": LONG.format("nine") + " today", "answer": "9"}]
    rows += [{"prompt": LONG.format("ten") + " today", "answer": "10"}]
    rows += [{"prompt": "what is the leaked question of the benchmark", "answer": "1"}]
    leak = [("bench", "What is the LEAKED question, of the benchmark?")]
    out, card = curate(tmp_path, rows, lambda: leak, near_duplicates={"threshold": 0.7, "shingle": 3})
    assert card["rows"] == {
        "read": 48, "quarantined": 2, "exact_duplicate": 2, "contaminated": 1, "near_duplicate": 1, "length": 0, "difficulty": 0,
    }  # fmt: skip
    assert card["unexplained"] == 0
    assert sum(card["splits"].values()) == 42
    quarantine = [json.loads(line) for line in (out / "report/quarantine.jsonl").read_text().splitlines()]
    assert [q["source"].endswith("rows.jsonl") for q in quarantine] == [True, True]
    assert [(q["line"], q["field"], q["reason"]) for q in quarantine] == [
        (43, "row", "not JSON"), (44, "answer", "the row has no answer"),
    ]  # fmt: skip
    assert len((out / "report/dropped.jsonl").read_text().splitlines()) == 4
    assert "near duplicate" in (out / "report/card.md").read_text() and "MIT" in (out / "report/card.md").read_text()
    train, held = dataset.read_split(out, "train"), dataset.read_split(out, "heldout")
    assert not {p.uid for p in train} & {p.uid for p in held}


def test_a_file_that_was_moved_gives_the_same_splits(tmp_path):
    rows = [{"prompt": f"what is {i} plus one?", "answer": str(i + 1)} for i in range(60)]
    uids = []
    for folder in (tmp_path / "here", tmp_path / "there" / "deeper"):
        folder.mkdir(parents=True)
        out, _ = curate(folder, rows, near_duplicates=None)
        uids.append([[p.uid for p in dataset.read_split(out, split)] for split in ("train", "heldout")])
    assert uids[0] == uids[1] and all(uids[0])


def test_one_prompt_for_different_problems_is_refused(tmp_path):
    rows = [{"prompt": "sort it", "answer": str(number)} for number in range(9)]
    with pytest.raises(
        DataError,
        match=r"sources\.0: all 9 rows of \S+ have the same prompt, 'sort it', and not the same answer or info",
    ):
        curate(tmp_path, rows)
    gym = {"kind": "reasoning_gym", "task": "palindrome_generation", "size": 9, "prompt_template": "{metadata.length}"}
    gym["config"] = {"min_length": 4, "max_length": 4}
    with pytest.raises(
        DataError, match=r"all 9 rows of palindrome_generation have the same prompt, '4'.*prompt_template"
    ):
        curate(tmp_path, [], sources=[gym])


def test_one_prompt_for_one_problem_or_for_pairs_is_kept(tmp_path):
    _, card = curate(tmp_path, [{"prompt": "sort it", "answer": "1"}] * 9)
    assert sum(card["splits"].values()) == 1
    rows = [{"prompt": "sort it", "chosen": f"a{number}", "rejected": f"b{number}"} for number in range(9)]
    _, card = curate(tmp_path, rows, near_duplicates=None)
    assert sum(card["splits"].values()) == 9


def test_nothing_left_is_an_error_that_names_the_step(tmp_path):
    with pytest.raises(DataError, match=r"nothing is left after the filters: .* length"):
        curate(tmp_path, [{"prompt": "a long question", "answer": "1"}], max_prompt_tokens=3)
    with pytest.raises(
        DataError, match=r"all 1 rows were quarantined: 1 × answer: the row has no answer\. The first is rows.jsonl:1"
    ):
        curate(tmp_path, [{"prompt": "q"}])


def test_splits_depend_on_uid_only(tmp_path):
    rows = [{"prompt": f"q{i}", "answer": "1"} for i in range(200)]
    out, _ = curate(tmp_path, rows)
    before = {p.uid for p in dataset.read_split(out, "heldout")}
    out, _ = curate(tmp_path, rows[::-1] + [{"prompt": f"new{i}", "answer": "1"} for i in range(50)])
    after = {p.uid for p in dataset.read_split(out, "heldout")}
    assert before <= after


@given(st.lists(st.sampled_from("abcdef"), min_size=6, max_size=30), st.integers(0, 5))
def test_minhash_candidates_hold_the_true_repeats(letters, change):
    text = " ".join(f"{c}{i}" for i, c in enumerate(letters))
    other = text.replace(text.split()[change], "zzz") if change == 0 else text
    minhash = similar.MinHash(64)
    sets = {0: similar.shingles(text, 2), 1: similar.shingles(other, 2)}
    signatures = np.stack([minhash(s) for s in sets.values()])
    found = similar.near_duplicates(similar.band_keys(signatures, np.zeros(2, np.uint64), 0.8), 0.8, lambda rows: sets)
    jaccard = len(np.intersect1d(*sets.values())) / len(np.union1d(*sets.values()))
    if jaccard == 1:
        assert found == {1: 0}
    if jaccard < 0.8:
        assert found == {}


def test_minhash_estimates_jaccard():
    draw = np.random.default_rng(0)
    a = draw.integers(0, 2**32, 400, dtype=np.uint32)
    b = np.concatenate([a[:300], draw.integers(0, 2**32, 100, dtype=np.uint32)])
    minhash = similar.MinHash(256)
    estimate = float((minhash(a) == minhash(b)).mean())
    assert abs(estimate - 300 / 500) < 0.1


def test_a_system_message_does_not_hide_a_benchmarks_question(tmp_path):
    rows = [{"prompt": f"What is {i} + 1?", "answer": str(i + 1), "system": "Be brief."} for i in range(30)]
    source = {
        "columns": {"system": "system"},
        "kind": "file",
        "path": str(tmp_path / "rows.jsonl"),
        "verifier": "exact",
    }
    _, card = curate(tmp_path, rows, lambda: [("sums", "What is 7 + 1?")], sources=[source], near_duplicates=None)
    assert card["rows"]["contaminated"] == 1 and sum(card["splits"].values()) == 29


def test_template_wording_is_not_contamination():
    questions = [
        ("t", f"please solve this very long and always equal instruction text with {i} and {i * 3}") for i in range(100)
    ]
    leaks = similar.Contamination(8, questions)
    assert leaks.hit("please solve this very long and always equal instruction text with 7000 and 9") is None
    assert leaks.hit("please solve this very long and always equal instruction text with 7 and 21") == "t"


@pytest.mark.slow
def test_gsm8k_loses_no_row(tmp_path):
    folder = toys.ROOT.parent / "shared" / "data" / "gsm8k"
    if not folder.exists():
        pytest.skip("the GSM8K files are not here")
    from pipelines.curate.formats import read_file

    for name, count in (("train", 7473), ("test", 1319)):
        problems = [
            to_problem(row.columns, Source(kind="file", path="x", verifier="number"), self_check=True)
            for row in read_file(folder / f"{name}.jsonl")
        ]
        assert len(problems) == count
        assert all(p.info["solution"] for p in problems)


def test_hub_loading_from_a_local_folder(tmp_path):
    from pipelines.curate.sources import rows as read_rows

    folder = tmp_path / "hub"
    folder.mkdir()
    (folder / "train.jsonl").write_text(json.dumps({"question": "1+1?", "answer": "2"}) + "\n")
    found = list(read_rows(Source(kind="hub", path=str(folder))))
    assert found[0].columns["question"] == "1+1?"
    with pytest.raises(DataError, match="could not be loaded"):
        list(read_rows(Source(kind="hub", path=str(tmp_path / "none"))))
