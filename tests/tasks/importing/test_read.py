"""Recognition, command lines, and what holds for every configuration: each field is mapped or listed, and nothing crashes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import configurations as own
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.base.errors import Problem, UserError
from pipelines.recipe import yaml_text
from tasks.importing import axolotl, open_r1, read, trl, verl
from tasks.importing.table import Field

VALUES: dict[str, Any] = {
    "number": st.sampled_from([0, 1, 0.5, 2, "1e-5", -1]), "whole": st.sampled_from([0, 1, 2, 8, 64, -1]), "flag": st.booleans(),
    "text": st.sampled_from(["token", "sequence", "grpo", "cosine", "no", "x y", "org/name"]),
    "texts": st.lists(st.sampled_from(["a", "b.c"]), max_size=2),
    "numbers": st.lists(st.sampled_from([0, 0.5, 1]), max_size=2), "section": st.just({"a": 1}), "sections": st.just([{"path": "org/x"}]),
    "any": st.sampled_from([None, True, "auto", 3, [1], {"a": [2]}]),
}  # fmt: skip
TABLES: dict[str, tuple[list[Field], dict[str, Any]]] = {
    "trl grpo": (trl.fields("grpo"), {"model_name_or_path": "org/m", "dataset_name": "org/d"}),
    "trl sft": (trl.fields("sft"), {"model_name_or_path": "org/m", "dataset_name": "org/d"}),
    "trl dpo": (trl.fields("dpo"), {"model_name_or_path": "org/m", "dataset_name": "org/d"}),
    "open-r1 grpo": (
        open_r1.fields("grpo"),
        # of the default rewards one has no counterpart
        {"model_name_or_path": "org/m", "dataset_name": "org/d", "reward_funcs": ["format"]},
    ),
    "open-r1 sft": (open_r1.fields("sft"), {"model_name_or_path": "org/m", "dataset_name": "org/d"}),
    "verl": (verl.fields(), {"actor_rollout_ref.model.path": "org/m", "data.train_files": "x.parquet"}),
    "axolotl": (axolotl.fields(), {"base_model": "org/m", "datasets": [{"path": "org/d", "type": "alpaca"}]}),
}


@pytest.mark.parametrize("table", TABLES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_field_is_mapped_or_listed(table, data):
    fields, needed = TABLES[table]
    chosen = data.draw(st.lists(st.sampled_from(fields), unique_by=lambda field: field.key, max_size=12))
    values = {data.draw(st.sampled_from(field.names)): data.draw(VALUES[field.kind]) for field in chosen} | {
        "no_such_field": 1
    }
    values = {name: value for name, value in values.items() if name not in needed} | needed
    trainer, _, method = table.partition(" ")
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = own.read(Path(folder), values, trainer=trainer, method=method or None)
        except (
            UserError
        ) as error:  # a value out of bounds, or fields that contradict each other: then one of theirs is named
            names = {name for field in fields for name in field.names} | {"--processes", "dataset_mixture"}
            assert any(name in str(error) for name in names), error
            return
    assert values.keys() <= own.kinds(result).keys()
    assert own.kinds(result)["no_such_field"] == "left_out"


@pytest.mark.parametrize("table", TABLES)
def test_all_defaults_at_once(table, tmp_path):
    """What has its default changes nothing, so no field without a counterpart is listed."""
    fields, needed = TABLES[table]
    trainer, _, method = table.partition(" ")
    values = {field.names[0]: field.default for field in fields if field.default is not None} | needed
    result = own.read(tmp_path, values, trainer=trainer, method=method or None)
    assert own.kinds(result).keys() == values.keys() and result.draft.left_out == []
    assert result.recipe == own.read(tmp_path, needed, trainer=trainer, method=method or None).recipe


@pytest.mark.parametrize("table", TABLES)
def test_every_field_without_a_counterpart_has_a_reason_and_a_way(table, tmp_path):
    fields, needed = TABLES[table]
    trainer, _, method = table.partition(" ")
    others = {"number": 0.25, "whole": 3, "flag": False, "text": "x", "texts": ["x"], "section": {"a": 1}, "any": "x"}
    values = {}
    for field in fields:
        if not field.to:
            value = not field.default if field.kind == "flag" and field.default is not None else others[field.kind]
            values[field.names[0]] = value
            if field.changes_nothing(value):
                del values[field.names[0]]
    values |= needed
    assert any(value is True for value in values.values())
    result = own.read(tmp_path, values, trainer=trainer, method=method or None)
    assert {each.field for each in result.draft.left_out} == values.keys() - needed.keys()
    assert all(each.why and each.instead for each in result.draft.left_out)


@pytest.mark.parametrize(
    ("config", "name", "trainer", "section"),
    [
        (own.TRL_GRPO, "a.yaml", "trl", "rlvr"), (own.TRL_SFT, "a.yaml", "trl", "sft"), (own.TRL_DPO, "a.yaml", "trl", "preference"),
        (own.OPEN_R1, "a.yaml", "open-r1", "rlvr"), (own.VERL, "a.sh", "verl", "rlvr"), (own.VERL_PPO, "a.yaml", "verl", "rlvr"),
        (own.AXOLOTL, "a.yaml", "axolotl", "sft"),
    ],
)  # fmt: skip
def test_recognised(tmp_path, config, name, trainer, section):
    draft = own.read(tmp_path, config, name=name).draft
    assert (draft.config.trainer, draft.section) == (trainer, section)


def test_a_folder_says_nothing_of_a_file(tmp_path):
    (tmp_path / "opened").mkdir()
    assert own.read(tmp_path / "opened", own.TRL_GRPO, name="a.yaml").draft.config.trainer == "trl"
    assert own.read(tmp_path, own.TRL_GRPO, name="Open-R1_grpo.yaml").draft.config.trainer == "open-r1"


def test_the_text_is_the_recipe_with_its_reasons(tmp_path):
    result = own.read(tmp_path, own.OPEN_R1)
    (tmp_path / "my.yaml").write_text(result.text)
    body = yaml_text.load(tmp_path / "my.yaml")
    assert body == result.draft.recipe
    head = result.text.partition("\nname:")[0]
    assert "tag_count is none of ours" in " ".join(head.replace("\n#", "").split()) and "rlvr.prompts" in head
    assert "prompts: 8  # per_device_train_batch_size, gradient_accumulation_steps" in result.text
    assert all(len(line) <= 140 for line in result.text.splitlines()[1:] if line.startswith("#"))


def test_overrides_come_last(tmp_path):
    words = [
        "--learning_rate",
        "5e-7",
        "--bf16",
        "false",
        "num_generations=8",
        "--reward_funcs",
        "a.b",
        "c.d",
        "--reward_weights=[1, 2]",
    ]
    result = own.read(tmp_path, own.TRL_GRPO, *words)
    rlvr = result.recipe.rlvr
    assert rlvr.optimizer.learning_rate == 5e-7 and rlvr.group_size == 8 and len(rlvr.reward["terms"]) == 2


def test_a_script_that_names_a_configuration(tmp_path):
    own.read(tmp_path, own.TRL_DPO, name="dpo.yaml")
    text = "accelerate launch --num_processes 8 -m trl.scripts.x\ntrl dpo --config dpo.yaml --beta 0.5\n"
    result = own.read(tmp_path, text, name="run.sh")
    assert result.recipe.stages["preference"].settings.loss["beta"] == 0.5


@pytest.mark.parametrize(
    "rest",
    [
        '"$@" 2>&1 | tee run.log',
        "> run.log",
        ">> run.log 2> errors.log",
        "&& echo done",
        "; echo --beta 1",
        "${@:2}",
        "&",
    ],
)
@pytest.mark.parametrize("config", ["trl dpo --config dpo.yaml --stop '<|end|>' --beta 0.5 ", "verl"])
def test_the_rest_of_a_line_gives_no_values(tmp_path, rest, config):
    own.read(tmp_path, own.TRL_DPO, name="dpo.yaml")
    if config != "verl":
        result = own.read(tmp_path, config + rest, name="run.sh")
        assert result.recipe.stages["preference"].settings.loss["beta"] == 0.5
        assert result.draft.config.values["stop"] == "<|end|>" and "echo" not in result.draft.config.values
        return
    line = "cd here && python3 -m verl.trainer.main_ppo data.train_files=a.parquet actor_rollout_ref.model.path=org/m data.seed=3 "
    result = own.read(tmp_path, f"{line}{rest} data.seed=4 x.y=z", name="run.sh")
    assert result.recipe.seed == 3 and "x.y" not in own.kinds(result)


def test_the_same_field_under_two_names(tmp_path):
    with pytest.raises(UserError, match=r"torch_dtype.*dtype"):
        own.read(tmp_path, own.TRL_GRPO | {"torch_dtype": "float32"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1", "not readable as YAML"),
        ("- 1", "expected fields"),
        ("colour: red", "--format"),
        ("model_name_or_path: x\ndataset_name: y", "--method"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, text, said):
    with pytest.raises(UserError, match=said):
        own.read(tmp_path, text, name="x.yaml")


def test_a_value_out_of_our_bounds_is_named_in_their_words(tmp_path):
    with pytest.raises(UserError, match=r"top_p \(rlvr\.sampling\.top_p\)"):
        own.read(tmp_path, own.TRL_GRPO | {"top_p": 1.5})


def test_an_error_in_their_words_is_the_same_error(tmp_path):
    draft = own.read(tmp_path, own.TRL_GRPO).draft
    problem = Problem(
        "rlvr.sampling.top_p", "too large", "Lower it.", {"type": "less_than_equal", "ctx": {"le": 1}}, "run 2"
    )
    (renamed,) = read.in_their_words(UserError(problems=[problem]), draft).problems
    assert renamed == replace(problem, field="trl's default of top_p (rlvr.sampling.top_p)")


def test_words_that_belong_to_no_field():
    with pytest.raises(UserError, match="belongs to no field"):
        read._overrides(["5"], "x")
