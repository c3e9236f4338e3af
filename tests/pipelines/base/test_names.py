"""Runs are called after what was set, shortly and without secrets."""

from __future__ import annotations

import subprocess
import sys

from pipelines.base import names


def test_an_override_of_presets_stands_in_place_of_the_recipes():
    assert names.named("toy", ["dapo"], ["presets=[grpo, kl]"]) == "grpo · kl"
    assert names.named("toy", ["dapo"], ["presets=[]"]) == "toy"


def test_what_changes_no_result_and_secrets_are_not_in_a_name():
    told = names.named("toy", [], ["tracking.experiment=x", "threads=2", "model.path=https://ann:pw@host/model"])
    assert told == "model.path https://***@host/model"


def test_seeds_of_recipe_and_stage_are_told_once():
    assert names.named("toy", ["gspo"], ["seed=1", "rlvr.seed=1"]) == "gspo · seed 1"
    assert names.named("toy", [], ["seed=1", "rlvr.seed=2"], seed=9) == "toy · seed 1, 2"


def test_a_long_value_is_cut():
    told = names.named("toy", [], [f"rlvr.system_prompt={'long ' * 30}", *(f"sft.field{n}=1" for n in range(40))])
    assert "…" in told and len(told) == names.LONGEST_NAME


def test_it_imports_nothing_heavy():
    script = (
        "import sys, pipelines.base.names; sys.exit(bool({'yaml', 'pydantic', 'numpy', 'mlflow'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
