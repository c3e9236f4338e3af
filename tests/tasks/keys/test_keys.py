"""Keys: a changed field, file or helper changes exactly the stages that read it; free fields change none."""

from __future__ import annotations

import json

import pytest
import remote_stores
import toys

from pipelines.base.errors import DataError
from pipelines.recipe.read import read_recipe
from tasks import keys
from tasks.keys import source
from tasks.pipeline import Selection


def all_keys(tmp_path, *overrides):
    recipe = read_recipe(toys.recipe(tmp_path), list(overrides))
    return {s: keys.stage_key(keys.key_parts(recipe, s, {"data": "d"})) for s in recipe.stage_names()}


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("threads=2", set()),
        ("rlvr.commit.every=7", set()),
        ("sft.commit.keep_last=7", set()),
        ("rlvr.log_rollouts=0", set()),
        ("tracking.upload_models=false", set()),
        ("curate.batch_rows=7", set()),
        ("rlvr.advantage=rloo", {"rlvr"}),
        ("rlvr.steps=5", {"rlvr"}),
        ("rlvr.seed=7", {"rlvr"}),
        ("rlvr.seed=0", set()),
        ("sft.steps=13", {"sft"}),
        ("model.dtype=bfloat16", {"sft", "rlvr", "evaluate"}),
        ("model.tokenizer.kind=bpe", {"curate", "sft"}),
        ("evaluate.tasks.0.limit=7", {"evaluate"}),
        ("evaluate.tasks.0.name=gsm8k_test", {"curate", "evaluate"}),
        ("seed=1", {"curate", "sft", "rlvr", "evaluate"}),
    ],
)
def test_a_field_changes_the_stages_that_read_it(tmp_path, override, changed):
    before, after = all_keys(tmp_path), all_keys(tmp_path, override)
    assert {s for s in before if before[s] != after[s]} == changed


def test_an_address_counts_by_what_its_store_says_of_the_contents(tmp_path, home):
    """The version is in the key, the address is not: a copy elsewhere is the same data."""
    keys_of = {}
    with remote_stores.web() as web:
        web.files |= {"/a/x.jsonl": b"one", "/b/x.jsonl": b"one", "/c/x.jsonl": b"two"}
        for folder in "abc":
            listed = [{"kind": "file", "path": f"{web.url}/{folder}/x.jsonl"}]
            parts = keys.key_parts(read_recipe(toys.recipe(tmp_path, curate={"sources": listed})), "curate", {})
            assert parts["where"]["sources.0/x.jsonl"] == f"{web.url}/{folder}/x.jsonl"
            keys_of[folder] = keys.stage_key(parts)
        assert {method for method, *_ in web.requests} == {"HEAD"}
        listed[0]["path"] = f"{web.url}/none.jsonl"
        with pytest.raises(DataError, match=r"^curate\.sources\.0\.path: there is no file http"):
            keys.key_parts(read_recipe(toys.recipe(tmp_path, curate={"sources": listed})), "curate", {})
    assert keys_of["a"] == keys_of["b"] != keys_of["c"]


def test_files_below_a_folder_with_brackets_are_in_the_key(tmp_path):
    """Curation reads `run [x]` by its literal name; keys that took it for a wildcard saw no file at all."""
    folder = tmp_path / "run [x]"
    folder.mkdir()
    rows = folder / "a.jsonl"
    sources = [{"kind": "file", "path": f"{folder}/*.jsonl"}]
    digests = []
    for text in ("1", "2"):
        rows.write_text(f'{{"question": "q", "answer": "{text}"}}\n')
        recipe = read_recipe(toys.recipe(tmp_path, curate={"sources": sources}))
        digests.append(keys.stage_key(keys.key_parts(recipe, "curate", {})))
    assert digests[0] != digests[1]


def test_reach_follows_helpers_and_skips_other_methods():
    found = keys.reach(["pipelines.rlvr.__main__"])
    assert {"pipelines.base.files", "pipelines.engine.sampler", "pipelines.rlvr.ops", "pipelines.verifiers"} <= set(
        found
    )
    assert not any(name.startswith(("pipelines.sft", "pipelines.rlvr.advantage.", "tasks")) for name in found)


def test_the_code_of_every_term_of_a_reward_is_in_the_key(tmp_path):
    """A changed judge reruns the stage whose reward has a judge among its terms."""
    term = "{kind: judge, model: m, url: 'http://localhost/v1'}"
    recipe = read_recipe(toys.recipe(tmp_path), [f"rlvr.reward=[verifier, {term}]"])
    reached = set(keys.key_parts(recipe, "rlvr", {"data": "d"})["source"])
    assert {f"pipelines.rlvr.reward.{name}" for name in ("composite", "verifier", "judge")} <= reached
    assert "pipelines.judges.questions" in reached and "pipelines.rlvr.reward.function" not in reached


def test_differences_are_told_in_words():
    old = {
        "settings": {"rlvr": {"advantage": {"kind": "grpo"}}},
        "source": {"pipelines.base.files": "1"},
        "inputs": {"data": "a"},
    }
    new = {
        "settings": {"rlvr": {"advantage": {"kind": "rloo"}}},
        "source": {"pipelines.base.files": "2"},
        "inputs": {"data": "b"},
    }
    assert keys.difference(old, new) == [
        "its input data changed",
        "rlvr.advantage changed grpo → rloo",
        "the code of pipelines.base.files changed",
    ]


def test_selection(tmp_path):
    recipe = read_recipe(toys.recipe(tmp_path))
    assert Selection("sft", "rlvr").of(recipe) == ["sft", "rlvr"]
    assert Selection(only=("evaluate",)).of(recipe) == ["evaluate"]
    from pipelines.base.errors import RecipeError

    with pytest.raises(RecipeError, match=r"--from stf: .* Did you mean 'sft'"):
        Selection("stf").of(recipe)
    with pytest.raises(RecipeError, match="leave no stage"):
        Selection("rlvr", "sft").of(recipe)


def test_a_changed_reward_function_changes_the_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for more in ("rlvr.reward_functions=['mine:short']", "rlvr.reward={kind: arena_tournament, judge: 'mine:short'}"):
        (tmp_path / "mine.py").write_text("def short(*args, **columns):\n    return 0.0, 0.0\n")
        before = all_keys(tmp_path, more)
        (tmp_path / "mine.py").write_text("def short(*args, **columns):\n    return 1.0, 0.0\n")
        after = all_keys(tmp_path, more)
        assert {s for s in before if before[s] != after[s]} == {"rlvr"}
    assert source.find("not.there") is None and source.find("json") is None and source.find("numpy") is None


def test_what_an_environment_s_settings_name_is_in_the_keys(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    corpus, code = tmp_path / "corpus.txt", tmp_path / "toy_tool.py"
    specs = [{"kind": "search", "corpus": str(corpus)}, {"kind": "function", "path": "toy_tool:f"}]
    source = {"kind": "environment", "task": "tools", "size": 20, "config": {"tools": specs}}
    played = {"name": "t", "environment": {"task": "tools", "config": {"tools": specs}}}
    toys.recipe(tmp_path, curate={"sources": [source]}, evaluate={"tasks": [played]})

    def made(words, body):
        corpus.write_text(words)
        code.write_text(f"def f():\n    return {body}\n")
        recipe = read_recipe(tmp_path / "toy.yaml")
        return {s: keys.stage_key(keys.key_parts(recipe, s, {"data": "d"})) for s in recipe.stage_names()}

    before = made("a", 1)
    for after in (made("b", 1), made("a", 2)):
        assert {s for s in before if before[s] != after[s]} == {"curate", "rlvr", "evaluate"}
    assert made("a", 1) == before


def test_a_corpus_that_rows_search_is_in_the_keys(tmp_path):
    corpus, rows = tmp_path / "corpus.jsonl", tmp_path / "rows.jsonl"
    rows.write_text("{}\n")

    def made(text):
        corpus.write_text(json.dumps({"id": "a", "text": text}) + "\n")
        source = {"kind": "file", "path": str(rows), "verifier": "retrieval", "corpus": str(corpus)}
        toys.recipe(tmp_path, curate={"sources": [source]})
        recipe = read_recipe(tmp_path / "toy.yaml")
        parts = {s: keys.key_parts(recipe, s, {"data": "d"}) for s in recipe.stage_names()}
        assert {s for s in parts if "bm25s" in parts[s]["versions"]} == {"curate", "rlvr"}
        return {s: keys.stage_key(parts[s]) for s in parts}

    before = made("x")
    assert {s for s, key in made("y").items() if before[s] != key} == {"curate", "rlvr"}
    assert made("x") == before


def test_a_corpus_that_the_reward_searches_is_in_the_key(tmp_path):
    corpus = tmp_path / "corpus.txt"

    def made(text):
        corpus.write_text(text)
        spec = f"rlvr.reward={{kind: verifier, verifier: retrieval, info: {{corpus: '{corpus}'}}}}"
        return all_keys(tmp_path, spec)

    before, after = made("x"), made("y")
    assert {s for s in before if before[s] != after[s]} == {"rlvr"}


def test_evaluation_does_not_reach_the_trainer():
    loop = ("pipelines.rlvr.train", "pipelines.rlvr.learner", "pipelines.rlvr.passes", "pipelines.rlvr.algorithm")
    assert not [name for name in keys.reach(["evaluation.__main__"]) if name.startswith(loop)]


@pytest.mark.parametrize("verifier", ["number", "choice", "python"])
def test_the_verifier_that_a_file_names_is_in_the_keys_of_stages_that_score(tmp_path, verifier):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 1 =", "answer": "2"}\n')
    source = {"kind": "file", "path": str(tmp_path / "rows.jsonl"), "verifier": verifier}
    recipe = read_recipe(toys.recipe(tmp_path, curate={"sources": [source]}))
    for stage, inputs in (("curate", {}), ("rlvr", {"data": "d"})):
        reached = {
            name for name in keys.key_parts(recipe, stage, inputs)["source"] if name.startswith("pipelines.verifiers.")
        }
        assert f"pipelines.verifiers.{verifier}" in reached, stage
        assert "pipelines.verifiers.semantic" not in reached, stage


def test_a_module_whose_name_is_taken_is_no_code_of_the_users(tmp_path, monkeypatch):
    """The stage imports ours, and not the file of that name; a file of the user's that means the other one is named."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text("half = 0.5\n")
    assert source.find("tasks") is None and source.user_code(["tasks"]) == {}
    own = tmp_path / "own.py"
    own.write_text("import json\nfrom pipelines.contract.catalogue import method\nfrom tasks import half\n")
    (tmp_path / "json.py").write_text("")
    assert source.user_code(["own"]) == {"own": own}
    (told,) = source.clashes([own]).values()
    assert told.startswith("imports tasks: tasks.py of the working folder cannot be imported")
    own.write_text("from pipelines.contract.catalogue import method\nimport tasks.store\n")
    assert source.clashes([own]) == {}, "ours is meant where the folder has no such file"
