"""Before a run: what an environment's settings name is there."""

from __future__ import annotations

import pytest
import toys

from pipelines.recipe.read import read_recipe
from tasks import keys
from tasks.preflight import corpora

FIELD = "curate.sources.0.config"


def recipe(folder, **config):
    """A recipe whose data and benchmark come from a program, with other settings where they are named."""
    (folder / "agent.py").touch()
    config = {"command": ["python", str(folder / "agent.py")], "tasks": {"environment": "worked_sums"}, **config}
    source = {"kind": "environment", "task": "agent", "size": 8, "config": config}
    played = {"name": "t", "environment": {"task": "agent", "config": config}}
    return read_recipe(toys.recipe(folder, curate={"sources": [source]}, evaluate={"tasks": [played]}))


def told(folder, **config):
    read = recipe(folder, **config)
    problems = [list(corpora.problems(read.node(stage))) for stage in ("curate", "evaluate")]
    assert len(problems[0]) == len(problems[1]), "data and benchmarks are looked at alike"
    assert all(problem.field.startswith("evaluate.tasks.0.environment.config.") for problem in problems[1])
    return {problem.field.removeprefix(f"{FIELD}."): problem.problem for problem in problems[0]}


@pytest.mark.parametrize(
    ("config", "field", "text"),
    [
        ({"command": "python agent.py"}, "command", "no list"), ({"command": []}, "command", "no list"),
        ({"command": ["no-such-program"]}, "command", "no program on the PATH"),
        ({"command": ["python", "./lost.py"]}, "command", "no file ./lost.py"),
        ({"tasks": "lost.jsonl"}, "tasks", "no file lost.jsonl"), ({"tasks": {"environment": "agent"}}, "tasks", "neither a file"),
        ({"tasks": {"environment": "worked_sum"}}, "tasks.environment", "no environment called"),
        ({"timeout_s": 0}, "timeout_s", "above 0"), ({"output_kb": True}, "output_kb", "above 0"),
        ({"success_at": "much"}, "success_at", "no number"), ({"result": "file"}, "result", "none of answer"),
        ({"result_file": "../out"}, "result_file", "no path within"), ({"variables": {"N": 1}}, "variables", "names to texts"),
        ({"result": "exit_code", "result_file": "out"}, "result_file", "not read"),
        ({"demonstrations": True}, "expert", "need one"), ({"expert": "./lost.py:f"}, "expert", "lost.py"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_field(tmp_path, config, field, text):
    problems = told(tmp_path, **config)
    assert problems.keys() == {field} and text in problems[field]


def test_nothing_is_wrong_with_a_program_that_is_there(tmp_path):
    assert told(tmp_path) == told(tmp_path, command=["sh", "-c", "python agent.py", "{task}"]) == {}
    program = tmp_path / "agent"
    program.touch(mode=0o644)
    assert "not executable" in told(tmp_path, command=[str(program)])["command"]
    program.chmod(0o755)
    assert told(tmp_path, command=[str(program)]) == {}


def test_the_program_and_the_environment_of_its_tasks_are_in_the_keys(tmp_path):
    read = recipe(tmp_path)
    stages = ("curate", "rlvr", "evaluate")
    parts = {stage: keys.key_parts(read, stage, {}) for stage in stages}
    for stage in stages:
        assert f"environment/{tmp_path / 'agent.py'}" in parts[stage]["files"], stage
        assert {"pipelines.environments._keeper", "pipelines.environments.worked_sums"} <= parts[stage]["source"].keys()
    (tmp_path / "agent.py").write_text("print(1)")
    assert all(keys.stage_key(keys.key_parts(read, s, {})) != keys.stage_key(parts[s]) for s in stages)
