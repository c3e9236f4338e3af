"""Batches and calls that tests of several slots share."""

from __future__ import annotations

import torch
import toys
from toys import columns_of

from pipelines.contract.catalogue import bind
from pipelines.data.records import Stop, Trajectory


def run_method(slot, spec, batch, **more):
    return bind(f"rlvr.{slot}", spec)(columns_of(batch) | more)


def with_demonstrations(seed):
    """Four groups of three rollouts and a demonstration, which is the last of them."""
    batch = toys.batch(rows=16, groups=4, seed=seed)
    batch.group = torch.arange(16) // 4
    demo = torch.arange(16) % 4 == 3
    batch.teacher_forced = batch.mask & demo[:, None]
    draw = torch.Generator().manual_seed(seed)
    batch.reward = torch.where(demo, 1.0, torch.randint(0, 3, (16,), generator=draw) / 2)
    batch.correct = (batch.reward >= 1).float()
    return batch, demo


REQUIRED = {
    "reward.length": {"target": 5}, "mixture": {"shares": {"a": 1, "b": 3}},
    "composite": {"terms": [{"kind": "verifier"}]}, "function": {"path": "operator:length_hint"}, "judge": {"model": "m"},
    "model": {"model": "folder/rm"}, "ppr": {"model": "m"}, "semantic": {"encoder": "tiny random encoder"},
    "critiqued_model": {"model": "folder/rm"}, "drlc": {"model": "m"}, "reward.exprl": {"model": "m"}, "gen_prm": {"model": "m"},
    "process_model": {"model": "folder/rm"}, "states": {"model": "folder/rm"}, "agent_prm": {"model": "folder/rm"},
    "ella": {"environment": "frozen_lake"}, "calm": {"model": "m"},
    "roboclip": {"encoder": "tiny random encoder", "demonstration": "up"},
    "uvd": {"encoder": "tiny random encoder", "demonstration": ["at the start", "half way", "at the goal"]},
    "contrasting_goals": {"encoder": "tiny random encoder", "wanted": "at the goal", "unwanted": "in a hole"},
    "hire": {"terms": [{"kind": "novelty", "scope": "global"}, "elliptical"]}, "airs": {"terms": [{"kind": "novelty", "scope": "global"}]},
    **{name: {"updates": 2} for name in ("icm", "e3b", "ngu", "ride")},
}  # fmt: skip
"""Settings of the methods that have no default, or whose default only costs time where laws are tried."""


def spec(slot, name):
    """The method as a recipe would name it, with what has no default."""
    return {"kind": name, **REQUIRED.get(f"{slot}.{name}", REQUIRED.get(name, {}))}


def answer(uid, group, text, **more):
    return Trajectory(
        uid=uid, group=group, tokens=[1, 5, 2], role=[0, 3, 3], logp_old=[0.0, -1.0, -1.0], max_tokens=4, stop=Stop.END,
        version=0, text=text, **more,
    )  # fmt: skip


def rows_of(batch, group):
    return [r for r in range(len(batch.group)) if int(batch.group[r]) == group]
