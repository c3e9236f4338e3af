"""What a recipe's field types cannot say: rules that hold between methods, and files that must exist.

A rule names no method: what it has to know stands on the methods' cards and in the table of columns.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.base.errors import ModelError, RecipeError
from pipelines.contract.card import Bound
from pipelines.contract.columns import COLUMNS, HOOK_PHASE, Phase, phase_of
from pipelines.contract.method import Method
from pipelines.contract.scorer import POLICY
from pipelines.recipe import settings as s
from pipelines.recipe.check_monitors import check_monitors
from pipelines.recipe.corrected import check_staleness, check_window
from pipelines.recipe.model_path import ADAPTER_CONFIG, CLASSIFIER, PLAIN, architecture_of, gguf_of, made_as
from pipelines.recipe.read import Recipe
from pipelines.recipe.slots import bind_monitors, bind_providers, bind_slots, bound_list, column_options, learning
from pipelines.recipe.stage_kind import BASE, MASKED_MODEL, MODEL, Node, in_its_code
from pipelines.recipe.vision_checks import check_vision

OF_CHOSEN_TOKENS = ("step_potential", "token_reward")
"""Columns that a reward makes of the tokens which the policy chose."""


def check(recipe: Recipe) -> None:
    """What the field types cannot say: methods, their needs, impossible combinations, files that must exist.

    Raises:
        RecipeError: the reason and the fix.
    """
    for node in recipe.nodes():
        check_stage(node)
    check_base(recipe)


def check_stage(node: Node) -> None:
    """What the field types of one stage cannot say, under its own name.

    Raises:
        RecipeError: the reason and the fix.
    """
    check_vision(node)
    try:
        with in_its_code(node.kind):
            node.kind.check(node)
    except RecipeError as error:
        raise error.moved(node.kind.name, node.name) from None


def methods(node: Node) -> None:
    """The chosen methods exist, have what they need and fit each other.

    Raises:
        RecipeError: the reason and the fix.
    """
    rl: s.Rlvr = node.settings
    bound = bind_slots(rl)
    chosen = bound_list(bound)
    providers = bind_providers(rl, chosen)
    _check_needs(rl, bound, chosen, providers)
    _check_providers(rl, bound, providers)
    if not rl.by_source:  # whose rules check the losses of each source
        check_losses(bound)
    _check_comparisons(rl, bound)
    _check_rewards(bound, chosen, providers)
    _check_steps(bound)
    _check_idle(bound, chosen)
    _check_parts(node, bound | {"providers": providers})
    column_options(chosen)
    _check_server(rl, bound)
    _check_copy(rl, chosen + providers)
    check_staleness(rl, bound, chosen)
    check_window(rl, bound, chosen)
    check_monitors("rlvr", rl, {column for method in chosen for column in method.needs})
    if rl.sampling.temperature == 0:
        raise RecipeError("rlvr.sampling.temperature", "0 is greedy; RL needs to explore", "Use a value above 0.")


def _check_needs(rl: s.Rlvr, bound: dict[str, Any], methods: list[Bound], providers: list[Bound]) -> None:
    """Every column that is read is provided, in time; every part that a part requires is there."""
    available = produced(methods)
    available |= {name for name, column in COLUMNS.items() if column.when is not None and column.when(rl)}
    available |= {column for provider in providers for column in provider.card.makes}
    wanted = [(method, method.needs) for method in methods] + [(each, each.fn.reads) for each in providers]
    for method, needs in wanted:
        lacking = [c for c in needs if (COLUMNS[c].part or COLUMNS[c].when is not None) and c not in available]
        if lacking:
            raise RecipeError(
                method.slot,
                f"{method.name} needs {', '.join(lacking)}, which nothing here produces (the rollout is {bound['rollout'].name}).",
                COLUMNS[lacking[0]].hint,
            )
    for method in methods:
        _check_phases(method)
        for slot, name in [pair for part in (method, *method.fn.parts()) for pair in part.card.requires]:
            if bound[slot] is None or bound[slot].name != name:
                raise RecipeError(
                    method.slot, f"{method.name} needs {slot}: {name} beside it", "Add that, or choose another method."
                )


def _check_parts(node: Node, bound: dict[str, Any]) -> None:
    """Every part's own rule, and those of the parts that it is made of."""
    for part in bound_list(bound):
        inner = part.fn.parts() if isinstance(part.fn, Method) else ()
        for each in (part, *inner):
            if each.card.check is not None:
                each.card.check(each, bound, node)


def _check_providers(rl: s.Rlvr, bound: dict[str, Any], providers: list[Bound]) -> None:
    """Providers that are warmed up leave steps to the policy, and the terms of the reward that they learn are there."""
    terms = bound["reward"].fn.term_names
    for each in providers:
        unknown = [name for name in each.fn.reward_terms if name not in terms]
        if unknown:
            known = f"Its terms are {', '.join(terms)}." if terms else "Give it as a list of terms that are added."
            raise RecipeError(
                "rlvr.providers",
                f"{each.name} asks for the term {unknown[0]} of the reward, which is not a sum with such a term",
                known,
            )
        if each.fn.warm_up >= rl.steps:
            raise RecipeError(
                "rlvr.providers",
                f"the policy stands still while {each.name} is warmed up, for {each.fn.warm_up} steps, and steps is {rl.steps}",
                "Lower warm_up, or raise steps.",
            )


def produced(methods: list[Bound]) -> set[str]:
    """Columns that the methods, and the parts they are made of, produce."""
    return {column for method in methods for part in (method, *method.fn.parts()) for column in part.card.makes}


def check_losses(bound: dict[str, Any]) -> None:
    """The stage's objective and divergence, or those of one source, fit each other and the credit.

    Raises:
        RecipeError: the reason and the fix.
    """
    _check_ratios(bound)
    _check_reference(bound)


def _check_ratios(bound: dict[str, Any]) -> None:
    """A divergence has a correct gradient where it is placed, and a token-level correction has an objective with a token-level ratio."""
    divergence, objective = bound["divergence"], bound["objective"]
    if divergence is not None and divergence.where not in divergence.card.legal_in:
        raise RecipeError(
            "rlvr.divergence",
            f"{divergence.name} in the {divergence.where} gives an incorrect gradient; it is correct in: "
            f"{', '.join(divergence.card.legal_in)}",
            "Set `where` or choose another estimator.",
        )
    for credit in bound["credit"]:
        of_row = "level" in credit.settings and credit.ratio_level != "token"  # one weight a row suits every objective
        levels = (credit.ratio_level, objective.card.ratio_level)
        if all(levels) and levels[0] != levels[1] and not of_row:
            hint = f"set level: sequence of {credit.name}" if "level" in credit.settings else f"leave {credit.name} out"
            raise RecipeError(
                "rlvr.credit",
                f"{credit.name} corrects the ratio of each {levels[0]}, and {objective.name}'s ratio belongs to the whole {levels[1]}",
                f"Use an objective with a ratio per {levels[0]}, such as objective: clip, or {hint}.",
            )


def _check_reference(bound: dict[str, Any]) -> None:
    """An objective that compares with the reference itself has its distance in the loss already."""
    divergence, objective = bound["divergence"], bound["objective"]
    if divergence is not None and divergence.weight > 0 and "logp_ref" in objective.takes:
        raise RecipeError(
            "rlvr.divergence",
            f"objective: {objective.name} holds the policy near the reference by itself, and {divergence.name} would do so a second time",
            "Set divergence: null, or its weight to 0 to measure the distance only.",
        )


def _check_comparisons(rl: s.Rlvr, bound: dict[str, Any]) -> None:
    """Groups keep the reward differences that the advantage or the objective compares."""
    row_filter, advantage, rollout = bound["filter"], bound["advantage"], bound["rollout"]
    if row_filter.card.zero_variance_groups == "drops" and advantage.card.zero_variance_groups == "learns":
        raise RecipeError(
            "rlvr.filter",
            f"{row_filter.name} removes the groups without reward differences that {advantage.name} learns from",
            "Use filter: all_rows, or another advantage.",
        )
    sizes = {f"by_source.{name}.group_size": own.group_size for name, own in rl.by_source.items()}
    ones = [field for field, size in {"group_size": rl.group_size, **sizes}.items() if size == 1]
    objectives = bound["objective"].fn.parts() or [bound["objective"]]
    advice = [(advantage, "advantage: reinforce_pp"), *((each, "objective: clip") for each in objectives)]
    for part, other in advice:
        compares = "group" in part.takes and not part.card.group_of_one
        if ones and compares and not rollout.card.sets_group_size:
            raise RecipeError(
                f"rlvr.{ones[0]}",
                f"{part.name} compares the rollouts of a group, and a group of 1 has nothing to compare with",
                f"Use 2 or more, or {other}.",
            )


def _check_rewards(bound: dict[str, Any], methods: list[Bound], providers: list[Bound]) -> None:
    """A part that changes the reward needs one that reads it; what a rollout has scored stays so."""
    rollout, reward = bound["rollout"], bound["reward"]
    if rollout.card.scores_rows and reward.fn.rescores:
        raise RecipeError(
            "rlvr.reward",
            f"rollout: {rollout.name} scores its rows itself, and {reward.name} with these settings would score them again",
            f"Use reward: {reward.name} without any, or another rollout.",
        )
    if reward.fn.pays_turns and "turn_reward" not in rollout.card.makes:
        raise RecipeError(
            "rlvr.reward",
            f"{reward.name} pays turns, and rollout: {rollout.name} has none",
            "Use a rollout with turns: rollout: multi_turn.",
        )
    readers = [part for part in (reward, *reward.fn.parts()) if part.fn.reads_calls]
    if readers and rollout.fn.reads_episodes:
        raise RecipeError(
            "rlvr.reward",
            f"{readers[0].name} reads which tools were called, and rollout: {rollout.name} takes episodes without them",
            "Use rollout: multi_turn, or another reward.",
        )
    advantage = bound["advantage"]
    asked = [each for each in providers if set(each.card.makes) & set(advantage.needs)]
    wanted = [set(method.needs) for method in learning(methods)]
    wanted += [set(provider.fn.reads) for provider in asked if "reward" in provider.fn.reads]
    of_tokens = any({"reward", "token_penalty", "immediate_reward"} & needs for needs in wanted)
    of_turns = any("turn_reward" in needs for needs in wanted)
    payers = [method for method in methods if "token_reward" in produced([method])]
    if payers and not any({"token_penalty", "immediate_reward"} & needs for needs in wanted):
        raise RecipeError(
            payers[0].slot,
            f"{payers[0].name} pays single tokens, and advantage: {advantage.name} compares whole rows",
            "Use an advantage that reads rewards of tokens: reinforce_pp, or gae with a critic.",
        )
    divergence = bound["divergence"]
    penalties = [divergence] if divergence is not None and divergence.where == "reward" else []
    changing = [*([] if of_turns else bound["shaping"]), *penalties]
    for method in [] if of_tokens else changing:
        raise RecipeError(
            method.slot,
            f"{method.name} changes the reward, which nothing here reads: advantage: {advantage.name} learns from other columns "
            f"({', '.join(advantage.takes)})",
            f"Leave {method.name} out, or use an advantage that reads reward.",
        )


def _check_steps(bound: dict[str, Any]) -> None:
    """The tokens of a row belong to turns or steps of one kind."""
    parts = [bound["rollout"], bound["reward"], *bound["reward"].fn.parts()]
    makers = [part for part in parts if "turn" in part.card.makes]
    if len(makers) > 1:
        raise RecipeError(
            makers[1].slot,
            f"{makers[1].name} tells the steps of single answers apart, and the rows have the turns or steps of "
            f"{makers[0].slot.removeprefix('rlvr.')}: {makers[0].name} already",
            "Leave one of the two out.",
        )
    rollout = bound["rollout"]
    readers = [part for part in parts if part.slot == "rlvr.reward" and set(OF_CHOSEN_TOKENS) & set(part.card.makes)]
    if readers and rollout.card.forces_rows:
        raise RecipeError(
            "rlvr.reward",
            f"{readers[0].name} reads the tokens that the policy chose, and rollout: {rollout.name} makes rows without any, which would "
            "go unscored or unpaid",
            "Use another reward, or another rollout.",
        )


def _check_idle(bound: dict[str, Any], methods: list[Bound]) -> None:
    """A rollout that draws nothing has no part that learns from what was just drawn."""
    rollout = bound["rollout"]
    for part in methods:
        if rollout.fn.reads_samples and "on_policy" in part.needs:
            raise RecipeError(
                part.slot,
                f"{part.name} learns from rows that the policy has just drawn, and rollout: {rollout.name} draws none",
                "Choose another part, or use a rollout that draws.",
            )


def _check_phases(method: Bound) -> None:
    """A method is only called with columns that exist in its phase."""
    phase = phase_of(method.slot)
    columns_called_with = set(method.takes)
    if (
        method.where == "reward"
    ):  # a divergence in the reward is called early, with the sampler's log-probabilities as `logp`
        phase, columns_called_with = Phase.ADVANTAGE, columns_called_with - {"logp"}
    uses = [(column, phase) for column in columns_called_with] + [(column, HOOK_PHASE) for column in method.card.reads]
    for column, use_phase in sorted(uses):
        if COLUMNS[column].phase > use_phase:
            raise RecipeError(
                method.slot,
                f"{method.name} reads {column}, which comes later: it is called in the phase {use_phase.name.lower()}, and "
                f"{COLUMNS[column].provider} provides {column} in the phase {COLUMNS[column].phase.name.lower()}",
                "Use a part of a later slot, or a method that does not read it.",
            )


def _check_server(rl: s.Rlvr, bound: dict[str, Any]) -> None:
    """What a decoding server cannot do, and what only one can."""
    if not rl.full_copy and (rl.sampler is None or rl.lora is not None):
        raise RecipeError(
            "rlvr.full_copy",
            "adapters are merged into a full copy"
            if rl.lora
            else "decoding in the stage's own processes reads the full copy",
            "Leave full_copy out" + ("." if rl.lora else ", or add a `sampler`."),
        )
    if rl.sampler is None:
        return
    if rl.sampling.adaptive is not None:
        raise RecipeError(
            "rlvr.sampler", "a server has one temperature for all tokens, and sampling.adaptive sets it per token."
        )
    if rl.lora is not None and rl.lora.use_dora:
        raise RecipeError(
            "rlvr.lora.use_dora",
            "adapters are pushed to a decoding server (`sampler`), and vLLM cannot load those of DoRA",
            "Leave use_dora out (use_rslora works), or leave `sampler` out.",
        )
    if rl.lora is not None and rl.sampler.weight_transfer in ("gloo", "nccl"):
        raise RecipeError(
            "rlvr.sampler.weight_transfer",
            "whole weights are sent so, and with lora the adapters alone are pushed",
            "Leave it out.",
        )
    with_entropy = [method.name for method in bound_list(bound) if "entropy_old" in method.needs]
    if with_entropy:
        raise RecipeError("rlvr.sampler", f"a server reports no entropies, which {with_entropy[0]} needs.")


def _check_copy(rl: s.Rlvr, parts: list[Bound]) -> None:
    """Where no process has the policy whole, nothing asks it about texts."""
    if rl.full_copy or rl.processes == 1:
        return
    monitors = [each.method for each in bind_monitors("rlvr", rl.monitors)]
    inner = [each for part in parts for each in getattr(part.fn, "parts", tuple)()]
    asking = [part for part in (*parts, *inner, *monitors) if _asks_policy(part)]
    if asking:
        raise RecipeError(
            "rlvr.full_copy",
            f"{asking[0].name} ({asking[0].slot}) asks the policy itself about texts, and no process has a full copy of its weights",
            f"Leave full_copy out, or {asking[0].name}.",
        )


def _asks_policy(part: Bound) -> bool:
    named = [part.settings.get(name) for name in getattr(part.fn, "model_paths", ())]
    return part.fn.asks_policy or POLICY in named


def check_base(recipe: Recipe) -> None:
    """The recipe's own model is a whole folder, a file or a hub name, and of a kind that the stages that load it take.

    Raises:
        RecipeError: the reason and the fix.
    """
    base = recipe.model.path
    try:
        gguf = gguf_of(base)
    except ModelError as error:
        raise RecipeError(problems=error.problems) from None
    if base and gguf is None and (base.startswith((".", "/", "~")) or Path(base).exists()):
        folder = Path(base).expanduser()
        if (folder / ADAPTER_CONFIG).exists():
            raise RecipeError(
                "model.path",
                f"{base} holds adapters ({ADAPTER_CONFIG}), and no whole model",
                "Name the folder that they are merged into; of a stage it is `model` beside `adapter`.",
            )
        if not (folder / "config.json").exists():
            raise RecipeError(
                "model.path",
                f"{base} has no config.json; give a transformers model folder, a .gguf file or a hub name.",
            )
        architecture = architecture_of(folder)
        if architecture is not None and architecture.endswith(CLASSIFIER):
            raise RecipeError(
                "model.path",
                f"{base} is a reward model ({architecture}), which cannot be sampled",
                "Name a language model.",
            )
        if not any((folder / f).exists() for f in ("tokenizer.json", "tokenizer.model", "vocab.json")):
            raise RecipeError("model.path", f"{base} has no tokenizer (tokenizer.json); save it beside the model.")
        if (kind := made_as(folder)) != PLAIN:
            _check_made_as(recipe, kind)


def _check_made_as(recipe: Recipe, kind: str) -> None:
    """Every stage that loads the recipe's own model takes what it is."""
    for node in recipe.nodes():
        ports = {port: about for port, about in node.kind.ports.items() if {MODEL, MASKED_MODEL} & {*about.takes}}
        own = [p for p in ports if BASE in (node.named(p) or (BASE,)) and not node.asks_endpoint(p)]
        if any(kind not in ports[port].takes for port in own):
            raise RecipeError(
                "model.path",
                f"{recipe.model.path} is a {kind}, which {node.name}, a stage of kind {node.kind.name}, would not read as it was trained",
                "Name the model that it was trained from, or a stage that takes it.",
            )
