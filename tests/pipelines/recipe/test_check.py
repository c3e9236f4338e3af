"""Rules between methods: each is read off the cards and the table of columns, and says what to do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import names
from pipelines.recipe import check as rules
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.recipe.slots import SLOTS

LAKE = "{kind: environment, task: frozen_lake, size: 9}"
SUMS = "{kind: environment, task: worked_sums, size: 9}"
STEPS = "{kind: process_model, model: ./scorer, weight: 0.0}"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rlvr.reward=matchtir"], "rlvr.reward: matchtir pays turns, and rollout: single_turn has none"),
        (["rlvr.reward={kind: model, model: ./m, turns: true}"], "rlvr.reward: model pays turns"),
        (
            ["rlvr.reward={kind: gen_prm, model: m}"],
            r"gen_prm labels steps \(step_potential\), which nothing here reads",
        ),
        (
            ["rlvr.reward=[verifier, {kind: gen_prm, model: m}]", "rlvr.shaping=[laser]"],
            "gen_prm labels steps",
        ),
        (["rlvr.reward=[verifier, matchtir]"], "rlvr.reward: composite pays turns, and rollout: single_turn has none"),
        (
            [f"curate.sources=[{LAKE}]", "rlvr.rollout=stored_episodes", "rlvr.reward=[verifier, matchtir]"],
            "rlvr.reward: matchtir reads which tools were called, and rollout: stored_episodes takes",
        ),
        (["rlvr.advantage=w_reinforce", "rlvr.shaping=[laser]"], "laser changes the reward, which nothing here reads"),
        (
            ["rlvr.advantage=w_reinforce", "rlvr.divergence={kind: k3, where: reward}"],
            "rlvr.divergence: k3 changes the reward",
        ),
        (
            [
                f"curate.sources=[{LAKE}]",
                "rlvr.rollout=multi_turn",
                "rlvr.advantage=gigpo",
                "rlvr.filter=starpo_s",
                "rlvr.divergence={kind: k1, where: reward}",
            ],
            "rlvr.divergence: k1 changes the reward, which nothing here reads: advantage: gigpo",
        ),
        (
            ["rlvr.old_logp=trainer", "rlvr.credit=[{kind: masked_is, low: 3, high: 3}]"],
            "rlvr.credit: masked_is: no weight is between 3.0 and 3.0",
        ),
        (
            ["rlvr.old_logp=trainer", "rlvr.credit=[{kind: rejection, high: 0.9}]"],
            "rlvr.credit: rejection: high: 0.9 rejects where both agree",
        ),
        (
            ["rlvr.old_logp=trainer", "rlvr.credit=[{kind: rejection, measure: k3, low: 0.5}]"],
            "rlvr.credit: rejection: k3 is never negative",
        ),
        *(
            ([f"rlvr.credit=[{part}]"], f"{part} needs logp_sampler, which nothing here produces")
            for part in ("masked_is", "rejection", "m2po")
        ),
        (
            ["rlvr.objective=gspo", "rlvr.old_logp=trainer", "rlvr.credit=[masked_is]"],
            "clip, or set level: sequence of masked_is",
        ),
        (
            ["rlvr.objective=gspo", "rlvr.old_logp=trainer", "rlvr.credit=[truncated_is]"],
            "truncated_is corrects the ratio of each token, and gspo's ratio belongs to the whole sequence",
        ),
        (["rlvr.group_size=1", "rlvr.advantage=rloo"], "rloo compares the rollouts of a group"),
        (["rlvr.group_size=1", "rlvr.advantage=ngrpo"], "ngrpo compares the rollouts of a group"),
        (["rlvr.objective=prdp", "rlvr.divergence=k3"], r"rlvr.divergence: objective: prdp holds .* a second time"),
        (["rlvr.objective=prdp", "rlvr.divergence={kind: k1, where: reward}"], "k1 would do so a second time"),
        (["rlvr.divergence={kind: k3, weight: -0.1}"], r"rlvr.divergence.weight: -0.1 pays the policy for leaving"),
        (["rlvr.curriculum=self_curation", "rlvr.rollout=adhint"], "adhint puts solutions, hints or rewrites among"),
        (["rlvr.curriculum=self_curation", "rlvr.rollout=tree"], "rollout: tree makes branches of it"),
        (["rlvr.curriculum=self_curation", "rlvr.rollout=chain"], "chain draws continuations beside the answer"),
        (["rlvr.rollout=noisy", "rlvr.reward={kind: exprl, model: m}"], "rollout: noisy makes rows without any"),
        (
            ["rlvr.rollout=noisy", f"rlvr.reward=[verifier, {STEPS}]"],
            "process_model reads the tokens that the policy chose",
        ),
        (
            ["rlvr.rollout=demonstrated", "rlvr.reward={kind: exprl, model: m}"],
            "rollout: demonstrated makes rows without",
        ),
        (
            ["rlvr.reward={kind: exprl, model: m, most: 1}", "rlvr.shaping=[pspo_wrs]"],
            r"reward.most: .* pspo_wrs pays steps",
        ),
        (
            [
                f"rlvr.reward=[verifier, {STEPS[:-1]}, most: 1}}]",
                "rlvr.shaping=[clip_delta]",
                "rlvr.advantage=reinforce_pp",
            ],
            "shaping: clip_delta pays steps",
        ),
        (
            ["rlvr.rollout=multi_turn"],
            r"rlvr.rollout: multi_turn plays episodes, and the problems of curate.sources.0 \(pal",
        ),
        (
            [f"curate.sources=[{LAKE}]"],
            r"asks for single answers, and the problems of curate.sources.0 \(frozen_lake\)",
        ),
    ],
    ids=str,
)
def test_what_has_no_effect_or_no_meaning_is_refused(tmp_path, overrides, words):
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(toys.recipe(tmp_path), overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["rlvr.group_size=1", "rlvr.advantage=reinforce_pp"],
        ["rlvr.group_size=1", "rlvr.rollout=demonstrated"],
        ["rlvr.objective=clip", "rlvr.old_logp=trainer", "rlvr.credit=[truncated_is]"],
        ["rlvr.objective=gspo", "rlvr.old_logp=trainer", "rlvr.credit=[rejection, {kind: masked_is, level: sequence}]"],
        ["rlvr.advantage=w_reinforce", "rlvr.divergence={kind: k3, where: loss}"],
        ["rlvr.objective=prdp", "rlvr.divergence={kind: k3, weight: 0}"],
        ["rlvr.curriculum=self_curation"],
        *([f"presets=[{preset}]", "rlvr.sampling_schedule=dynamic_carry"] for preset in ("dph_rl", "r3", "pipo")),
        ["presets=[dapo_carry]"],
        ["rlvr.reward={kind: exprl, model: m, most: 1}", "rlvr.advantage=grpo"],
        ["rlvr.optimizer.warmup=16", "rlvr.mini_batches=4"],
        [f"curate.sources=[{LAKE}, {SUMS}]", "rlvr.rollout=multi_turn"],
        [f"curate.sources=[{SUMS}]"],
        [f"curate.sources=[{LAKE}]", "rlvr.rollout=multi_turn", "rlvr.advantage=gigpo", "rlvr.shaping=[soft_overlong]"],
        [
            f"curate.sources=[{LAKE}]",
            "rlvr.rollout=multi_turn",
            "rlvr.advantage=gigpo",
            "rlvr.reward=[verifier, gtpo_turn]",
        ],
    ],
    ids=str,
)
def test_what_has_is_not(tmp_path, overrides):
    check(read_recipe(toys.recipe(tmp_path), overrides))


def test_the_rules_name_no_method():
    """In code; a message may name one as an example of what to use."""
    import ast
    import inspect

    tree = ast.parse(inspect.getsource(rules))
    compared = [c.value for node in ast.walk(tree) if isinstance(node, ast.Compare)
                for c in ast.walk(node) if isinstance(c, ast.Constant)]  # fmt: skip
    methods = {name for slot in SLOTS for name in names(f"rlvr.{slot}")}
    assert not methods & {value for value in compared if isinstance(value, str)}


def test_a_few_steps_to_see_whether_it_runs_need_no_other_warmup(tmp_path):
    check(
        read_recipe(
            toys.recipe(tmp_path), ["sft.steps=2", "rlvr.steps=1", "sft.optimizer.warmup=10", "rlvr.optimizer.warmup=5"]
        )
    )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["rlvr.shaping=[goal_distance]"],
            r"goal_distance gives every row of a problem the same in all, and advantage: grpo",
        ),
        (["rlvr.shaping=[laplacian]", "rlvr.advantage=rloo"], "laplacian gives every row of a problem the same"),
        (["rlvr.shaping=[reward_cashing]", "rlvr.providers=[answer_log_prob]"], "reward_cashing gives every row"),
        (
            ["rlvr.shaping=[{kind: airs, terms: [novelty]}]", "rlvr.rollout=stored_episodes"],
            "airs learns from rows that",
        ),
        (
            ["presets=[pipo]", "rlvr.rollout=stored_episodes"],
            "rlvr.replay: pipo learns from rows that the policy has just drawn",
        ),
        (
            ["rlvr.divergence={kind: ares}", "rlvr.rollout=stored_episodes"],
            "rlvr.divergence: ares learns from rows that",
        ),
        (["rlvr.shaping=[{kind: goal_distance, discount: 0.9}]"], None),
        (["rlvr.shaping=[goal_distance]", "rlvr.advantage=gigpo"], None),
        (["rlvr.shaping=[goal_distance]", "rlvr.advantage=reinforce_pp"], None),
    ],
)
def test_a_part_that_could_change_nothing_is_refused(tmp_path, overrides, words):
    """What differences of a potential add up to is the start's, which the rows of a problem share."""
    recipe = read_recipe(toys.lake(tmp_path), overrides)
    if words is None:
        check(recipe)
        return
    with pytest.raises(RecipeError, match=words):
        check(recipe)


SHARDED = ["rlvr.full_copy=false", "rlvr.processes=2", "rlvr.mismatch.on_breach=warn",
           "rlvr.sampler={url: 'http://localhost:8000', weights: w}"]  # fmt: skip


@pytest.mark.parametrize(
    ("asking", "name"),
    [
        (["rlvr.monitors=[answer_mass]"], "answer_mass"),
        (["rlvr.providers=[{kind: prompt_log_probs}]", "rlvr.credit=[progrpo]"], "prompt_log_probs"),
        (["rlvr.reward=ra3"], "ra3"),
        (["rlvr.reward=[verifier, ra3]"], "ra3"),
        (["rlvr.providers=[{kind: self_teacher}]", "rlvr.credit=[distillation]"], "self_teacher"),
    ],
)
def test_a_part_that_asks_the_policy_needs_its_full_copy(tmp_path, asking, name):
    with pytest.raises(RecipeError, match=rf"rlvr\.full_copy: {name} .* asks the policy itself .* Leave full_copy out"):
        check(read_recipe(toys.recipe(tmp_path), [*SHARDED, *asking]))
    for allowed in ([*SHARDED], [*SHARDED, *asking, "rlvr.processes=1"], [*asking, "rlvr.processes=2"]):
        check(read_recipe(toys.recipe(tmp_path), allowed))


def test_a_part_that_asks_another_model_needs_no_copy_of_the_policy(tmp_path):
    told = "rlvr.providers=[{kind: self_teacher, weights: start}]"
    check(read_recipe(toys.recipe(tmp_path), [*SHARDED, told, "rlvr.credit=[distillation]"]))


@pytest.mark.slow
def test_whoever_asks_the_scoring_hook_about_the_policy_says_so():
    """A call of the hook that names no model asks the policy."""
    silent = []
    for path in sorted(Path("pipelines").rglob("*.py")):
        tree = ast.parse(path.read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
        asked = [
            call
            for call in calls
            if call.func.attr in ("log_probs", "statistics") and ast.unparse(call.func.value).endswith("scorer")
        ]
        of_policy = [call for call in asked if "model" not in {keyword.arg for keyword in call.keywords}]
        says = any(
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("asks_policy")
            for node in ast.walk(tree)
        )
        silent += [path] if of_policy and not says else []
    assert silent == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["sft.lora={load_in_4bit: true}", "sft.processes=2"],
            r"sft\.lora\.load_in_4bit: .* over 2 processes\. .* set processes: 1",
        ),
        (["rlvr.lora={load_in_4bit: true}", "rlvr.processes=3"], r"rlvr\.lora\.load_in_4bit: .* over 3 processes"),
        (
            ["rlvr.lora={load_in_4bit: true}", "rlvr.sampler={url: 'http://localhost:8000', weights: w}"],
            r"rlvr\.lora\.load_in_4bit: a decoding server .* leave `sampler` out",
        ),
        (["rlvr.full_copy=false"], r"rlvr\.full_copy: decoding in the stage's own processes .* or add a `sampler`"),
        (
            ["rlvr.full_copy=false", "rlvr.lora={rank: 2}", "rlvr.sampler={url: 'http://localhost:8000', weights: w}"],
            r"rlvr\.full_copy: adapters are merged into a full copy",
        ),
        (["sft.lora={load_in_4bit: true, use_dora: true}"], r"sft\.lora: use_dora needs the lengths of matrices"),
        (["sft.lora={quantize: 4bit}"], r"sft\.lora\.quantize: no such field\. It is called load_in_4bit here"),
    ],
)
def test_a_base_in_four_bits_is_refused_where_it_cannot_be(tmp_path, overrides, message):
    with pytest.raises(RecipeError, match=message):
        check(read_recipe(toys.recipe(tmp_path), overrides))


def test_the_library_of_a_base_in_four_bits_is_in_the_key(tmp_path):
    read = read_recipe(toys.recipe(tmp_path), ["sft.lora={load_in_4bit: true}"])
    check(read)
    assert "bitsandbytes" in read.node("sft").kind.reads(read.node("sft")).libraries
    assert "bitsandbytes" not in read.node("rlvr").kind.reads(read.node("rlvr")).libraries
