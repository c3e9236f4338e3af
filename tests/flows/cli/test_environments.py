"""`whetstone environments`: every environment in the table, a sample episode of each, and what is refused."""

from __future__ import annotations

import json
import sys

import pytest
import toys

from flows.cli import environments, main
from pipelines import environments as all_environments
from pipelines.base import distribution
from pipelines.contract.catalogue import settings_model
from pipelines.recipe.played import PlayedTask
from pipelines.rlvr.rollout.multi_turn import multi_turn

NEEDS_SETTINGS = {"agent": "command", "openenv": "url", "verifiers_package": "load", "verifiers_v1": "python"}
PLUGIN = '''
"""Say the word."""

from pipelines.environments import Step


class World:
    waits = False

    def reset(self, problem):
        self.word = problem.info["word"]
        return problem.prompt

    def state_key(self):
        return self.word

    def step(self, message):
        return Step("", float(message == self.word), True, self.word, {"success": message == self.word})

    def state_dict(self):
        return {"word": self.word}

    def load_state_dict(self, state):
        self.word = state["word"]


def problems(size, seed, *, word: str = "moss"):
    for _ in range(size):
        info = {"environment": "say", "word": word, "solution": word}
        prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"\\x1b[31msay {word}"}]
        yield {"prompt": prompt, "answer": word, "verifier": "exact", "info": info}
'''


@pytest.fixture
def run(capsys):
    """The exit code, output and errors of the command line."""

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main.main(["environments", *arguments])
        return ended.value.code, *capsys.readouterr()

    return call


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Whatever extras are."""
    monkeypatch.setattr(distribution, "is_installed", lambda extra: True)


def test_every_environment_has_a_line(run):
    code, out, _ = run()
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert code == 0 and {*all_environments.known()} < {*lines}
    assert " 2 " in lines["tic_tac_toe"] and " yes " in lines["tools"] and " search " in lines["search_questions"]
    listed = {each["name"]: each for each in json.loads(run("--json")[1])}
    assert [*listed] == all_environments.known() and all(each["about"] for each in listed.values())
    assert listed["worked_sums"]["max_turns"] == 1 and not listed["frozen_lake"]["tools"]


def test_turns_are_those_of_recipes():
    for model in (PlayedTask, settings_model(multi_turn)):
        assert model.model_fields["max_turns"].default == environments.MAX_TURNS


@pytest.mark.parametrize("name", all_environments.known())
def test_a_sample_episode_of_each(run, name):
    if name == "minigrid":
        pytest.importorskip("minigrid")  # in no environment but that of make test-ecosystem
    code, out, err = first = run(name, "--max-turns", "30")
    assert code == 0 and not err and first == run(name, "--max-turns", "30")
    assert f"environment {name}\n" in out and "setting " in out
    if name in NEEDS_SETTINGS:
        assert f"needs settings without a default: --set {NEEDS_SETTINGS[name]}=..." in out
    elif name == "textarena":
        assert "played by nobody" in out and "\nuser:\n" in out
    else:
        assert "\nend: the environment ended it\n" in out and "\nthe policy" in out
        assert json.loads(run(name, "--json")[1])["sample"]["prompt"]


@pytest.mark.slow
def test_no_order_of_hashes_is_in_it(tmp_path):
    of_seeds = {
        toys.whetstone("environments", name, "--seed", "4", home=tmp_path, first=True, PYTHONHASHSEED=seed).stdout
        for name in ("shell", "tic_tac_toe")
        for seed in ("1", "2")
    }
    assert len(of_seeds) == 2


def test_messages_of_one_s_own_are_played(run):
    code, out, _ = run("toy_text", "--set", "game=cliff", "--actions", "up", "dance", "--seed", "1")
    assert code == 0 and "played by your messages" in out and "not a valid action" in out
    assert "the policy, turn 2:\n  dance\n" in out and "end: there was no further message to say" in out
    [turn, _] = json.loads(run("toy_text", "--actions", "north", "south", "--json")[1])["sample"]["turns"]
    assert turn["says"] == "north" and turn["reward"] == -1


def test_settings_and_schemas_of_tools_and_images_are_shown(run, tmp_path):
    out = run("frozen_lake", "--set", "shows=both", "--images", str(tmp_path / "images"))[1]
    pictures = {path.stem for path in (tmp_path / "images").glob("*.png")}
    assert pictures and all(f"[image 32x32 {picture}]" in out for picture in pictures)
    assert 'tool: {"name": "calculator"' in run("tools")[1]
    assert "setting game: 'taxi' or 'cliff' or 'blackjack', default taxi" in run("toy_text")[1]


def test_a_file_of_one_s_own_without_its_control_characters(run, tmp_path, monkeypatch):
    (tmp_path / "say.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("./say.py", "--set", "word=fern")
    assert code == 0 and "Say the word." in out and "score: 1, correct" in out
    assert "system:\n  Be brief.\n\nuser:\n  \ufffd[31msay fern\n" in out


@pytest.mark.parametrize(
    ("arguments", "field", "fix"),
    [
        (["frozen_lak"], None, "Did you mean 'frozen_lake'?"),
        (["frozen_lake", "--set", "sides=3"], "--set sides", "Did you mean 'side'?"),
        (["frozen_lake", "--set", "side=x"], "--set side", "Settings: side, ice,"),
        (["toy_text", "--set", "game=chess"], "--set game", "Settings: game,"),
        (["openenv", "--set", "field=x"], "--set url", "Settings: url,"),
        (
            ["agent", "--set", "command=[no_such]", "--set", f"tasks={toys.ROOT}/README.md"],
            "--set command",
            "Correct it",
        ),
    ],
)
def test_what_is_refused_says_the_field_and_the_fix(run, arguments, field, fix):
    code, out, _ = run(*arguments, "--json")
    error = json.loads(out)["error"]
    assert code == 2 and error["field"] == field and error["fix"].startswith(fix)


def test_a_missing_package_is_named_with_the_extra(run, monkeypatch):
    monkeypatch.setattr(distribution, "is_installed", lambda extra: extra != "textarena")
    code, _, err = run("textarena")
    assert code == 2 and "not installed (extra textarena)" in err and "textarena]" in err
    assert "textarena (missing)" in run()[1]


def test_a_package_that_cannot_be_imported_is_named_too(run, monkeypatch):
    """Where the metadata of the installation is older than the extra."""
    monkeypatch.setitem(sys.modules, "minigrid", None)
    code, _, err = run("minigrid")
    assert code == 2 and "environment minigrid: install it: " in err
