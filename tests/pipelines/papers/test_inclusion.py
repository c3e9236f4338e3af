"""What the slots' folders keep, and what lives with its paper: the rule of `pipelines.papers`, counted."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict

import pytest
import toys
import yaml

from pipelines import environments, papers, verifiers
from pipelines.contract import catalogue
from pipelines.recipe.read import PRESETS, preset_names
from pipelines.recipe.slots import MONITORS, SLOTS
from pipelines.recipe.stage_kind import stage_kinds

PLACES = [
    *(f"rlvr.{slot}" for slot in SLOTS),
    "rlvr.providers",
    *(s for kind in stage_kinds().values() for s in kind.slots),
    MONITORS,
]
SHARED_BY = 3
"""Papers whose presets use a part that nobody knows by name."""
KNOWN = {
    "rlvr.advantage": "grpo gae rloo reinforce_pp reinforce_pp_baseline gigpo as_is gdpo gpg grpo_passk maxrl opo",
    "rlvr.objective": "reinforce clip clip_cov cispo dppo dro gmpo gspo kl_cov sapo vespo",
    "rlvr.credit": "whiten truncated_is masked_is rejection distillation high_entropy",
    "rlvr.divergence": "k1 k2 k3 adaptive_k1",
    "rlvr.auxiliary_loss": "adaptive_entropy entropy",
    "rlvr.loss_aggregation": "row_mean token_mean fixed_length",
    "rlvr.shaping": "soft_overlong icm rnd ngu re3 ride e3b",
    "rlvr.filter": "all_rows mixed correct",
    "rlvr.curriculum": "uniform mixture",
    "rlvr.prompting": "plain",
    "rlvr.rollout": "single_turn multi_turn demonstrated stored stored_demonstrated stored_episodes",
    "rlvr.reward": "verifier composite function model judge process_model",
    "rlvr.sampling_schedule": "single dynamic dynamic_carry",
    "rlvr.replay": "no_replay",
    "rlvr.providers": "critic reference hidden_statistics teacher",
    "sft.loss": "cross_entropy dft",
    "preference.loss": "alphapo aot apo bco cpo discopop dpo exo f_dpo hinge ipo kto ld_dpo mpo nca orpo robust_dpo rpo simpo sppo tpo wpo",
    "reward_model.loss": "bradley_terry step_bce",
    MONITORS: "echo_trap entropy_collapse entropy_explosion flat_loss flat_reward instability kl_budget length_drift length_reward metric "
    "mismatch_growth no_progress repetition reward_against_verifier reward_hacking truncation",
}
"""What a newcomer knows by name from TRL, verl or a textbook, or what is the neutral choice of a slot, or watches by default."""


def _kinds(value, slot=""):
    """(slot, name) of everything that a preset may choose."""
    if isinstance(value, dict):
        if isinstance(value.get("kind"), str):
            yield slot, value["kind"]
        for key, inner in value.items():
            yield from _kinds(inner, key if key in (*SLOTS, "providers", "monitors") else slot)
    elif isinstance(value, list):
        for inner in value:
            yield from _kinds(inner, slot)
    elif isinstance(value, str):
        yield slot, value


def users():
    """(slot, name) → papers of the presets that use it."""
    using = defaultdict(set)
    for preset in preset_names():
        body = yaml.safe_load((PRESETS / f"{preset}.yaml").read_text())
        for slot, name in _kinds(body):
            using[slot, name].add(str(body.get("paper")))
    return using


def own(slot):
    return {path.stem for path in catalogue.folder(slot).glob("*.py") if not path.stem.startswith("_")}


@pytest.mark.parametrize("slot", PLACES)
def test_the_core_keeps_what_is_known_or_shared(slot):
    using, known = users(), set(KNOWN.get(slot, "").split())
    assert known <= own(slot), "a known method is gone"
    for name in own(slot) - known:
        assert len(using[slot.split(".")[-1], name]) >= SHARED_BY, (
            f"{slot}: {name} belongs to its paper, in pipelines/papers"
        )


def test_every_part_of_a_paper_is_in_the_table_and_nothing_else_is():
    listed = defaultdict(set)
    for methods in papers.PARTS.values():
        for target in methods.values():
            module, _, attribute = target.partition(":")
            listed[module].add(attribute)
    for slot, methods in papers.PARTS.items():
        for name in methods:
            if slot in PLACES:
                catalogue.load(slot, name)
    root = toys.ROOT / "pipelines" / "papers"
    for path in root.rglob("*.py"):
        module = ".".join(path.relative_to(toys.ROOT).with_suffix("").parts).removesuffix(".__init__")
        cards = {
            node.name
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and any("method(" in ast.unparse(decorator) for decorator in node.decorator_list)
        }
        assert cards <= listed[module], (
            f"{path.name}: {cards - listed[module]} are not in PARTS of pipelines/papers/__init__.py"
        )


def test_the_parts_of_one_file_or_folder_are_of_one_paper():
    of = defaultdict(set)
    for slot in set(papers.PARTS) & set(PLACES):
        for name, target in papers.PARTS[slot].items():
            of[target.partition(":")[0].split(".")[2]].add(catalogue.load(slot, name).card.paper)
    assert len(of) > 100
    for paper, cards in of.items():
        assert len(cards - {"folklore"}) <= 1, f"{paper} holds parts of {sorted(cards)}"


def test_environments_and_verifiers_of_papers_are_found_by_name():
    for name in papers.PARTS["environments"]:
        assert name in environments.known() and environments.make(name)
    for name in papers.PARTS["verifiers"]:
        assert name in verifiers.known() and callable(verifiers.load(name).verify)


def test_an_environment_of_a_paper_loads_no_torch():
    """Curation plays it: a folder's `__init__` imports nothing, so that an environment does not bring the paper's methods along."""
    code = "import sys; from pipelines import environments; " + "".join(
        f"environments.make({name!r}); " for name in papers.PARTS["environments"]
    )
    subprocess.run([sys.executable, "-c", code + "sys.exit('torch' in sys.modules)"], check=True, cwd=toys.ROOT)
