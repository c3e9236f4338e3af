"""Errors as records of field, problem and fix; and hints for names that are not known, near or foreign."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.base.errors import DataError, Problem, RecipeError, UserError, did_you_mean, out_of_memory
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
        ("max_prompt_length", RLVR), ("value_loss", RLVR), ("quantization", MODEL), ("nesterov", OPTIMIZER),
        ("presence_penalty", SAMPLING), ("kto", preset_names()), ("raft", preset_names()),
        ("vtrace", preset_names()),
    ],
)  # fmt: skip
def test_a_name_of_something_else_has_the_list(word, known):
    """`patience` is not a misspelt `divergence`, nor `deepspeed` a `seed`; and whoever reads the list sees that there is none."""
    assert did_you_mean(word, known).startswith("Known: ")


TEXT = st.text(max_size=12)
"""Any text: colons, full stops and line ends too, none of which may move from one part of a record to another."""


@given(field=TEXT, problem=TEXT, fix=TEXT)
def test_the_parts_of_an_error_are_those_that_it_was_given(field, problem, fix):
    for error in (UserError(field, problem, fix), UserError(field, problem, fix=fix)):
        assert error.problems == [Problem(field, problem, fix)]
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(again) is UserError and again.problems == error.problems and str(again) == str(error)
    assert Problem.of_record(Problem(field, problem, fix, {"type": "x"}).record()) == Problem(
        field, problem, fix, {"type": "x"}
    )


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RecipeError("rlvr.steps", "-1 is below 1", "Choose more."), "rlvr.steps: -1 is below 1. Choose more."),
        (RecipeError("rlvr.steps", "is it 1?", "Choose more."), "rlvr.steps: is it 1? Choose more."),
        (RecipeError("no steps.", fix="Choose some."), "no steps. Choose some."),
        (DataError("x.jsonl", "line 3 is no JSON"), "x.jsonl: line 3 is no JSON"),
        (DataError("nothing at all"), "nothing at all"),
    ],
)
def test_the_line_of_an_error(error, line):
    assert str(error) == line


@pytest.mark.parametrize(
    ("field", "moved"),
    [
        ("rlvr.steps", "short.steps"), ("rlvr", "short"), ("--set rlvr.steps", "--set short.steps"), ("rlvrs.steps", "rlvrs.steps"),
        ("--set rlvr.sampling: temperature", "--set short.sampling: temperature"),
        ("model.rlvr.steps", "model.rlvr.steps"), ("", ""),
    ],
)  # fmt: skip
def test_an_error_of_a_kind_becomes_one_of_a_stage(field, moved):
    error = RecipeError(field, "rlvr.steps: is said of rlvr.steps", "Set rlvr.steps.")
    assert error.moved("rlvr", "short") is error
    assert error.problems == [Problem(moved, "rlvr.steps: is said of rlvr.steps", "Set rlvr.steps.")]


def test_an_error_of_a_part_becomes_one_of_its_section():
    assert [UserError(*parts).inside("a.0").problems[0].field for parts in (["x", "no"], ["no"])] == ["a.0.x", "a.0"]


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True), (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA error: out of memory"), True), (OSError(12, "Cannot allocate memory"), True),
        (ValueError("CUDA error: out of memory"), False), (RuntimeError("a bug"), False),
    ],
)  # fmt: skip
def test_memory_that_ran_out(error, memory):
    outer = RuntimeError("outer")
    outer.__cause__ = error
    assert out_of_memory(error) is out_of_memory(outer) is memory
