"""What each trainer is told: its columns, and its configuration with ours beside the user's."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import toys
import yaml

from pipelines.base.errors import DataError
from pipelines.data import dataset
from pipelines.data.records import Problem
from pipelines.external import rows
from pipelines.external.adapter import adapter
from pipelines.external.run import Stage
from pipelines.external.settings import External
from pipelines.stage.report import Report

MESSAGES = [{"role": "user", "content": "1 + 1"}]


def problem(**changes) -> Problem:
    row = {
        "uid": "a" * 32,
        "answer": "2",
        "verifier": "number",
        "source": "sums",
        "licence": "none",
        "info": {"level": 3},
    }
    return Problem(prompt=MESSAGES, **row | changes)


def written(folder: Path, trainer: str, *problems: Problem, columns=None) -> list[dict]:
    writer = dataset.Writer(folder / "train.parquet")
    for each in problems or (problem(),):
        writer.add(each)
    writer.close()
    rows.write(folder, "train", folder / "out.parquet", adapter(trainer), columns)
    return pq.read_table(folder / "out.parquet").to_pylist()


def started(folder: Path, **settings) -> tuple[list[str], Stage]:
    stage = Stage(External(**settings), {"seed": 3, "inputs": {}}, "/models/base", folder, Report(folder))
    return stage.command(stage.values(1)), stage


def test_verls_columns(tmp_path):
    (row,) = written(tmp_path, "verl")
    extra = row.pop("extra_info")
    assert row == {
        "data_source": "sums", "prompt": MESSAGES, "ability": "number", "reward_model": {"style": "rule", "ground_truth": "2"},
    }  # fmt: skip
    assert extra == {"index": 0, "uid": "a" * 32, "verifier": "number", "info": '{"level": 3}'}


def test_columns_of_a_recipes_own(tmp_path):
    columns = {
        "input": "text",
        "reward_spec.method": "=rule",
        "reward_spec.ground_truth": "answer",
        "env_class": "verifier",
    }
    (row,) = written(tmp_path, "generic", columns=columns)
    assert row == {"input": "1 + 1", "reward_spec": {"method": "rule", "ground_truth": "2"}, "env_class": "number"}


def test_a_row_of_an_unknown_verifier_is_refused(tmp_path):
    with pytest.raises(DataError, match="unknown verifier 'numbre'"):
        written(tmp_path, "verl", problem(verifier="numbre"))


def test_verl_is_started_with_overrides(tmp_path):
    command, stage = started(
        tmp_path, trainer="verl", python="/opt/verl/python", overrides=["trainer.nnodes=2"],
        config={"data": {"train_batch_size": 64}, "trainer": {"logger": ["console"]}},
    )  # fmt: skip
    assert command[:3] == ["/opt/verl/python", "-m", "verl.trainer.main_ppo"] and command[-1] == "trainer.nnodes=2"
    overrides = dict(each.split("=", 1) for each in command[3:])
    assert overrides["data.train_batch_size"] == "64" and overrides["data.seed"] == "3"
    assert overrides["trainer.logger"] == "[console]"
    assert overrides["actor_rollout_ref.model.path"] == "/models/base"
    assert overrides["data.train_files"] == str(stage.folder / "train.parquet")
    assert overrides["reward.custom_reward_function.path"] == str(stage.folder / "whetstone_reward.py")


def test_what_the_users_configuration_places_itself_is_not_told_again(tmp_path):
    """As with an older verl, whose reward function is set elsewhere."""
    command, _ = started(tmp_path, trainer="verl", config={"custom_reward_function": {"path": "{reward_file}"}})
    assert [each for each in command if "custom_reward_function" in each] == [
        f"custom_reward_function.path={tmp_path}/trainer/whetstone_reward.py"
    ]


def test_a_configuration_with_defaults_replaces_verls_own(tmp_path):
    command, stage = started(
        tmp_path, trainer="verl", config={"defaults": ["ppo_trainer", "_self_"], "data": {"seed": 9}}
    )
    assert command[3:] == ["--config-path", str(stage.folder), "--config-name", "config"]
    values = yaml.safe_load((stage.folder / "config.yaml").read_text())
    assert values["data"]["seed"] == 9 and values["actor_rollout_ref"]["model"]["path"] == "/models/base"


def test_prime_rl_is_started_with_a_toml_file_and_resumes(tmp_path):
    recipe = yaml.safe_load((toys.ROOT / "recipes" / "external_prime_rl.yaml").read_text())
    fields = recipe["stages"]["rl"]["config"]
    command, stage = started(tmp_path, trainer="prime_rl", config=fields)
    assert command[1:4] == ["-m", "prime_rl.entrypoints.rl", "@"] and "--resume" not in command
    values = tomllib.loads(Path(command[4]).read_text())
    assert (
        values["ckpt"] == fields["ckpt"] and values["inference"] == {} and values["model"] == {"name": "/models/base"}
    )
    (source,) = values["orchestrator"]["train"]["source"]
    assert source["env"]["taskset"] == {"id": "whetstone-rows", "path": str(stage.folder / "train.parquet")}
    stage.adapter.write_extras(stage.folder)
    compile((stage.folder / "whetstone_rows.py").read_text(), "whetstone_rows.py", "exec")
    (stage.output / "run/checkpoints/step_20").mkdir(parents=True)
    assert started(tmp_path, trainer="prime_rl", config=fields)[0][-1] == "--resume"


def test_a_files_placeholders_are_replaced_in_its_own_form(tmp_path):
    (tmp_path / "c.json").write_text(json.dumps({"path": "{output}/x", "seed": "{seed}", "text": "{{kept}} ${too}"}))
    (tmp_path / "c.sh").write_text("train ${HOME} {model}\n")
    fields = {"command": ["sh", "{config}"], "version": "1", "result": "*"}
    _, stage = started(tmp_path, config=str(tmp_path / "c.json"), **fields)
    filled = json.loads((stage.folder / "c.json").read_text())
    assert filled == {"path": f"{stage.output}/x", "seed": 3, "text": "{kept} ${too}"}
    command, stage = started(tmp_path, config=str(tmp_path / "c.sh"), **fields)
    assert Path(command[1]).read_text() == "train ${HOME} /models/base\n"
