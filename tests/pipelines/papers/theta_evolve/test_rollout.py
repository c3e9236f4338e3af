"""A search over programs: the database by hand and by laws, what answers are paid, and a run that is killed and goes on."""

from __future__ import annotations

import json
import random

import pytest
import toys
from hypothesis import given
from hypothesis import strategies as st
from scripted import context, request

from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.catalogue import bind
from pipelines.data.dataset import Writer
from pipelines.data.records import Problem
from pipelines.papers.theta_evolve.edits import edited, edits
from pipelines.papers.theta_evolve.programs import Programs
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe

SMALL = {"capacity": 40, "archived": 2, "explore": 0.2, "exploit": 0.6, "migrate_every": 3, "migrants": 0.5}
"""Two islands take turns after two children each."""


def database(**changes):
    return Programs(**{"islands": 2, **SMALL, **changes})


def shown(programs):
    return {number: (p.text, p.score, p.island) for number, p in programs.programs.items()}


def test_a_search_by_hand():
    """Two children go to island 0, the third too, and then island 1 gets the best; at three children of an island half of each migrates."""
    programs = database()
    programs.start("a", 1.0)
    assert programs.chances() == {0: pytest.approx(1.0)}
    programs.add("bb", 3.0)
    programs.add("# note\nbb", 3.0)
    assert shown(programs) == {0: ("a", 1.0, 0), 1: ("bb", 3.0, 0)}, "it is there already"
    assert (programs.island, programs.arrived, programs.generations) == (0, 2, [2, 0])
    programs.add("ccc", 2.0)
    assert (programs.island, programs.arrived, programs.generations) == (1, 1, [2, 1])
    assert shown(programs)[2] == ("ccc", 2.0, 0) and shown(programs)[3] == ("bb", 3.0, 1)
    assert programs.archive == [1, 2], "two at most, and the third is better than the worst"
    # explore: number 3 alone; exploit: the archive has none of island 1, so 1 and 2; any: a quarter of 0.2 each
    assert programs.chances() == pytest.approx({0: 0.05, 1: 0.35, 2: 0.35, 3: 0.25})
    programs.add("d", 0.5)
    assert programs.generations == [2, 2]
    programs.add("e", 0.25)  # island 1, whose turn ends; the third of island 0 makes it time
    assert (programs.island, programs.generations, programs.migrated_at) == (0, [3, 2], 3)
    # island 0 has a, bb, ccc: one goes, and bb is on island 1 already; island 1 has bb, d, e: bb is on island 0 too
    assert shown(programs) == {
        0: ("a", 1.0, 0), 1: ("bb", 3.0, 0), 2: ("ccc", 2.0, 0), 3: ("bb", 3.0, 1), 4: ("d", 0.5, 1), 5: ("e", 0.25, 1),
    }  # fmt: skip
    assert programs.archive == [1, 2] and programs.best == 1


def test_what_stood_on_the_islands_migrates_to_both_neighbours():
    programs = database(islands=4, capacity=400, migrate_every=1, migrants=0.0)
    programs.start("a", 1.0)
    programs.add("b", 2.0)
    assert [(p.text, p.island) for p in programs.programs.values()] == [("a", 0), ("b", 0), ("b", 1), ("b", 3)]


def test_a_cell_of_the_grid_has_one_program_in_the_archive():
    """Scores 0 and 1 span the grid; 0.51 and 0.55 share the sixth of ten bins, 0.61 has the next."""
    programs = database(islands=1, archived=4)
    for text, score in (("a", 0.0), ("b", 1.0), ("c", 0.51), ("d", 0.55), ("e", 0.61)):
        programs.add(text, score)
    assert [programs.programs[number].text for number in programs.archive] == ["a", "b", "d", "e"]
    programs.add("f", 0.3)
    assert [programs.programs[number].text for number in programs.archive] == ["b", "d", "e", "f"], "the worst goes"


children = st.lists(st.tuples(st.sampled_from("abcdefghij"), st.integers(0, 8)), min_size=1, max_size=40)


@given(children, st.integers(1, 4), st.integers(2, 12), st.integers(1, 4), st.integers(0, 10**6))
def test_laws(arriving, islands, capacity, archived, seed):
    """The best score never falls, nothing grows over its bound, chances are chances, and a copy from the state goes on alike."""
    programs = database(islands=islands, capacity=capacity, archived=archived, migrate_every=2)
    programs.start("start", 0.5)
    best = 0.5
    for number, (text, score) in enumerate(arriving):
        programs.add(f"{text}{score}", float(score))
        best = max(best, float(score))
        assert programs.programs[programs.best].score == best == max(p.score for p in programs.programs.values())
        assert len(programs.programs) <= capacity and len(programs.archive) <= archived
        assert set(programs.archive) | set(programs.cells.values()) <= set(programs.programs)
        texts = [(p.island, p.text) for p in programs.programs.values()]
        assert len(set(texts)) == len(texts) and all(0 <= island < islands for island, _ in texts)
        chances = programs.chances()
        assert set(chances) == set(programs.programs) and sum(chances.values()) == pytest.approx(1)
        assert all(0.2 / len(chances) - 1e-9 <= chance for chance in chances.values()), "any program may be a parent"
        if number == len(arriving) // 2:
            again = database(islands=islands, capacity=capacity, archived=archived, migrate_every=2)
            again.load_state_dict(json.loads(json.dumps(programs.state_dict())))
            for rest, value in arriving[number + 1 :]:
                again.add(f"{rest}{value}", float(value))
    assert again.state_dict() == programs.state_dict()
    assert again.parent(random.Random(seed)) == programs.parent(random.Random(seed))


def test_edits():
    block = "<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE\n"
    text = (
        "first" + block.format("a\nb", "c") + block.format("z", "y") + block.format("c", "") + "<<<<<<< SEARCH\nno end"
    )
    assert edits(text) == [("a\nb", "c"), ("z", "y"), ("c", "")]
    assert edited("x\na\nb", edits(text)) == "x\n" and edited("xa\nb", edits(text)) == "xa\nb", "whole lines only"


START = "def f():\n    return 1"


def problem_request(group=0, rollouts=6):
    """`f()` is to return 1, 2, 3 and 4: the score is the share that holds; none holding is no score."""
    cases = [{"args": [], "expected": n} for n in (1, 2, 3, 4)]
    info = {"entry_point": "f", "cases": cases, "graded": True, "timeout_s": 1, "program": START}
    made = request("task", rollouts, group=group)
    problem = Problem(**{
        **{name: getattr(made.problem, name) for name in Problem.__dataclass_fields__}, "verifier": "python", "info": info,
    })  # fmt: skip
    return type(made)(problem, made.prompt, group, rollouts)


COUNTER = "_ = iter(range(1, 9))\ndef f():\n    return next(_)"
ANSWERS = [
    "I think it is fine.",
    f"```python\n# the same\n{START}\n```",
    "```python\ndef f(:\n```",
    "```python\ndef f():\n    return 9\n```",
    f"<think>```python\nx\n```</think>```python\n{COUNTER}\n```",
    "```python\ndef f():\n    return 2\n```",
]


@pytest.mark.parametrize(
    ("pays", "paid"),
    [("score", [1.0, 0.25]), ("improved", [1.0, 0.0]), ("scaled", [5.0, 5 * 0.25**3])],
)
def test_what_answers_are_paid(pays, paid):
    """None, the parent again, a program that cannot be read, one that is never right, one that always is, one as good as its parent."""
    method = bind("rlvr.rollout", {"kind": "theta_evolve", "answer": "program", "pays": pays, "islands": 1}).fn
    ctx = context(lambda prefix, number: ANSWERS[number], max_tokens=200)
    rows = method.run([problem_request()], ctx)
    assert [row.score for row in rows] == [-0.4, -0.3, -0.2, -0.1, *map(pytest.approx, paid)]
    assert [row.status for row in rows] == [
        "unparsable",
        "incorrect",
        "unparsable",
        "incorrect",
        "correct",
        "incorrect",
    ]
    assert [row.components["changed"] for row in rows] == [0, 0, 1, 1, 1, 1]
    assert [row.components["improved"] for row in rows] == [0, 0, 0, 0, 1, 0]
    assert [row.components.get("program") for row in rows] == [None] * 4 + [1.0, 0.25]
    assert "Its score is 0.25." in ctx.sampler.calls[0].prefixes[0] and START in ctx.sampler.calls[0].prefixes[0]
    assert method.metrics() == {}
    assert method.on_rollouts(rows) is rows
    assert method.metrics() == {"best": 1.0, "programs": 3.0}
    assert [(line["score"], line["program"]) for line in method.lines()] == [(0.25, START), (1.0, COUNTER)]
    assert method.lines() == []


def test_the_next_step_edits_what_the_last_one_wrote():
    """The archive's one place is the best program's, which is the parent; an edit back to what the database has changes nothing."""
    more = {"islands": 1, "archived": 1, "explore": 0.0, "exploit": 1.0, "repeats": "database"}
    method = bind("rlvr.rollout", {"kind": "theta_evolve", **more}).fn
    block = "<<<<<<< SEARCH\n{}\n=======\n{}\n>>>>>>> REPLACE"
    first, better = "    return 1", "    f.n += 1\n    return f.n\nf.n = 0"

    def script(prefix, number):
        return block.format(better, first) if better in prefix else block.format(first, better)

    results = [
        method.on_rollouts(method.run([problem_request(rollouts=1)], context(script, max_tokens=200)))[0]
        for _ in range(2)
    ]
    assert [row.extras["parent"] for row in results] == [[START, 0.25], [START.replace(first, better), 1.0]]
    assert [row.score for row in results] == [1.0, -0.3] and [row.components["changed"] for row in results] == [1, 0]
    assert len(method.databases[results[0].uid].programs) == 2


@pytest.mark.parametrize("program", [None, "def f(:", "def f(): return 9"])
def test_a_record_without_a_program_that_runs_is_refused(program):
    asked = problem_request()
    asked.problem.info["program"] = program
    with pytest.raises(DataError, match=r"info\.program\) has no score"):
        bind("rlvr.rollout", "theta_evolve").fn.run([asked], context(lambda prefix, number: "", max_tokens=8))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.prompting=paraphrase"], "needs prompting: plain"),
        (["rlvr.reward=multirole_r1"], "needs reward: verifier"),
        (["rlvr.rollout.template=again"], "template: it has no {task}"),
        (["rlvr.rollout.range=[1, 1]"], "range: the smaller score"),
        (["rlvr.rollout.explore=0.6"], "explore and exploit are chances"),
        (["rlvr.window=0.5"], "rollout: theta_evolve cannot do"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(
            read_recipe(
                toys.recipe(tmp_path), ["presets=[theta_evolve]", "rlvr.prompts=4", "rlvr.group_size=4", *overrides]
            )
        )


@pytest.fixture(scope="module")
def one_problem(tmp_path_factory, start):
    """A text as the program, for a policy that writes letters: whatever has one is worth 1."""
    folder = tmp_path_factory.mktemp("one_problem")
    (folder / "data").mkdir()
    (folder / "sft").symlink_to(start / "sft")
    (folder / "data/data.json").write_text((start / "data/data.json").read_text())
    problem = Problem(
        uid="7" * 32, prompt=[{"role": "user", "content": "palindrome ab"}], answer="(?s).*[a-z].*", verifier="regex", source="toy",
        licence="MIT", info={"program": "ab"},
    )  # fmt: skip
    writer = Writer(folder / "data/train.parquet", 1)
    writer.add(problem)
    writer.close()
    return folder


def test_a_search_trains_and_resumes_to_the_same_bytes(tmp_path, one_problem):
    """The policy answers letters: what stands between two of a letter that it uses often is a program."""
    results, stored = [], []
    for name in ("straight", "stopped"):
        folder = tmp_path / name
        folder.mkdir()

        def build(folder=folder):
            return toys.trainer(
                folder, one_problem, toys.recipe(folder), "presets=[theta_evolve]", "rlvr.prompts=4", "rlvr.group_size=8", "rlvr.steps=3",
                "rlvr.rollout={kind: theta_evolve, answer: program, template: '{task}{program}', opening: a, closing: a, islands: 2, "
                "capacity: 20, migrate_every: 4}",
            )  # fmt: skip

        made = build() if name == "straight" else toys.run_stopped(build)
        if name == "straight":
            made.run()
        results.append((toys.result(folder / "work"), (folder / "work/out/report/methods.jsonl").read_text()))
        stored.append(made.update.rollout.fn.state_dict())
    assert results[0] == results[1] and stored[0] == stored[1]
    (_, history, _), lines = results[0]
    best = [json.loads(line) for line in lines.splitlines()]
    assert [(line["step"], line["method"], line["program"]) for line in best] == [(1, "theta_evolve", "ab")]
    counts = [values["method/theta_evolve/programs"] for _, values in history]
    assert (
        counts == sorted(counts)
        and 1 < counts[-1] <= 20
        and {v["method/theta_evolve/best"] for _, v in history} == {1.0}
    )
