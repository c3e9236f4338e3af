"""Parts that a recipe names by file or module, without a table."""

from __future__ import annotations

import json
import string
import sys

import pytest
import toys

from pipelines import environments, verifiers
from pipelines.base import plugins
from pipelines.base.errors import DataError, RecipeError, UserError
from pipelines.contract import catalogue
from pipelines.contract.columns import COLUMNS
from pipelines.recipe import references
from pipelines.recipe.check import check_stage
from pipelines.recipe.read import read_recipe
from pipelines.recipe.slots import bind_monitors
from tasks import keys

METHOD = """
from pipelines.contract.catalogue import method

@method(paper="folklore", title="Rewards as they are, times a factor", checked="closed form")
def scaled(reward, *, factor: float = 2.0):
    \"\"\"`factor * reward`.\"\"\"
    return factor * reward
"""
VERIFIER = """
from pipelines.verifiers import Verdict

def verify(completion, answer, info):
    \"\"\"1 for the answer alone, 0.25 for more after it, 0.125 for anything else.\"\"\"
    score = 1.0 if completion == answer else 0.25 if completion[:1] == answer else 0.125
    return Verdict(score, "correct" if score == 1 else "incorrect")
"""
OWN_ROWS = {"sources": [{"kind": "file", "path": "rows.jsonl", "verifier": "./my_verifier.py"}]}
PRESET = "title: Mine\nadvantage: {kind: ./my_method.py:scaled, factor: 3}\nobjective: reinforce\n"


@pytest.fixture(autouse=True)
def _forget():
    """Each test begins and ends with the installed plug-ins alone."""
    before, columns = dict(plugins._named), dict(COLUMNS)
    yield
    COLUMNS.clear()
    COLUMNS.update(columns)
    plugins._named.clear()
    plugins._named.update(before)
    plugins.origins.cache_clear()
    catalogue.load.cache_clear()
    verifiers.registry.load.cache_clear()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder, with a method, a verifier and a preset."""
    (tmp_path / "my_method.py").write_text(METHOD)
    (tmp_path / "my_verifier.py").write_text(VERIFIER)
    (tmp_path / "my_preset.yaml").write_text(PRESET)
    rows = [{"prompt": f"Write {letter}.", "answer": letter} for letter in string.ascii_lowercase]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    for module in ("my_method", "my_verifier"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def read(folder, *overrides, **changes):
    return read_recipe(toys.recipe(folder, **changes), list(overrides))


@pytest.mark.parametrize("spelled", ["./my_method.py", "my_method.py:scaled", "my_method:scaled"])
def test_a_method_by_file_or_module(folder, spelled):
    recipe = read(folder, f"rlvr.advantage={{kind: '{spelled}', factor: 5}}")
    check_stage(recipe.node("rlvr"))
    assert catalogue.bind("rlvr.advantage", recipe.rlvr.advantage)({"reward": 0.5}) == 2.5
    assert references.of(recipe.nodes()) == [f"rlvr.advantage={spelled}"]


MONITOR = '''
from pipelines.contract.catalogue import method
from pipelines.contract.monitor import Monitor


@method(paper="folklore", title="Low reward", checked="closed form")
class LowReward(Monitor):
    """The mean reward is below `least`."""

    reads = ("reward/mean",)

    def __init__(self, *, least: float = 0.5) -> None:
        self.least = least

    def judge(self, values):
        return "low" if values["reward/mean"] < self.least else None
'''


def test_a_monitor_by_file(folder):
    (folder / "my_rule.py").write_text(MONITOR)
    recipe = read(folder, "rlvr.monitors=[{kind: ./my_rule.py, least: 0.7, action: stop}]")
    check_stage(recipe.node("rlvr"))
    (watched,) = bind_monitors("rlvr", recipe.rlvr.monitors)
    assert watched.rule.judge({"reward/mean": 0.6}) == "low" and watched.options.action == "stop"
    assert references.of([recipe.node("rlvr")]) == ["monitor=./my_rule.py"]
    with pytest.raises(RecipeError, match=r"rlvr\.monitors\.0.*no method called 'repetitoin'.*'repetition'"):
        check_stage(read(folder, "rlvr.monitors=[repetitoin]").node("rlvr"))


def test_parts_in_lists_and_terms_and_evaluations_are_found():
    fields = {"reward": {"kind": "sum", "terms": ["a.py:x", {"kind": "b.py:y"}]}, "shaping": ["c.py:z"], "steps": 3}
    fields |= {"reward_functions": ["my_rewards:good"], "monitors": ["f.py", {"kind": "g.py:w"}], "providers": ["h.py"]}
    tasks = {"tasks": [{"name": "lake", "environment": {"task": "./lake.py"}}]}
    sources = {
        "sources": [{"kind": "environment", "task": "d.py"}, {"kind": "file", "verifier": "e.py", "task": "no.py"}]
    }
    sections = {"rlvr": ("rlvr", fields), "evaluate": ("evaluate", tasks), "curate": ("curate", sources)}
    assert list(references._plugins(sections)) == [
        ("rlvr.reward.terms.0", "rlvr.reward=a.py:x"),
        ("rlvr.reward.terms.1", "rlvr.reward=b.py:y"),
        ("rlvr.shaping.0", "rlvr.shaping=c.py:z"),
        ("rlvr.providers.0", "rlvr.providers=h.py"),
        ("rlvr.monitors.0", "monitor=f.py"),
        ("rlvr.monitors.1", "monitor=g.py:w"),
        ("evaluate.tasks.0.environment.task", "environments=./lake.py"),
        ("curate.sources.0.task", "environments=d.py"),
        ("curate.sources.1.verifier", "verifiers=e.py"),
    ]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "rlvr.advantage=./my_method.py:scald",
            r"rlvr\.advantage: \./my_method\.py has no scald\. Did you mean 'scaled'\?",
        ),
        ("rlvr.advantage=./gone.py", r"rlvr\.advantage: there is no file \./gone\.py"),
        ("rlvr.advantage=gone_module:scaled", r"rlvr\.advantage: there is no module 'gone_module'"),
        ("rlvr.advantage=./broken.py", r"rlvr\.advantage: \./broken\.py fails .* ZeroDivisionError: .*/broken\.py:2\)"),
        (
            "rlvr.advantage=./my_verifier.py",
            r"rlvr\.advantage: \./my_verifier\.py has 0 methods\. Write @method\(.*\) above verify, after `from .*` \(",
        ),
        ("rlvr.advantage=./two.py", r"rlvr\.advantage: \./two\.py has 2 methods: scaled, other\. Say which one"),
        ("rlvr.shaping=[./my_method.py:nothing]", r"rlvr\.shaping\.0: \./my_method\.py has no nothing"),
        ("curate.sources.0.verifier=./my_method.py", r"curate\.sources\.0\.verifier: \./my_method\.py has no verify"),
        ("curate.sources.0.verifier=my verifier", r"curate\.sources\.0\.verifier: a name starts with"),
        ("presets=[./gone.yaml]", r"presets: there is no file '\./gone\.yaml'"),
        ("presets=[./section.yaml]", r"presets: '\./section\.yaml' has a section rlvr"),
    ],
)
def test_what_is_not_there_is_said_with_its_field(folder, override, says):
    (folder / "broken.py").write_text("x = 1\nx / 0\n")
    (folder / "two.py").write_text(METHOD + METHOD.replace("scaled", "other"))
    (folder / "section.yaml").write_text("rlvr: {advantage: rloo}\n")
    with pytest.raises(UserError, match=says):
        read(folder, override)


def test_a_file_that_changes_is_read_again(folder):
    file = folder / "my_method.py"
    with pytest.raises(UserError, match="has no scald"):
        read(folder, "rlvr.advantage=./my_method.py:scald")
    file.write_text(METHOD.replace("scaled", "scald"))
    assert read(folder, "rlvr.advantage=./my_method.py:scald")
    column = 'from pipelines.contract.columns import Column, Phase\nCOLUMNS = {"one_z": Column("B", "float32", Phase.CREDIT, "", "")}\n'
    for factor in (2.0, 6.0):
        file.write_text(column + METHOD.replace("= 2.0", f"= {factor}"))
        recipe = read(folder, "rlvr.advantage=./my_method.py:scaled")
        assert catalogue.bind("rlvr.advantage", recipe.rlvr.advantage)({"reward": 0.5}) == factor / 2
    assert "one_z" in COLUMNS


def test_a_method_without_a_card_is_refused(folder):
    recipe = read(folder, "rlvr.advantage=my_verifier:verify")
    with pytest.raises(UserError, match=r"rlvr\.advantage: my_verifier: verify has no card\. Decorate it"):
        check_stage(recipe.node("rlvr"))


def test_rows_of_data_find_nothing_by_their_file(folder):
    (folder / "evil.py").write_text("open('ran', 'w')\nclass World: ...\ndef verify(*a): ...\n")
    read(folder, "curate.sources.0.verifier=./my_verifier.py")
    for name in ("./evil.py", "evil:verify", "./evil.py:verify"):
        with pytest.raises(DataError, match="unknown verifier"):
            verifiers.load(name)
        assert name not in environments.known() and not environments.has_players(name)
    assert not (folder / "ran").exists()


def test_its_code_is_in_the_keys_of_the_stages_that_use_it(folder):
    def found(stage):
        recipe = read(folder, "rlvr.advantage=./my_method.py", curate=OWN_ROWS)
        return keys.stage_key(keys.key_parts(recipe, stage, {"data": "d"}))

    before = {stage: found(stage) for stage in ("curate", "sft", "rlvr")}
    (folder / "my_method.py").write_text(METHOD + "\n# a comment\n")
    assert {stage: found(stage) for stage in before} == before
    (folder / "my_method.py").write_text(METHOD.replace("factor * reward", "reward * factor"))
    after = {stage: found(stage) for stage in before}
    assert {stage for stage in before if after[stage] != before[stage]} == {"rlvr"}
    (folder / "my_verifier.py").write_text(VERIFIER.replace("score == 1", "score >= 1"))
    last = {stage: found(stage) for stage in before}
    assert {stage for stage in before if last[stage] != after[stage]} == {"curate", "rlvr"}


def test_an_environment_s_rows_are_played_by_the_file_that_made_them(folder):
    (folder / "my_world.py").write_text(
        "class World: ...\ndef problems(size, seed):\n    for n in range(size):\n"
        "        yield {'prompt': [], 'answer': 'a', 'info': {'environment': 'what it calls itself', 'n': n}}\n"
    )
    plugins.activate(["environments=./my_world.py"])
    rows = [*environments.problems("./my_world.py", 2, 0, {})]
    assert [row["info"] for row in rows] == [{"environment": "./my_world.py", "n": n} for n in range(2)]
    assert type(environments.make(rows[0]["info"]["environment"])).__module__.startswith("my_world")


@pytest.mark.slow
@pytest.mark.long
def test_a_run_with_parts_of_ones_own(folder, home):
    """A preset with a method of one's own in one file, a verifier in another: through curation and training."""
    recipe = toys.recipe(folder, presets=["./my_preset.yaml"], curate=OWN_ROWS, rlvr={"steps": 2}, sft={"steps": 2})
    toys.whetstone("run", str(recipe), "--until", "rlvr", home=home)
    (rollouts,) = home.glob("runs/rlvr-*/report/rollouts.jsonl")
    rows = [json.loads(line) for line in rollouts.read_text().splitlines()]
    assert rows and all(row["score"] in (0.125, 0.25, 1.0) and row["advantage"] == 3 * row["score"] for row in rows)
