"""Rows on several processes: the bytes of one process, whatever the blocks, the number of workers, and who is killed."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket

import pytest
import toys
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.base.errors import RecipeError
from pipelines.curate import run as stage
from pipelines.curate import workers
from pipelines.recipe.read import read_recipe
from pipelines.recipe.server import Dask
from pipelines.recipe.settings import Curate
from pipelines.stage.report import Report
from tasks import keys
from tasks.preflight import surroundings

NAMES = ["anna", "ben", "carla", "dora", "emil", "fred", "gina", "hugo"]
TEXT = "tom has {} apples and gives some of them to his good friend {} who lives next door to him"
LEAK = "what is the leaked question of the benchmark about a train that leaves the old town at nine"


class Blocks(workers.Workers):
    """The same blocks, pickled on their way there and back, in this process."""

    def __init__(self, block):
        self.block = block

    def map(self, work, items):
        packed, listed = pickle.dumps(({}, work)), list(items)
        for first in range(0, len(listed), self.block):
            block = listed[first : first + self.block]
            sent = pickle.loads(pickle.dumps(block))
            yield from zip(block, pickle.loads(pickle.dumps(workers._apply(packed, sent))), strict=True)


def row(name, friend, kind):
    text = TEXT.format(name, friend) + (" today" if kind == "near" else "")
    return {
        "exact": json.dumps({"prompt": text.upper(), "answer": name}), "leak": json.dumps({"prompt": LEAK, "answer": "9"}),
        "broken": "{", "no answer": json.dumps({"prompt": text}), "wrong": json.dumps({"prompt": text, "answer": "\ud800"}),
        "long": json.dumps({"prompt": text * 3, "answer": name}),
    }.get(kind, json.dumps({"prompt": text, "answer": name}))  # fmt: skip


def written(folder, lines, pool=None, **fields):
    """Every file that a curation of these lines writes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.parent / "rows.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    recipe = read_recipe(
        toys.recipe(folder, curate={"sources": [{"kind": "file", "path": str(path), "verifier": "exact"}], **fields})
    )
    out = folder / "out"
    out.mkdir(exist_ok=True)
    stage.run(
        recipe.curate,
        recipe.model,
        out=out,
        report=Report(folder / "w"),
        seed=0,
        benchmark_texts=lambda: [("bench", LEAK)],
        workers=pool,
    )
    return {str(each.relative_to(out)): each.read_bytes() for each in sorted(out.rglob("*")) if each.is_file()}


KINDS = st.sampled_from(["plain", "plain", "near", "exact", "leak", "broken", "no answer", "wrong", "long"])


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), KINDS), min_size=1, max_size=25),
    st.integers(1, 9),
    st.sampled_from([None, 100]),
)
def test_any_division_into_blocks_writes_the_same_bytes(tmp_path_factory, drawn, block, longest):
    folder = tmp_path_factory.mktemp("blocks")
    lines = [row("ann", "bob", "plain"), *(row(*each) for each in drawn)]
    fields = {"near_duplicates": {"threshold": 0.7, "shingle": 3}, "max_prompt_tokens": longest, "min_prompt_tokens": 0}
    one = written(folder / "one", lines, **fields)
    assert written(folder / "blocks", lines, Blocks(block), **fields) == one


def many(count):
    kinds = ["plain", "near", "exact", "leak", "broken", "long"]
    return [row(f"{NAMES[i % 8]} {i // 3}", NAMES[i // 7 % 8], kinds[i % 6]) for i in range(count)]


class Killing(workers.Workers):
    """Kills one of the workers while blocks wait for it."""

    killed = 0

    def map(self, work, items):
        for number, pair in enumerate(super().map(work, items)):
            if number == 100 and not self.killed:
                self.killed = next(iter(self.client.run(os.getpid).values()))
                os.kill(self.killed, signal.SIGKILL)
            yield pair


@pytest.mark.slow
def test_a_killed_worker_changes_no_byte(tmp_path):
    """Two real workers, of which one is killed while it has blocks."""
    pytest.importorskip("distributed", reason="no Dask: pip install distributed")
    lines = many(600)
    one = written(tmp_path / "one", lines, max_prompt_tokens=200)
    with Killing(Dask(workers=2, block=20), {"plugins": []}, tmp_path) as pool:
        two = written(tmp_path / "two", lines, pool, max_prompt_tokens=200)
        assert pool.killed and pool.killed not in pool.client.run(os.getpid).values()
    assert two == one


def recipe(folder, **dask):
    return read_recipe(toys.recipe(folder, curate={"dask": dask} if dask else {}))


def test_workers_are_not_in_the_key(tmp_path):
    recipes = [recipe(tmp_path, **dask) for dask in ({}, {"workers": 2}, {"workers": 4, "block": 7})]
    assert len({keys.stage_key(keys.key_parts(each, "curate", {})) for each in recipes}) == 1


def test_what_is_not_there_is_refused_with_its_field(tmp_path, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    (unanswered,) = surroundings.problems(recipe(tmp_path, address=nobody), ["curate"])
    node = recipe(tmp_path, address="10.0.0.1:8786").node("curate")
    with pytest.raises(RecipeError) as refused:
        node.kind.check(node)
    for problem, words in ((unanswered, "nothing answers at"), (refused.value.problems[0], "is no address")):
        assert problem.field == "curate.dask.address" and problem.fix and words in str(problem)
    node = recipe(tmp_path, workers=2).node("curate")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="Dask is not installed"):
        node.kind.check(node)


@pytest.mark.parametrize("fields", [{}, {"workers": 2, "address": "tcp://127.0.0.1:1"}, {"workers": 0}])
def test_workers_are_of_one_kind(fields):
    with pytest.raises(ValueError, match=r"name either|greater than or equal"):
        Curate.model_validate({"sources": [{"kind": "file", "path": "x"}], "dask": fields})
