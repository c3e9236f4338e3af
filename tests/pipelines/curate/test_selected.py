"""The source `kind: stage`: what each selection keeps, and that the graph links the stage it names."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import toys
import yaml
from drawn_samples import DRAWN, chosen, curated, write

from pipelines import verifiers
from pipelines.base.errors import DataError, ModelError, RecipeError
from pipelines.curate import selected
from pipelines.curate.run import split_of
from pipelines.data import dataset, samples
from pipelines.data.pair_records import pair_of
from pipelines.data.records import Problem
from pipelines.judges import questions
from pipelines.papers.thinkdial import mode_of
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.selection import Selection
from pipelines.recipe.settings import Source
from tasks import keys


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "drafts")


def solutions(folder, **select):
    return [(p.info["sampled_from"], p.info["solution"]) for p in chosen(folder, **select)]


def test_best_correct_and_shortest(folder):
    assert solutions(folder, kind="best") == [("a", "7"), ("b", "1"), ("c", "2")]
    assert solutions(folder, kind="best", per_problem=2, min_score=0.5)[:2] == [("a", "7"), ("a", "it is 7")]
    assert solutions(folder, kind="best", min_score=0.5) == [("a", "7"), ("b", "1")]
    assert solutions(folder, kind="correct", per_problem=9) == [("a", "7"), ("a", "it is 7"), ("b", "1"), ("b", "so 1")]
    assert solutions(folder, kind="shortest_correct") == [("a", "7"), ("b", "1")]


def test_a_pass_rate_band_is_open_on_both_sides(folder):
    """a is solved in 3 of 5, b always, c never; d was never scored."""
    assert [(p.uid, p.info["pass_rate"]) for p in chosen(folder, kind="pass_rate")] == [
        ("a", 0.6),
        ("b", 1.0),
        ("c", 0),
    ]
    assert [p.uid for p in chosen(folder, kind="pass_rate", low=0.0)] == ["a", "b"]
    assert [p.uid for p in chosen(folder, kind="pass_rate", low=0.0, high=1.0)] == ["a"]
    assert solutions(folder, kind="correct", high=0.6) == []
    assert "solution" not in chosen(folder, kind="pass_rate")[0].info


def test_the_majority_s_answer_is_the_label(folder):
    """It knows nothing of the scores: in c the vote goes to an answer that nobody called correct."""
    records = chosen(folder, kind="majority")
    labels = {p.info["sampled_from"]: (p.answer, p.info["majority_share"]) for p in records}
    assert labels == {"a": ("7", 0.6), "b": ("1", 1.0), "c": ("2", pytest.approx(2 / 3))}
    assert not any({"pass_rate", "sample_score"} & p.info.keys() for p in records)
    assert [p.info["sampled_from"] for p in chosen(folder, kind="majority", min_share=0.9)] == ["b"]
    with pytest.raises(DataError, match="a majority needs records"):
        chosen(write(folder / "other", verifier="reasoning_gym"), kind="majority")


def test_a_judge_learns_from_graded_completions(folder):
    """Its own question, and the grade that the score means; noise changes what is imitated, not what is correct."""
    records = chosen(folder, kind="graded", per_problem=9)
    grades = {p.info["judged"]: p.answer for p in records if p.info["sampled_from"] == "a"}
    assert grades == {"no 3": "Grade: 1", "7": "Grade: 10", "it is 7": "Grade: 10", "5 or 3": "Grade: 5"}
    assert all(
        p.info["solution"] == p.answer and verifiers.verify(p.verifier, p.answer, p.answer, {}).correct for p in records
    )
    assert len({p.uid for p in records}) == len(records)
    problem = Problem(uid="a", prompt=[{"role": "user", "content": "how many is a"}], answer="7",
                      verifier="number", source="s", licence="l")  # fmt: skip
    assert records[0].prompt == questions.grade(problem, "no 3", low=1, high=10)
    noisy = chosen(folder, kind="graded", per_problem=9, noise=1.0)
    assert [p.info["solution"] for p in noisy[:2]] == ["Grade: 10", "Grade: 1"] and [p.answer for p in noisy[:2]] == [
        "Grade: 1", "Grade: 10",
    ]  # fmt: skip


def test_a_judge_learns_from_compared_completions(folder):
    records = chosen(folder, kind="compared", grades=(1, 5), per_problem=2, instruction="Be strict.")
    assert [p.info["sampled_from"] for p in records] == ["a", "a", "b", "c", "c"]
    for record in records:
        gold = json.loads(record.answer)
        assert verifiers.verify(record.verifier, record.info["solution"], record.answer, record.info).score == 1.5
        assert "Be strict." in record.prompt[0]["content"] and all(1 <= g <= 5 for g in gold)
        first, second = record.info["judged"].split("\0")
        user = record.prompt[1]["content"]
        assert user.index(f"first answer\n{first}\n") < user.index(f"second answer\n{second}\n")
    assert all(len(set(json.loads(p.answer))) == 2 for p in records[:2]), "pairs that differ come first"
    order = {chosen(folder, seed, kind="compared")[0].info["judged"] for seed in range(12)}
    assert len(order) > 3, "which is first is chance"
    with pytest.raises(ValueError, match="lowest and the highest"):
        Selection.model_validate({"kind": "graded", "grades": (5, 1)})


LISTED = {
    "instructions": [{"id": "keywords:existence", "keywords": ["it"]}, {"id": "keywords:forbidden_words", "forbidden_words": ["no"]}],
    "rubric": ["It says it.", "It does not say no."],
    "strict": True,
}  # fmt: skip


def instructed(folder, info, drawn=(("it is so", 1.0), ("no it", 0.5), ("no", 0.0), (" ", 0.0))):
    """Samples of one problem whose components are those that the verifier `instructions` gives."""
    write(folder, {"a": list(drawn)}, verifier="instructions", info={"a": info})
    path = folder / samples.FOLDER / samples.shard_name(0)
    table = pq.read_table(path)
    told = [verifiers.verify("instructions", text, "", LISTED).components for text in table["text"].to_pylist()]
    column = pa.array([json.dumps(components) for components in told])
    pq.write_table(table.set_column(table.column_names.index("components"), "components", column), path)
    return folder


def test_a_judge_learns_verdicts_on_a_rubric(tmp_path):
    """The expert's verdicts are those of the verifier; an empty answer has none. The expert's own strictness is not the judge's."""
    folder = instructed(tmp_path / "drafts", LISTED)
    records = chosen(folder, kind="checked", per_problem=9, instruction="Be strict.")
    assert {p.info["judged"]: p.answer for p in records} == {
        "it is so": "[true, true]", "no it": "[true, false]", "no": "[false, false]",
    }  # fmt: skip
    assert records[1].info["solution"] == "1: yes\n2: no" and records[1].verifier == "verdicts"
    score = verifiers.verify("verdicts", "1: yes\n2: yes", records[1].answer, records[1].info).score
    assert score == 0.5 and len({p.uid for p in records}) == 3
    problem = Problem(uid="a", prompt=[{"role": "user", "content": "how many is a"}], answer="7",
                      verifier="instructions", source="s", licence="l")  # fmt: skip
    assert records[0].prompt == questions.rubric(problem, "it is so", LISTED["rubric"], instruction="Be strict.")
    assert "1. It says it.\n2. It does not say no.\nBe strict." in records[0].prompt[0]["content"]
    noisy = chosen(folder, kind="checked", per_problem=9, noise=1.0)
    assert noisy[1].info["solution"] == "1: no\n2: yes" and noisy[1].answer == "[true, false]"
    short = chosen(folder, kind="checked", template="{answer}|{criteria}")[0].prompt
    assert short == [{"role": "user", "content": "it is so|1. It says it.\n2. It does not say no."}]
    with pytest.raises(ValueError, match=r"template: without \{criteria\}"):
        Selection.model_validate({"kind": "checked", "template": "{answer}"})


def test_a_rubric_and_verdicts_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"gave 2 verdicts on the problem a, whose rubric has 1 criteria"):
        chosen(instructed(tmp_path / "fewer", LISTED | {"rubric": ["It says it."]}), kind="checked")
    with pytest.raises(DataError, match=r"the problem a has no info\.rubric"):
        chosen(instructed(tmp_path / "none", {"k": 1}), kind="checked")
    with pytest.raises(DataError, match=r"the verifier number gave 0 verdicts"):
        chosen(write(tmp_path / "number", {"a": [("7", 1.0)]}, info={"a": LISTED}), kind="checked")


def pairs(folder, **select):
    return [(p.info["chosen"], p.info["rejected"]) for p in chosen(folder, kind="pairs", **select)]


def test_answers_that_were_cut_are_marked(tmp_path):
    folder = write(tmp_path / "drafts", cut=("no 3",))
    assert [p.info.get("rejected_cut") for p in chosen(folder, kind="pairs", per_problem=2)] == [True, None]
    pair = pair_of(chosen(folder, kind="pairs")[0])
    assert pair.rejected_cut and not pair.chosen_cut


def test_demonstrations_against_drawn_answers(tmp_path):
    """The solution, or the answer 7, against other texts: all of them, those that are as correct, or those that are not."""
    drafts = write(tmp_path / "drafts", info={"b": {"solution": "so 1 "}}, cut={"1"})

    def couples(**select):
        pairs = chosen(drafts, kind="pairs", pair="demonstration", per_problem=9, **select)
        return {(p.info["sampled_from"], p.info["chosen"], p.info["rejected"]) for p in pairs}

    correct = {("a", "7", "it is 7"), ("b", "so 1", "1")}
    incorrect = {("a", "7", "no 3"), ("a", "7", "5 or 3"), ("c", "7", "2"), ("c", "7", "it is 2"), ("c", "7", "4")}
    assert couples(against="correct") == correct and couples(against="incorrect") == incorrect
    assert couples() == correct | incorrect
    pairs = {p.info["rejected"]: p for p in chosen(drafts, kind="pairs", pair="demonstration", against="correct")}
    assert pair_of(pairs["1"]).rejected_cut and not pair_of(pairs["1"]).chosen_cut
    assert not any("score" in name for name in pairs["1"].info)
    drawn = {
        tuple(p.info["rejected"] for p in chosen(drafts, seed, kind="pairs", pair="demonstration")) for seed in range(9)
    }
    assert len(drawn) > 2, "one a problem, drawn by the seed"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pair": "random", "against": "correct"}, "against is read by pair: demonstration"),
        ({"pair": "demonstration", "margin": 0.5}, "margin compares scores"),
        ({"kind": "best", "against": "correct"}, "against is read by pairs"),
    ],
)
def test_what_a_demonstration_is_not_asked(fields, words):
    with pytest.raises(ValueError, match=words):
        Selection.model_validate({"kind": "pairs", **fields})


def test_pairs(folder):
    assert pairs(folder) == [("7", "no 3")]
    assert pairs(folder, per_problem=9) == [("7", "no 3"), ("it is 7", "5 or 3")]
    assert pairs(folder, per_problem=9, margin=0.5) == [("7", "no 3")]
    drawn = {tuple(pairs(folder, pair="random", seed=seed)[0]) for seed in range(30)}
    assert drawn == {(c, r) for c in ("7", "it is 7") for r in ("no 3", "5 or 3")}
    record = chosen(folder, kind="pairs")[0]
    assert (record.info["chosen_score"], record.info["rejected_score"]) == (1.0, 0.0)


def test_a_component_may_say_what_is_best(tmp_path):
    """Completions without it are no candidates."""
    rewards = {"no 3": 2.5, "5 or 3": -1.0, "7": 0.5, "so 1": 1.0}
    folder = write(tmp_path / "drafts", {k: DRAWN[k] for k in "ab"}, rewards=rewards)
    assert solutions(folder, kind="best", by="reward_model") == [("a", "no 3"), ("b", "so 1")]
    assert pairs(folder, by="reward_model", per_problem=2) == [("no 3", "5 or 3")]
    assert pairs(folder, by="reward_model", margin=3.5) == []
    with pytest.raises(
        DataError, match=r"no completion of a has 'length_reward'\. There are: brevity, correct, length, reward_model"
    ):
        chosen(folder, kind="best", by="length_reward")


def test_ranked_factors_decide_one_after_the_other(tmp_path):
    """Correct before short; among equals the shorter is preferred, and what no factor tells apart is no pair."""
    folder = write(tmp_path / "drafts", {"a": DRAWN["a"], "c": DRAWN["c"]})
    ranked = {"pair": "ranked", "factors": ["correct", {"name": "brevity"}]}
    of_a = {
        ("7", "no 3"), ("it is 7", "no 3"), ("7", "it is 7"), ("7", "5 or 3"), ("it is 7", "5 or 3"), ("no 3", "5 or 3"),
    }  # fmt: skip
    assert set(pairs(folder, per_problem=99, **ranked)) == of_a | {("2", "it is 2"), ("4", "it is 2")}
    assert len(pairs(folder, per_problem=2, **ranked)) == 4
    wide = {"pair": "ranked", "factors": [{"name": "correct"}, {"name": "brevity", "margin": 9}]}
    assert set(pairs(folder, per_problem=99, **wide)) == {
        pair for pair in of_a if "7" in pair[0] and "7" not in pair[1]
    }
    first, second = (pairs(folder, per_problem=99, seed=seed, **ranked) for seed in (0, 1))
    assert sorted(first) == sorted(second) and first != second


def test_prefixes(folder):
    assert solutions(folder, kind="correct", per_problem=9, truncate=0.8)[1] == ("a", "it is")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"path": "x"}, "kind stage needs it"),
        ({"select": "best"}, "a stage source needs `path`"),
        ({"path": "x", "select": "best", "verifier": "math"}, "verifier is about raw rows"),
        ({"path": "x", "select": {"kind": "best", "margin": 1}}, "margin is read by pairs, segments, not by best"),
        ({"path": "x", "select": {"kind": "best", "low": 0.5, "high": 0.5}}, "must be under high"),
        ({"path": "x", "select": "worst"}, "best"),
        ({"path": "x", "select": {"kind": "pairs", "pair": "ranked"}}, "ranked needs `factors`"),
        ({"path": "x", "select": {"kind": "pairs", "factors": ["correct"]}}, "nothing else takes them"),
        ({"path": "x", "select": {"kind": "pairs", "pair": "random", "by": "length"}}, "by is read by best"),
        ({"kind": "file", "path": "x", "select": "best"}, "no other takes it"),
    ],
)
def test_settings_that_make_no_sense_are_refused(source, words):
    with pytest.raises(ValueError, match=words):
        Source.model_validate({"kind": "stage", **source})


def test_several_completions_of_a_problem_are_no_repeats_and_share_a_split(tmp_path):
    drawn = {f"{n:03d}": [(f"{n} {i}", 1.0) for i in range(3)] for n in range(40)}
    folder = write(tmp_path / "drafts", drawn)
    source = {"select": {"kind": "correct", "per_problem": 3}}
    out = curated(tmp_path, folder, source, splits={"sft": 0.5, "heldout": 0.5})
    by_split = {name: dataset.read_split(out, name) for name in ("sft", "heldout")}
    origins = {name: {p.info["sampled_from"] for p in rows} for name, rows in by_split.items()}
    assert sum(map(len, by_split.values())) == 120 and not origins["sft"] & origins["heldout"]
    assert len({p.uid for rows in by_split.values() for p in rows}) == 120
    assert {p.info["solution"] for p in by_split["sft"]} < {f"{n} {i}" for n in range(40) for i in range(3)}


def test_one_split_s_samples_are_divided_again(tmp_path):
    """The samples of a split have uids from a part of the scale only, which shares of the same scale would put on one side."""
    first = {"train": 0.8, "heldout": 0.2}
    uids = [uid for uid in (f"{n:03d}" for n in range(200)) if split_of(uid, first) == "train"]
    folder = write(tmp_path / "drafts", {uid: [(f"{uid} is it", 1.0)] for uid in uids})
    out = curated(tmp_path, folder, {"select": "best"}, splits=first)
    held = len(dataset.read_split(out, "heldout"))
    assert 0.1 * len(uids) < held < 0.3 * len(uids)


def test_problems_that_keep_their_uid_are_divided_again_in_every_round(tmp_path):
    """`select: pass_rate` gives the problem itself: sampled and divided again, its uid would say what it said before."""
    shares = {"train": 0.7, "heldout": 0.3}
    rows = [f"{n:03d}" for n in range(300)]
    problems = None
    for number in range(3):
        work = tmp_path / str(number)
        work.mkdir()
        folder = write(work / "drafts", {uid: [(f"{uid} is it", 1.0)] for uid in rows}, info=problems)
        out = curated(work, folder, {"select": "pass_rate"}, splits=shares)
        kept, held = dataset.read_split(out, "train"), dataset.read_split(out, "heldout")
        assert len(kept) + len(held) == len(rows) and 0.18 * len(rows) < len(held) < 0.42 * len(rows), number
        rows, problems = [p.uid for p in kept], {p.uid: p.info for p in kept}


def test_a_fresh_model_keeps_the_tokenizer_that_the_samples_were_drawn_with(tmp_path, folder):
    out = curated(tmp_path, folder, {"select": "best"}, splits={"train": 1.0})
    assert dataset.about(out)["template"] == samples.about(folder)["template"]
    assert (out / "tokenizer" / "tokenizer.json").read_bytes() == (folder / "tokenizer" / "tokenizer.json").read_bytes()


def test_samples_of_another_template_are_refused(tmp_path, folder):
    with pytest.raises(ModelError, match=r"curate\.sources\.0: the chat template"):
        curated(tmp_path, folder, {"select": "best"}, about={"template": "another"})


def recipe(tmp_path, source=None, name="drafts", **more):
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    _, sft, data, _ = (body.pop(kind) for kind in ("rlvr", "sft", "curate", "evaluate"))
    link = {"kind": "stage", "path": name, "select": "best", **(source or {})}
    stages = {
        "data": {"kind": "curate", **data}, "cold": {"kind": "sft", "data": "data", **sft},
        "chosen": {"kind": "curate", "sources": [link]},
        name: {"kind": "sample", "data": "data", "model": "cold"},
        "again": {"kind": "sft", "data": "chosen", "model": "cold", **sft},
    }  # fmt: skip
    path = tmp_path / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**body, "stages": stages, **more}, sort_keys=False))
    return read_recipe(path)


def test_the_graph_links_the_stage_and_its_name_is_no_part_of_the_key(tmp_path):
    read, renamed = recipe(tmp_path), recipe(tmp_path, name="other")
    check(read)
    node = read.node("chosen")
    assert node.inputs == {"sources.0.path": "drafts"} and node.kind.job(node)["samples"] == ["sources.0.path"]
    order = read.stage_names()
    assert order.index("drafts") < order.index("chosen") < order.index("again")
    parts = [keys.key_parts(each, "chosen", {"sources.0.path": "d"}) for each in (read, renamed)]
    assert keys.stage_key(parts[0]) == keys.stage_key(parts[1])
    other = keys.key_parts(read, "chosen", {"sources.0.path": "e"})
    assert keys.stage_key(other) != keys.stage_key(parts[0])


def test_rounds_read_their_own_samples(tmp_path):
    rounds = {"rounds": 2, "stages": ["drafts", "chosen", "again"]}
    read = recipe(tmp_path, repeat=rounds)
    assert read.node("chosen-2").inputs == {"sources.0.path": "drafts-2"}
    assert read.node("drafts-2").inputs["model"] == "again-1" and read.node("drafts-1").inputs["model"] == "cold"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"path": "draft"}, r"chosen\.sources\.0\.path: there is no stage called 'draft'.*drafts"),
        ({"path": "data"}, r"chosen\.sources\.0\.path: data makes data, and samples is wanted. Name one of: drafts"),
    ],
)
def test_a_wrong_stage_is_refused_with_its_field_and_the_fix(tmp_path, source, words):
    with pytest.raises(RecipeError, match=words):
        recipe(tmp_path, source)


def test_plain_sections_have_no_stage_to_name(tmp_path):
    path = toys.recipe(tmp_path, curate={"sources": [{"kind": "stage", "path": "drafts", "select": "best"}]})
    with pytest.raises(RecipeError, match=r"curate\.sources\.0\.path: .*name the stages under `stages`"):
        read_recipe(path)


def test_the_problems_nearest_to_a_pass_rate(tmp_path):
    """Of equally near ones those with fewer cut completions, then with shorter ones, whatever their order."""
    drawn = {
        "a": [("1111", 1.0), ("2222", 0.0)],
        "b": [("11", 1.0), ("22", 0.0)],
        "c": [("1", 1.0), ("cut", 0.0)],
        "d": [("1", 1.0), ("2", 1.0), ("3", 0.0)],
        "e": [("1", 1.0), ("2", 1.0)],
        "f": [("lost", None)],
    }
    folder = write(tmp_path / "drafts", drawn, cut={"cut"})
    wanted = {"kind": "pass_rate", "nearest": 0.5}
    chosen = [p.uid for p in selected.problems(folder, Selection(**wanted, problems=4), 0)]
    assert chosen == ["b", "a", "c", "d"]
    banded = list(selected.problems(folder, Selection(**wanted, problems=9, low=0.0, high=0.6), 0))
    assert [p.uid for p in banded] == ["b", "a", "c"] and banded[0].info["pass_rate"] == 0.5
    for fields in ({"nearest": 0.5}, {"problems": 3}):
        with pytest.raises(ValueError, match="go together"):
            Selection(kind="pass_rate", **fields)
    with pytest.raises(ValueError, match="nearest is read by pass_rate"):
        Selection(kind="correct", nearest=0.5, problems=3)


def test_length_follows_difficulty(tmp_path):
    """easy is always solved, even by half, hard by one in four: 1, 3 and 5 characters, up to 10."""
    texts = ["7", "777", "77777", "7777777777"]
    drawn = {
        "easy": [(text, 1.0) for text in texts],
        "even": [(text, 1.0) for text in texts] + [(f"{i}no", 0.0) for i in range(4)],
        "hard": [("7", 1.0), ("77777777", 1.0), ("7777777777", 1.0)] + [(f"{i}no", 0.0) for i in range(9)],
        "lost": [("no", 0.0)],
    }
    folder = write(tmp_path / "drafts", drawn)
    assert solutions(folder, kind="correct_by_difficulty") == [("easy", "7"), ("even", "77777"), ("hard", "77777777")]
    """Own lengths are 1 and 10: 1, 5.5 and 7.75 are wanted. Between 1 and 3 tokens it is 1, 2 and 2.5."""
    wanted = solutions(folder, kind="correct_by_difficulty", lengths=[1, 3], per_problem=2)
    assert wanted == [
        ("easy", "7"),
        ("easy", "777"),
        ("even", "7"),
        ("even", "777"),
        ("hard", "7"),
        ("hard", "77777777"),
    ]
    lengths = {uid: len(text) for uid, text in solutions(folder, kind="correct_by_difficulty", lengths=[0, 12])}
    assert lengths["easy"] < lengths["even"] < lengths["hard"]


def test_targets_are_shortened_by_effort(tmp_path):
    thought = "<think>three and four, is it six? no, it is seven</think> 7"
    folder = write(tmp_path / "drafts", {"a": [(thought, 1.0)], "b": [("7", 1.0)]})
    efforts = {"high": 1.0, "medium": 0.5, "low": 0.2}
    records = chosen(folder, kind="correct", efforts=efforts)
    assert len({record.uid for record in records}) == 6 and {r.info["sampled_from"] for r in records} == {"a", "b"}
    told = {r.info["effort"]: r for r in records if r.info["sampled_from"] == "a"}
    assert [told[effort].info["solution"] for effort in efforts] == [
        thought, "<think>three and four, is it</think> 7", "<think>three and</think> 7",
    ]  # fmt: skip
    for effort, record in told.items():
        assert record.prompt[0] == {"role": "system", "content": f"Reasoning effort: {effort}."}
        assert mode_of(record) == effort and len(record.prompt) == 2
    assert {r.info["solution"] for r in records if r.info["sampled_from"] == "b"} == {"7"}, "nothing to shorten"
    assert [p.prompt[0]["role"] for p in chosen(folder, kind="correct")] == ["user", "user"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "majority", "efforts": {"low": 0.5}}, "efforts is read by"),
        ({"kind": "correct", "lengths": [1, 2]}, "lengths is read by"),
        ({"kind": "correct_by_difficulty", "lengths": [3, 2]}, "the fewest first"),
        ({"kind": "correct", "efforts": {"low": 0}}, "greater than 0"),
        ({"kind": "correct", "efforts": {"low": 0.5}, "truncate": 0.5}, "truncate: with `efforts`"),
    ],
)
def test_lengths_and_efforts_that_mean_nothing(fields, words):
    with pytest.raises(ValueError, match=words):
        Selection.model_validate(fields)


def test_targets_of_all_efforts_of_a_problem_share_a_split(tmp_path):
    """A record for each effort goes through curation: equal texts after other system messages are no repeats."""
    thought = "<think>so it is, or so it is not</think> 7"
    folder = write(tmp_path / "drafts", {f"{n:03d}": [(f"{thought}{n}", 1.0), ("lost", 0.0)] for n in range(30)})
    source = {"select": {"kind": "correct", "efforts": {"high": 1.0, "low": 0.3}}}
    out = curated(tmp_path, folder, source, splits={"sft": 0.5, "heldout": 0.5}, near_duplicates=None)
    by_split = {name: dataset.read_split(out, name) for name in ("sft", "heldout")}
    origins = {name: {p.info["sampled_from"] for p in rows} for name, rows in by_split.items()}
    assert sum(map(len, by_split.values())) == 60 and not origins["sft"] & origins["heldout"]
    for record in by_split["sft"]:
        low = record.info["effort"] == "low"
        assert ("not" in record.info["solution"]) is not low and record.info["solution"].endswith(
            record.info["sampled_from"].lstrip("0") or "0"
        )
        assert mode_of(record) == record.info["effort"]
