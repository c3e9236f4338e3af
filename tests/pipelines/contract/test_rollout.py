"""What crosses between a curriculum, the rollouts and evaluation."""

from __future__ import annotations

import subprocess
import sys

import toys
from hypothesis import given
from hypothesis import strategies as st
from method_toys import spec

from pipelines.contract.catalogue import bind, names
from pipelines.contract.rollout import GroupOutcome
from pipelines.data.records import Role, Stop, Trajectory

POLICY, DEMONSTRATION = int(Role.POLICY), int(Role.TEACHER_FORCED)


def row(role: int, score: float | None) -> Trajectory:
    return Trajectory(
        uid="0" * 32, group=0, tokens=[1, 2], role=[0, role], logp_old=[0.0, 0.0], max_tokens=4, stop=Stop.END, version=0,
        score=score, correct=None if score is None else score > 0,
    )  # fmt: skip


KIND = st.sampled_from([(POLICY, 1.0), (POLICY, 0.0), (POLICY, None), (DEMONSTRATION, 1.0), (DEMONSTRATION, None)])


@given(st.lists(KIND, max_size=12))
def test_only_what_the_policy_wrote_and_was_scored_is_evidence(kinds):
    outcome = GroupOutcome.of(3, [row(*kind) for kind in kinds])
    assert outcome.problem == 3
    assert outcome.correct == kinds.count((POLICY, 1.0))
    assert outcome.scored == outcome.correct + kinds.count((POLICY, 0.0))


def test_a_group_that_nobody_could_score_changes_no_curriculum():
    """It counted as all incorrect once; a demonstration beside it as correct."""
    for name in names("rlvr.curriculum"):
        curricula = [bind("rlvr.curriculum", spec("rlvr.curriculum", name)).fn for _ in range(2)]
        for curriculum in curricula:
            curriculum.setup(toys.setup_context(range(6)))
            proposed = curriculum.propose(6, 4)
            curriculum.observe([GroupOutcome(a.problem, 4, 2) for a in proposed])
        nothing = GroupOutcome.of(0, [row(POLICY, None), row(DEMONSTRATION, 1.0)])
        curricula[0].observe([nothing])
        curricula[1].observe([])
        assert curricula[0].state_dict() == curricula[1].state_dict(), name


def test_the_contract_needs_neither_torch_nor_the_loop():
    """Reading a recipe imports it, and evaluation plays episodes with it."""
    code = (
        "import sys, pipelines.contract.rollout, pipelines.contract.method, pipelines.contract.episode, pipelines.contract.provider\n"
        "print([m for m in sys.modules if m == 'torch' or m.startswith(('pipelines.rlvr', 'pipelines.engine'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
