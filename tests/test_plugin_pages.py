"""The files of docs/plugins.md are complete: they are written out as they stand there, and train."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import sys

import databases
import pytest
import toys

from flows.cli import check_methods
from pipelines.base import plugins
from pipelines.contract import catalogue
from pipelines.recipe import json_schema
from pipelines.recipe.read import read_recipe
from tasks import keys
from tasks.preflight import check
from tasks.stages import plan

PAGE = (toys.ROOT / "docs" / "plugins.md").read_text()
FILES = {match[1]: match[2] for match in re.finditer(r"^```python\n# (\w+\.py)\n(.*?)^```$", PAGE, re.M | re.S)}


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The page's files in the working folder; plug-ins are forgotten afterwards."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    before = dict(plugins._named)
    yield tmp_path
    plugins._named.clear()
    plugins._named.update(before)
    plugins.origins.cache_clear()
    catalogue.load.cache_clear()


def answers(folder):
    """A recipe whose rows the page's verifier judges and whose advantage is the page's."""
    rows = [{"prompt": f"say {a}{b}", "answer": f"{a}{b}{a}"} for a in "abcdefgh" for b in "abcdefgh"]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = {"kind": "file", "path": str(folder / "rows.jsonl"), "verifier": "places"}
    return toys.recipe(
        folder,
        plugins=["my_method.py"],
        curate={"sources": [source], "near_duplicates": None, "decontaminate": None},
        rlvr={"steps": 2, "advantage": {"kind": "median_baseline", "scale": 2}},
    )


def episodes(folder):
    """A recipe of an agent in the page's environment."""
    source = {"kind": "environment", "task": "larger_digit", "size": 80}
    return toys.recipe(
        folder,
        plugins=["my_environment.py"],
        curate={"sources": [source], "near_duplicates": None, "decontaminate": None},
        rlvr={"steps": 2, "rollout": {"kind": "multi_turn", "max_turns": 2}},
    )


def test_there_are_three_files():
    assert FILES.keys() == {"my_method.py", "my_environment.py", "my_stages.py"}


def stages(folder, name="my_stages.yaml"):
    """The page's recipe of its kinds of stages."""
    (folder / name).write_text(re.search(r"^```yaml\n# my_stages\.yaml\n(.*?)^```$", PAGE, re.M | re.S)[1])
    return folder / name


def test_kinds_of_stages_are_known_wherever_the_core_s_are(written, home):
    recipe = read_recipe(stages(written))
    assert recipe.node("short").settings.most == 15 and recipe.node("more").parents == ["cold"]
    assert [each.action for each in plan(recipe)] == ["run"] * 5
    parts = keys.key_parts(recipe, "more", {"data": "d", "model": "m"})
    assert parts["chosen"]["answers"] == {"steps": 20, "max_length": 64, "optimizer": {"learning_rate": 0.001}}
    assert {"plugin/my_stages.py"} == parts["files"].keys() and "pipelines.engine.loop" in parts["source"]


@pytest.mark.slow
def test_checks_and_editors_know_kinds_of_stages(written, home):
    recipe = read_recipe(stages(written))
    assert check.examine(recipe, recipe.stage_names()) == []
    schema = json_schema.recipe_schema()["$defs"]["stage.filter_long"]
    assert schema["properties"]["most"]["description"].startswith("Characters of a prompt")
    assert schema["properties"]["data"]["description"] == "The stage whose data it reads."
    assert check_methods.check("my_stages.py") == 0


def test_a_kind_s_code_and_what_it_imports_are_in_the_key(written):
    path = stages(written)

    def key(*overrides, stage="short"):
        return keys.stage_key(keys.key_parts(read_recipe(path, list(overrides)), stage, {"data": "d"}))

    before, of_core = key(), key(stage="cold")
    assert key("short.most=16") != before and key("short.most=15") == before
    text = FILES["my_stages.py"]
    for changed, equal in (
        (text + "\n# a comment\n", True),
        (text.replace("<= settings.most", "< settings.most"), False),
        (text.replace("import random\n", "import random\nimport my_words\n"), False),
    ):
        assert changed != text
        (written / "my_words.py").write_text("COUNT = 1\n")
        (written / "my_stages.py").write_text(changed)
        assert (key() == before) is equal
        assert key(stage="cold") == of_core, "a kind of the core does not read it"
    with_import = key()
    (written / "my_words.py").write_text("COUNT = 2\n")
    assert key() != with_import


@pytest.mark.slow
@pytest.mark.long
def test_the_recipe_of_kinds_runs_in_an_empty_folder(tmp_path):
    """As a person types it; what is done again, and by commands in a folder without the file."""
    home, project, elsewhere = tmp_path / "home", tmp_path / "project", tmp_path / "elsewhere"
    databases.prepare(home)
    project.mkdir()
    elsewhere.mkdir()
    stages(project)
    (project / "my_stages.py").write_text(FILES["my_stages.py"])
    kept = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME")}
    environment = kept | {"PYTHONPATH": toys.python_path(), "WHETSTONE_HOME": str(home), "OMP_NUM_THREADS": "1"}

    def whetstone(*arguments, folder=project):
        command = [sys.executable, "-m", "flows.cli.main", *arguments]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    whetstone("run", "my_stages.yaml")
    (run,) = json.loads(whetstone("runs", "--json"))
    (filtered,) = home.glob("runs/filter_long-*")
    assert json.loads((filtered / "manifest.json").read_text())["makes"] == "data"
    whetstone("report", run["run_id"], folder=elsewhere)
    told = whetstone("lineage", run["run_id"], folder=elsewhere)
    assert filtered.name in told and "answers-" in told and "curate-" in told
    again = whetstone("rerun", run["run_id"], "--set", "more.rows_per_step=4")
    assert re.search(r"cold .*reused", again), again
    assert len([*home.glob("runs/answers-*")]) == 2 and len([*home.glob("runs/filter_long-*")]) == 1


@pytest.mark.parametrize("build", [answers, episodes])
def test_they_train(written, build):
    path = build(written)
    begun = toys.start(written, path, ["sft.steps=6"])
    trainer = toys.trainer(written / "run", begun, path)
    trainer.run()
    rows = [json.loads(line) for line in (written / "run/work/out/report/rollouts.jsonl").read_text().splitlines()]
    assert len(rows) > 0 and all(row["score"] is not None for row in rows)
    assert [step for step, _ in toys.history(written / "run/work")][-1] == 2


@pytest.mark.slow
def test_what_is_asked_before_a_run_knows_them(written, home):
    """The process that reads the first rows has the recipe's plug-ins."""
    for build in (answers, episodes):
        recipe = read_recipe(build(written))
        assert check.examine(recipe, recipe.stage_names()) == []


def test_the_advantage_and_the_verifier_are_the_page_s(written):
    read_recipe(answers(written))
    module = sys.modules[catalogue.origin("rlvr.advantage", "median_baseline").module]
    assert doctest.testmod(module) == doctest.TestResults(failed=0, attempted=3)
    bound = catalogue.bind("rlvr.advantage", {"kind": "median_baseline", "scale": 2})
    columns = toys.columns_of(toys.rough())
    advantage = bound({name: columns[name] for name in bound.needs})
    for number in columns["group"].unique():
        rows = columns["scored"] & (columns["group"] == number)
        rewards = sorted(columns["reward"][rows].tolist())
        middle = rewards[(len(rewards) - 1) // 2] if rewards else 0.0
        assert advantage[rows].tolist() == pytest.approx([2 * (r - middle) for r in columns["reward"][rows].tolist()])
    assert not advantage[~columns["scored"]].any()


@pytest.mark.parametrize(
    ("build", "name", "old", "new"),
    [
        (answers, "my_method.py", "reward[rows].median()", "reward[rows].mean()"),
        (answers, "my_method.py", "max(len(text), len(answer), 1)", "max(len(answer), 1)"),
        (episodes, "my_environment.py", "self.tries == 2", "self.tries == 3"),
    ],
)
def test_their_code_is_in_the_key_of_rlvr(written, build, name, old, new):
    path = build(written)

    def key(*overrides):
        return keys.stage_key(keys.key_parts(read_recipe(path, list(overrides)), "rlvr", {"data": "d"}))

    before = key()
    (written / name).write_text(FILES[name] + "\n# a comment\n")
    assert key() == before
    assert old in FILES[name]
    (written / name).write_text(FILES[name].replace(old, new))
    assert key() != before


def test_a_verifier_alone_is_in_the_key(written):
    """Where only the rows' verifier is a plug-in's, its code counts all the same."""
    path = answers(written)

    def key():
        return keys.stage_key(keys.key_parts(read_recipe(path, ["rlvr.advantage=grpo"]), "rlvr", {"data": "d"}))

    before = key()
    (written / "my_method.py").write_text(FILES["my_method.py"].replace("a == b", "a != b"))
    assert key() != before
