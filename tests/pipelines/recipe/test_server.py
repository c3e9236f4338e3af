"""Which GPUs servers that a stage starts compute on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.recipe.server import Serve

EIGHT = [str(number) for number in range(8)]


def serve(count=1, *arguments, **settings):
    return Serve(count=count, arguments=list(arguments), **settings)


def test_servers_have_the_gpus_after_those_of_the_processes():
    assert serve(2).cards(6, EIGHT) == ["6", "7"]
    assert serve(2, "--tensor-parallel-size", "2").cards(4, EIGHT) == ["4,5", "6,7"]
    assert serve(1, "--tensor-parallel-size=2", "-pp", "2").cards(4, EIGHT) == ["4,5,6,7"]
    assert serve(1).cards(1, ["GPU-a", "GPU-b"]) == ["GPU-b"], "by the names that CUDA_VISIBLE_DEVICES has"


def test_too_few_gpus_are_shared_from_the_last_one_on():
    assert serve(2).cards(8, EIGHT) == ["7", "6"]
    assert serve(3).cards(1, ["0", "1"]) == ["1", "0", "1"]


@pytest.mark.parametrize(
    ("settings", "visible"), [({}, []), ({}, ["0"]), ({"command": ["env", "CUDA_VISIBLE_DEVICES=3", "vllm"]}, EIGHT)]
)
def test_servers_choose_for_themselves(settings, visible):
    assert Serve(**settings).cards(1, visible) is None


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.integers(2, 16))
def test_no_gpu_is_used_twice_where_there_are_enough(processes, count, each, machine):
    visible = [str(number) for number in range(machine)]
    cards = serve(count, "-tp", str(each)).cards(processes, visible)
    named = [card for group in cards for card in group.split(",")]
    assert len(cards) == count and set(named) <= set(visible)
    assert all(len(group.split(",")) == min(each, machine) for group in cards)
    if processes + count * each <= machine:
        assert len(set(named)) == count * each and not set(named) & set(visible[:processes])


def test_the_share_of_memory_is_read_in_both_forms():
    assert serve(1, "--gpu-memory-utilization", "0.4").has_memory_share
    assert serve(1, "--gpu-memory-utilization=0.4").has_memory_share
    assert not serve(1, "--max-model-len", "4096").has_memory_share
