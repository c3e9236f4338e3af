# ruff: noqa: E501
"""The reuse matrix: change one thing, and exactly the stages that read it run again.

Keys are computed for a recipe with a local model, files, plug-ins, an environment and benchmarks of its own; source edits are
made in a copy of the tree, library versions are given. Nothing is trained.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import toys
import yaml

from pipelines.base.files import damage, write_manifest
from pipelines.recipe.read import Recipe, read_recipe
from tasks import keys

NONE: frozenset[str] = frozenset()
ALL = frozenset({"curate", "sft", "rlvr", "evaluate"})
BENCHMARKED = {"curate", "evaluate"}
MODEL_FILES = {
    "config.json": '{"model_type": "llama"}', "generation_config.json": "{}", "tokenizer.json": "{}",
    "tokenizer_config.json": "{}", "special_tokens_map.json": "{}", "added_tokens.json": "{}", "vocab.json": "{}",
    "merges.txt": "a b", "tokenizer.model": "m", "chat_template.jinja": "{{ messages }}", "model.safetensors": "w",
    "model.safetensors.index.json": "{}", "pytorch_model.bin": "w", "LICENSE": "free", "README.md": "a model",
}  # fmt: skip
BODY = {
    "name": "matrix",
    "threads": 1,
    "model": {"path": "base"},
    "curate": {
        "sources": [
            {"kind": "file", "path": "data/*.jsonl"},
            {"kind": "hub", "path": "hub_folder"},
            {"kind": "reasoning_gym", "task": "palindrome_generation", "size": 10},
            {"kind": "environment", "task": "frozen_lake", "size": 4},
        ],
        "splits": {"train": 0.9, "heldout": 0.1},
    },
    "sft": {"steps": 2},
    "rlvr": {
        "steps": 2,
        "rollout": {"kind": "multi_turn", "max_turns": 2},
        "reward_functions": ["rewards.score:reward"],
        "reward": {"kind": "arena_tournament", "judge": "judges:judge"},
    },
    "evaluate": {
        "include": "bench",
        "tasks": [
            "palindromes", "gsm8k_test", "mine",
            {"name": "lake", "environment": {"task": "frozen_lake", "size": 4}},
        ],
    },
}  # fmt: skip
USER = {
    "data/train.jsonl": '{"question": "1+1", "answer": "2"}\n', "data/more.jsonl": '{"question": "1+2", "answer": "3"}\n',
    "data/notes.txt": "not read", "hub_folder/train.jsonl": "{}\n", "hub_folder/README.md": "---\n---",
    "rewards/__init__.py": "", "rewards/score.py": "from rewards import first\nfrom . import sibling\n\ndef reward(**k):\n    pass\n",
    "rewards/first.py": "from rewards.second import x\n", "rewards/second.py": "import third\nx = 1\n",
    "rewards/sibling.py": "a = 1\n", "third.py": "import importlib\nlate = importlib.import_module('fourth')\n",
    "fourth.py": "b = 1\n", "judges.py": "def judge(*a):\n    pass\n", "unrelated.py": "c = 1\n",
    "bench/mine/mine.yaml": "task: mine\ninclude: ../shared.yaml\ndataset_path: json\n"
    "dataset_kwargs: {data_files: {test: ../elsewhere/test.jsonl}}\nprocess_results: !function utils.score\n",
    "bench/mine/utils.py": "import bench_helper\n\ndef score(*a):\n    pass\n", "bench/mine/test.jsonl": "{}\n",
    "bench/mine/LICENSE": "free", "bench/shared.yaml": "output_type: generate_until\n", "bench/elsewhere/test.jsonl": "{}\n",
    "bench/other/other.yaml": "task: other\n", "bench/other/test.jsonl": "{}\n", "bench_helper.py": "d = 1\n",
    "template.jinja": "{{ messages }}",
    **{f"base/{name}": text for name, text in MODEL_FILES.items()},
}  # fmt: skip


class World:
    """A user's folder, a copy of the project, a recipe and versions, each of which an edit may change."""

    def __init__(self, user: Path, root: Path) -> None:
        self.user, self.root = user, root
        self.body = json.loads(json.dumps(BODY))
        self.installed: dict[str, str] = {}
        self.overrides: list[str] = []

    def recipe(self) -> Recipe:
        path = self.user / "recipe.yaml"
        path.write_text(yaml.safe_dump(self.body))
        return read_recipe(path, self.overrides)

    def parts(self) -> dict[str, dict]:
        recipe = self.recipe()
        return {
            stage: keys.key_parts(recipe, stage, {"data": "d"}, root=self.root, installed=self.installed)
            for stage in recipe.stage_names()
        }

    def keys(self) -> dict[str, str]:
        return {stage: keys.stage_key(parts) for stage, parts in self.parts().items()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the project's code."""
    root = tmp_path_factory.mktemp("tree")
    for package in ("pipelines", "evaluation"):
        shutil.copytree(toys.ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture
def world(tmp_path, tree, monkeypatch):
    user = tmp_path / "user"
    for name, text in USER.items():
        (user / name).parent.mkdir(parents=True, exist_ok=True)
        (user / name).write_text(text)
    monkeypatch.chdir(user)
    monkeypatch.setenv("HOME", str(tmp_path))
    changed: dict[Path, bytes | None] = {}
    made = World(user, tree)
    made.changed = changed
    yield made
    for path, before in changed.items():
        path.unlink() if before is None else path.write_bytes(before)


@pytest.fixture(scope="module")
def unedited(tmp_path_factory, tree):
    """Key parts before any edit, taken in another folder than those that the edits are made in."""
    user = tmp_path_factory.mktemp("unedited")
    for name, text in USER.items():
        (user / name).parent.mkdir(parents=True, exist_ok=True)
        (user / name).write_text(text)
    searched = [*sys.path]
    with contextlib.chdir(user):
        parts = World(user, tree).parts()
    sys.path[:] = searched  # a judge that was imported leaves its folder there
    return parts


def write(name, text="changed\n"):
    """Edit of a user's file, appended to where it is there."""

    def edit(world):
        path = world.user / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((path.read_text() if path.exists() else "") + text)

    return edit


def code(name, text="\nEDITED = 1\n"):
    """Edit of a project's file."""

    def edit(world):
        path = world.root / name
        world.changed.setdefault(path, path.read_bytes() if path.exists() else None)
        path.write_bytes((path.read_bytes() if path.exists() else b"") + text.encode())

    return edit


def replaced(name, old, new):
    """Edit of a project's file: the one place where `old` is."""

    def edit(world):
        path = world.root / name
        world.changed.setdefault(path, path.read_bytes())
        assert path.read_text().count(old) == 1, f"{name}: {old}"
        path.write_text(path.read_text().replace(old, new))

    return edit


def new_field(name, cls):
    """Edit of a project's file: a field with a default, of a type of its own, and its check in a class of settings."""

    def edit(world):
        [head] = [line for line in (world.root / name).read_text().splitlines() if line.startswith(f"class {cls}(")]
        check = '    @field_validator("spare")\n    def _spare(cls, value):\n        return value\n'
        replaced(name, f"{head}\n", f"Spare = int | None\n\n\n{head}\n    spare: Spare = None\n{check}")(world)

    return edit


def field(*overrides):
    def edit(world):
        world.overrides += overrides

    return edit


def version(name):
    def edit(world):
        world.installed[name] = "99"

    return edit


def moved_data(world):
    (world.user / "data/train.jsonl").rename(world.user / "data/renamed.jsonl")


def gone_data(world):
    (world.user / "data/more.jsonl").unlink()


VERIFIED = {"curate", "rlvr", "evaluate"}
MODELS = {"sft", "rlvr", "evaluate"}
BASE = {"sft", "evaluate"}
"""RLVR starts from SFT's model, curate reads the tokenizer only."""
MATRIX = [
    # fields
    ("seed", field("seed=1"), ALL), ("threads", field("threads=2"), NONE), ("name", field("name=another"), NONE),
    ("experiment", field("tracking.experiment=x"), NONE), ("upload", field("tracking.upload_models=false"), NONE),
    ("dtype", field("model.dtype=bfloat16"), MODELS),
    ("stored weights", field("model.dtype=bfloat16", "model.weights_dtype=bfloat16"), MODELS), ("attention", field("model.attention=eager"), MODELS),
    ("trust", field("model.trust_remote_code=true"), ALL), ("allow_missing", field("model.allow_missing=[x]"), BASE),
    ("template text", field("model.chat_template='{{ x }}'"), ALL), ("curate field", field("curate.self_check=false"), {"curate"}),
    ("source size", field("curate.sources.0.size=5"), {"curate"}), ("batch rows", field("curate.batch_rows=7"), NONE),
    ("source licence", field("curate.sources.0.licence=mit"), {"curate"}),
    ("near duplicates", field("curate.near_duplicates=null"), {"curate"}), ("splits", field("curate.splits.train=0.8", "curate.splits.heldout=0.2"), {"curate"}),
    ("sft field", field("sft.steps=3"), {"sft"}), ("sft commits", field("sft.commit.every=9"), NONE),
    ("sft ranks", field("sft.processes=3"), NONE), ("rlvr ranks", field("rlvr.processes=2"), NONE),
    ("evaluate ranks", field("evaluate.processes=2"), NONE),
    ("sft learning rate", field("sft.optimizer.learning_rate=0.1"), {"sft"}), ("sft lora", field("sft.lora={rank: 2}"), {"sft"}),
    ("sft lora in short", field("sft.lora=2"), {"sft"}), ("sft dora", field("sft.lora={use_dora: true}"), {"sft"}),
    ("rlvr field", field("rlvr.steps=3"), {"rlvr"}), ("rlvr commits", field("rlvr.commit.keep_last=9"), NONE),
    ("advantage", field("rlvr.advantage=rloo"), {"rlvr"}), ("method setting", field("rlvr.advantage={kind: grpo, scale: none}"), {"rlvr"}),
    ("sampling", field("rlvr.sampling.temperature=0.5"), {"rlvr"}), ("log rollouts", field("rlvr.log_rollouts=1"), NONE),
    ("evaluate field", field("evaluate.confidence=0.9"), {"evaluate"}), ("task limit", field("evaluate.tasks.0.limit=3"), {"evaluate"}),
    ("task taken out", field("evaluate.tasks=[palindromes, mine]"), BENCHMARKED),
    ("a benchmark more", field("evaluate.tasks=[palindromes, gsm8k_test, mine, other, {name: lake, environment: {task: frozen_lake, size: 4}}]"), BENCHMARKED),
    ("an environment's benchmark more", field("evaluate.tasks=[palindromes, gsm8k_test, mine, {name: lake, environment: {task: frozen_lake, size: 4}}, {name: s, environment: {task: sokoban, size: 4}}]"), BENCHMARKED),
    ("a benchmark's environment", field("evaluate.tasks.3.environment={task: guess_number, size: 4}"), BENCHMARKED),
    ("its settings", field("evaluate.tasks.3.environment.config={side: 5}"), BENCHMARKED),
    ("monitors", field("rlvr.monitors=[{kind: entropy_collapse}]"), {"rlvr"}),
    ("checkpoints", field("evaluate.checkpoints=[sft, rlvr]"), {"evaluate"}),
    # data
    ("a data row", write("data/train.jsonl", '{"question": "2+2", "answer": "4"}\n'), {"curate"}), ("a new data file", write("data/new.jsonl"), {"curate"}),
    ("a data file gone", gone_data, {"curate"}), ("a data file renamed", moved_data, {"curate"}), ("a file beside the data", write("data/notes.txt"), NONE),
    ("a row of a hub folder", write("hub_folder/train.jsonl"), {"curate"}), ("a hub folder's README", write("hub_folder/README.md"), {"curate"}),
    # plug-ins
    ("reward module", write("rewards/score.py", "e = 1\n"), {"rlvr"}), ("what it imports", write("rewards/first.py", "e = 1\n"), {"rlvr"}),
    ("two imports away", write("rewards/second.py", "e = 1\n"), {"rlvr"}), ("three imports away", write("third.py", "e = 1\n"), {"rlvr"}),
    ("imported by name", write("fourth.py", "e = 1\n"), {"rlvr"}), ("relative import", write("rewards/sibling.py", "e = 1\n"), {"rlvr"}),
    ("its package", write("rewards/__init__.py", "e = 1\n"), {"rlvr"}), ("a comment in it", write("rewards/score.py", "# why\n"), NONE),
    ("judge module", write("judges.py", "e = 1\n"), {"rlvr"}), ("a module nobody imports", write("unrelated.py", "e = 1\n"), NONE),
    # benchmarks
    ("own benchmark's YAML", write("bench/mine/mine.yaml", "repeats: 2\n"), BENCHMARKED), ("its utils.py", write("bench/mine/utils.py", "e = 1\n"), BENCHMARKED),
    ("what utils.py imports", write("bench_helper.py", "e = 1\n"), BENCHMARKED), ("data beside it", write("bench/mine/test.jsonl"), BENCHMARKED),
    ("YAML it includes", write("bench/shared.yaml", "repeats: 2\n"), BENCHMARKED), ("data it names", write("bench/elsewhere/test.jsonl"), BENCHMARKED),
    ("its licence", write("bench/mine/LICENSE"), NONE), ("another benchmark", write("bench/other/test.jsonl"), NONE),
    ("project's benchmark YAML", code("evaluation/benchmarks/palindromes/palindromes.yaml", "repeats: 1\n"), BENCHMARKED),
    ("palindromes' data", code("evaluation/benchmarks/palindromes/test.jsonl", "{}\n"), BENCHMARKED),
    ("gsm8k's data", code("evaluation/benchmarks/gsm8k_test/test.jsonl", "{}\n"), BENCHMARKED),
    ("gsm8k's licence text", code("evaluation/benchmarks/gsm8k_test/LICENSE", "more"), NONE),
    # base model
    *((f"base {name}", write(f"base/{name}"), ALL - {"rlvr"}) for name in (
        "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
        "merges.txt", "tokenizer.model", "chat_template.jinja",
    )),
    *((f"base {name}", write(f"base/{name}"), BASE) for name in (
        "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", "generation_config.json",
    )),
    ("base licence", write("base/LICENSE"), NONE), ("base README", write("base/README.md"), NONE),
    # code
    ("curate's code", code("pipelines/curate/run.py"), {"curate"}), ("sft's code", code("pipelines/sft/run.py"), {"sft"}),
    ("pack of sft", code("pipelines/sft/pack.py"), {"sft"}), ("the chosen method", code("pipelines/rlvr/advantage/grpo.py"), {"rlvr"}),
    ("another method", code("pipelines/rlvr/advantage/rloo.py"), NONE), ("a comment", code("pipelines/sft/run.py", "\n# why\n"), NONE),
    ("shared helper", code("pipelines/base/files.py"), ALL), ("reading models", code("pipelines/engine/model_files.py"), ALL),
    ("helper three imports away", code("pipelines/rlvr/ops.py"), {"rlvr"}), ("a verifier", code("pipelines/verifiers/number.py"), VERIFIED),
    ("an environment", code("pipelines/environments/frozen_lake.py"), VERIFIED), ("another environment", code("pipelines/environments/new_world.py", "x = 1\n"), {"rlvr"}),
    ("intervals", code("evaluation/statistics.py"), BENCHMARKED), ("difficulty", code("pipelines/curate/difficulty.py"), NONE),
    ("optimizer", code("pipelines/engine/optimizer.py"), {"sft", "rlvr"}),
    # the recipe's reader
    *((f"a new field of {cls}", new_field(f"pipelines/{name}.py", cls), NONE) for name, cls in (
        ("recipe/settings", "Curate"), ("recipe/settings", "Sft"), ("recipe/settings", "Rlvr"), ("recipe/settings", "Evaluate"),
        ("recipe/settings", "Task"), ("recipe/training", "Optimizer"), ("recipe/settings", "Tracking"), ("recipe/source", "Source"),
        ("recipe/read", "Recipe"), ("contract/model_settings", "Model"), ("preference/settings", "Preference"), ("sample/settings", "Sample"),
    )),
    *((f"the reader's {name}", code(f"pipelines/recipe/{name}.py"), NONE) for name in ("read", "check", "explain", "graph", "stage_kind")),
    ("words about faults", code("pipelines/recipe/explain.py", "\ndef explain(*a):\n    return 1\n"), NONE),
    ("what a section computes", replaced("pipelines/recipe/settings.py", "return self.benchmark or self.name", "return self.name"), BENCHMARKED),
    ("a default that no section resolves", replaced("pipelines/recipe/monitors.py", 'action: Action = "warn"', 'action: Action = "stop"'), {"sft", "rlvr"}),
    ("how methods are bound", replaced("pipelines/recipe/slots.py", "bound: dict[str, Any] = {}", "bound: dict[str, Any] = dict()"), {"rlvr"}),
    # methods, verifiers and environments that the recipe does not name, and those that it names
    ("a paper that is not named", code("pipelines/papers/prime.py"), NONE), ("the papers' table", code("pipelines/papers/__init__.py"), NONE),
    ("the paper that is named", code("pipelines/papers/arena_tournament.py"), {"rlvr"}), ("a search that is not asked for", code("pipelines/search/particles.py"), NONE),
    ("a loss that is not named", code("pipelines/preference/loss/dpo.py"), NONE), ("the sampler", code("pipelines/engine/sampler.py"), {"rlvr", "evaluate"}),
    # libraries
    *((f"version of {name}", version(name), VERIFIED) for name in (
        "sympy", "mpmath", "reasoning-gym", "gymnasium",
    )),
    *((f"version of {name}", version(name), ALL) for name in ("transformers", "tokenizers", "numpy", "jinja2", "pyarrow")),
    *((f"version of {name}", version(name), MODELS) for name in ("torch", "peft", "scipy")),
    ("version of datasets", version("datasets"), BENCHMARKED), ("version of lm_eval", version("lm_eval"), BENCHMARKED),
    ("version of mlflow", version("mlflow"), NONE), ("version of prefect", version("prefect"), NONE),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "stages"), [row[1:] for row in MATRIX], ids=[row[0] for row in MATRIX])
@pytest.mark.few(40)
def test_an_edit_reruns_exactly(world, unedited, edit, stages):
    before = unedited
    edit(world)
    after = world.parts()
    changed = {s for s in before if keys.stage_key(before[s]) != keys.stage_key(after[s])}
    assert changed == stages
    for stage in changed:
        words = keys.difference(before[stage], json.loads(json.dumps(after[stage])))
        assert words and all(len(line.split()) >= 2 for line in words), words


ROWS = [{"prompt": f"what is {i} plus {i}?", "answer": str(2 * i)} for i in range(30)]


def curated(folder: Path, rows=ROWS, questions=(), source=(), **fields) -> str:
    """Digest of the artifact of a real curation."""
    from pipelines.curate.run import run
    from pipelines.stage.report import Report

    out, path = folder / "out", folder.parent / "rows.jsonl"
    out.mkdir(parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    about = {"kind": "file", "path": str(path), "verifier": "exact", **dict(source)}
    read = read_recipe(
        toys.recipe(folder, curate={"sources": [about], "splits": {"train": 0.5, "heldout": 0.5}, **fields})
    )
    asked = (lambda: iter([("bench", text) for text in questions])) if questions else None
    run(read.curate, read.model, out=out, report=Report(folder / "w"), seed=0, benchmark_texts=asked)
    return write_manifest(out, {"stage": "curate", "key": "k"})


OVERLAP = "tell me now, because I have to know it: what is 29 plus 29? it is important to me and to all of us"
SAME_ROWS = {
    "a benchmark": {"questions": ["who wrote the book about the whale that everybody was talking about in that year?"]},
    "two benchmarks": {"questions": ["name the capital of France", "a question " * 20]},
    "a row that is no record": {"rows": [*ROWS, {"answer": "4"}]},
    "a row that repeats another": {"rows": [*ROWS, ROWS[0]]},
    "how repeats are looked for": {"near_duplicates": {"threshold": 0.95, "shingle": 4}},
    "a bound that nothing crosses": {"max_prompt_tokens": 60},
    "self check": {"self_check": False},
}  # fmt: skip
OTHER_ROWS = {
    "a benchmark that overlaps": {"rows": [*ROWS, {"prompt": OVERLAP, "answer": "58"}], "questions": [OVERLAP]},
    "a row more": {"rows": [*ROWS, {"prompt": "and 40 plus 2?", "answer": "42"}]},
    "a row less": {"rows": ROWS[1:]},
    "an answer": {"rows": [{**ROWS[0], "answer": "1"}, *ROWS[1:]]},
    "the splits' shares": {"splits": {"train": 0.9, "heldout": 0.1}},
    "the verifier": {"source": {"verifier": "number"}},
}


@pytest.fixture(scope="module")
def as_it_was(tmp_path_factory):
    """Digest of the rows, and of those with one more that a benchmark may overlap with."""
    folder = tmp_path_factory.mktemp("rows")
    more = [*ROWS, {"prompt": OVERLAP, "answer": "58"}]
    return folder, curated(folder / "plain"), curated(folder / "more", more)


@pytest.mark.parametrize("change", SAME_ROWS)
def test_what_changes_no_row_reruns_nothing_after_curate(as_it_was, change):
    """Stages that read the data have its digest in their keys, and nothing else of it."""
    folder, before, _ = as_it_was
    assert curated(folder / change, **SAME_ROWS[change]) == before


@pytest.mark.parametrize("change", OTHER_ROWS)
def test_what_changes_a_row_is_seen(as_it_was, change):
    folder, *before = as_it_was
    now = curated(folder / change, **OTHER_ROWS[change])
    if change == "a benchmark that overlaps":  # the row that it overlaps with is gone, with all of its words
        assert now == before[0] != before[1]
    else:
        assert now not in before


def absolute(world):
    for one, name in zip(world.body["curate"]["sources"], ("data/*.jsonl", "hub_folder"), strict=False):
        one["path"] = str(world.user / name)
    world.body["model"]["path"] = str(world.user / "base")
    world.body["evaluate"]["include"] = str(world.user / "bench")


def dotted(world):
    world.body["curate"]["sources"][0]["path"] = "./data/*.jsonl"
    world.body["curate"]["sources"][1]["path"] = "./hub_folder/"
    world.body["model"]["path"] = "./base/"
    world.body["evaluate"]["include"] = "./bench"


def at_home(world):
    world.body["curate"]["sources"][0]["path"] = "~/user/data/*.jsonl"
    world.body["curate"]["sources"][1]["path"] = "~/user/hub_folder"
    world.body["model"]["path"] = "~/user/base"
    world.body["evaluate"]["include"] = "~/user/bench"


def elsewhere(world):
    shutil.copytree(world.user, world.user.parent / "copy")
    os.chdir(world.user.parent / "copy")


@pytest.mark.parametrize("spelling", [absolute, dotted, at_home, elsewhere], ids=lambda s: s.__name__)
def test_the_spelling_of_a_path_changes_nothing_and_its_files_still_count(world, spelling):
    before = world.keys()
    spelling(world)
    assert world.keys() == before
    if spelling is not elsewhere:
        for edit, stages in (
            (write("data/train.jsonl"), {"curate"}),
            (write("hub_folder/train.jsonl"), {"curate"}),
            (write("base/chat_template.jinja"), {"curate", "sft", "evaluate"}),
            (write("bench/mine/utils.py", "e = 1\n"), BENCHMARKED),
        ):
            before = world.keys()
            edit(world)
            after = world.keys()
            assert {s for s in before if before[s] != after[s]} == stages


def test_without_decontamination_benchmarks_are_not_curates(world):
    world.overrides.append("curate.decontaminate=null")
    before = world.keys()
    write("bench/mine/test.jsonl")(world)
    code("evaluation/statistics.py")(world)
    after = world.keys()
    assert {s for s in before if before[s] != after[s]} == {"evaluate"}


def test_with_difficulty_curate_reads_the_model_and_the_sampler(world):
    world.overrides.append("curate.difficulty={model: ./base}")
    for edit in (write("base/model.safetensors"), code("pipelines/engine/sampler.py"), version("torch")):
        before = world.keys()
        edit(world)
        assert world.keys()["curate"] != before["curate"]


def test_without_difficulty_curate_does_not_read_the_sampler(world):
    before = world.keys()
    code("pipelines/engine/sampler.py")(world)
    after = world.keys()
    assert {s for s in before if before[s] != after[s]} == {"rlvr", "evaluate"}


def test_without_sft_rlvr_reads_the_base(world):
    del world.body["sft"]
    before = world.keys()
    write("base/model.safetensors")(world)
    after = world.keys()
    assert {s for s in before if before[s] != after[s]} == {"rlvr", "evaluate"}


def test_a_template_file_is_seen_by_content(world):
    world.overrides.append("model.chat_template=template.jinja")
    before = world.keys()
    world.overrides[-1] = "model.chat_template=./template.jinja"
    assert world.keys() == before
    write("template.jinja")(world)
    after = world.keys()
    assert {s for s in before if before[s] != after[s]} == ALL


def test_code_of_the_model_counts_where_it_may_run(world):
    write("base/code.py", "x = 1\n")(world)
    before = world.keys()
    write("base/code.py", "y = 1\n")(world)
    assert world.keys() == before
    world.overrides.append("model.trust_remote_code=true")
    before = world.keys()
    write("base/code.py", "z = 1\n")(world)
    after = world.keys()
    assert {s for s in before if before[s] != after[s]} == {"curate", "sft", "evaluate"}


def test_a_server_s_address_is_no_part_of_a_key(world):
    world.overrides.append("rlvr.sampler={url: 'http://a:1', weights: /w, timeout_s: 5}")
    before = world.keys()
    world.overrides[-1] = "rlvr.sampler={url: 'http://b:2', weights: /v, timeout_s: 6, model: m}"
    assert world.keys() == before
    world.overrides[-1] = "rlvr.sampler={serve: {command: [/opt/vllm, serve], count: 2}, seeds: false}"
    assert world.keys() == before
    world.overrides.clear()
    assert world.keys()["rlvr"] != before["rlvr"]


def test_words_name_the_path_as_the_user_knows_it(world):
    before = world.parts()
    write("data/train.jsonl")(world)
    write("rewards/first.py", "e = 1\n")(world)
    gone_data(world)
    after = world.parts()
    assert keys.difference(before["curate"], after["curate"]) == ["data/more.jsonl is gone", "data/train.jsonl changed"]
    assert keys.difference(before["rlvr"], after["rlvr"]) == ["the code of rewards.first changed"]


def test_a_truncated_log_is_no_damage(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report/stage.log").write_text("many lines\n")
    (tmp_path / "data.json").write_text("{}")
    write_manifest(tmp_path, {"stage": "curate", "key": "k"})
    (tmp_path / "report/stage.log").write_text("")
    assert damage(tmp_path) is None
    (tmp_path / "report/stage.log").unlink()
    assert damage(tmp_path) is None
    (tmp_path / "data.json").write_text("[]")
    assert damage(tmp_path) == "data.json is damaged"


def test_the_matrix_is_large():
    assert len(MATRIX) >= 60 and len({row[0] for row in MATRIX}) == len(MATRIX)
