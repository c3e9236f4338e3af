"""Hints for names that are not known: a misspelt one is recognised, another program's setting is not taken for one of ours."""

from __future__ import annotations

import pytest

from pipelines.base.errors import did_you_mean
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.recipe.read import preset_names
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.training import Optimizer

RLVR, OPTIMIZER, SAMPLING, MODEL = (list(each.model_fields) for each in (Rlvr, Optimizer, Sampling, Model))


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("promts", RLVR, "prompts"), ("group_sie", RLVR, "group_size"), ("stpes", RLVR, "steps"), ("epoch", RLVR, "epochs"),
        ("mini_batch", RLVR, "mini_batches"), ("checkpoint_select", RLVR, "checkpoint_selection"), ("mismtach", RLVR, "mismatch"),
        ("learn_rate", OPTIMIZER, "learning_rate"), ("warm-up", OPTIMIZER, "warmup"), ("gradnorm", OPTIMIZER, "max_grad_norm"),
        ("topp", SAMPLING, "top_p"), ("temprature", SAMPLING, "temperature"), ("temp", SAMPLING, "temperature"),
        ("pth", MODEL, "path"), ("dtypes", MODEL, "dtype"),
        ("reinforcepp", preset_names(), "reinforce_pp"), ("cipso", preset_names(), "cispo"),
        ("gea", ["gae", "grpo", "rloo"], "gae"), ("stf", ["curate", "sft", "rlvr"], "sft"),
    ],
)  # fmt: skip
def test_a_misspelt_name_is_recognised(word, known, meant):
    assert did_you_mean(word, known) == f"Did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ("patience", RLVR), ("deepspeed", RLVR), ("logging_steps", RLVR), ("gradient_accumulation_steps", RLVR),
        ("max_prompt_length", RLVR), ("value_loss", RLVR), ("quantization", MODEL), ("momentum", OPTIMIZER),
        ("presence_penalty", SAMPLING), ("kto", preset_names()), ("remax", preset_names()), ("raft", preset_names()),
        ("vtrace", preset_names()),
    ],
)  # fmt: skip
def test_a_name_of_something_else_has_the_list(word, known):
    """`patience` is not a misspelt `divergence`, nor `deepspeed` a `seed`; and whoever reads the list sees that there is none."""
    assert did_you_mean(word, known).startswith("Known: ")
