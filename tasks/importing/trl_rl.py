"""The sizes and the loss of TRL's GRPO, in the fields of `rlvr`."""

from __future__ import annotations

import math
from typing import Any

from pipelines.base.errors import UserError
from pipelines.base.project import page
from tasks.importing.draft import Draft

AGGREGATIONS = {
    "grpo": "row_mean",
    "bnpo": "token_mean",
    "dr_grpo": "fixed_length",
    "dapo": "token_mean",
    "cispo": "token_mean",
    "sapo": "row_mean",
    "vespo": "token_mean",
    "luspo": {"kind": "fixed_length", "length": 1},
}
"""loss_type → ours."""
SETTINGS = {
    "sapo": {"tau_pos": "sapo_temperature_pos", "tau_neg": "sapo_temperature_neg"},
    "vespo": {name: f"vespo_{name}" for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")},
}
"""loss_type that is an objective without a clip → its settings here and there."""
SCALES = {"group": "std", "true": "std", "batch": "batch", "none": "none", "false": "none"}
EPS = 1e-4
"""TRL adds it to a group's deviation."""
DELTAS = {
    "clip": ("`dual` bounds the loss of negative advantages where it is above 1 + high", "Leave it out, or raise it."),
    "gspo": ("gspo bounds ratios of whole answers once", "Leave it out there too, and compare."),
    "cispo": ("cispo does not read it there", "Leave it out."),
    "sapo": ("sapo does not read it there", "Leave it out."),
    "vespo": ("vespo does not read it there", "Leave it out."),
}
"""Our objective → why delta is not in it, and what to do."""
STEPS = 100
"""Of a run whose length is not known."""


def put_size(draft: Draft, to: str, value: Any, *keys: str) -> None:
    """Set a size that was counted over all processes, and say so where their number is not known."""
    if draft.config.knows_processes:
        draft.put(to, value, *keys)
        return
    count = draft.config.processes
    draft.assume(to, value, f"counted for {count} process", "Give --processes N if it ran on more GPUs.", *keys)


def rlvr(draft: Draft) -> None:
    """The RLVR stage but for its reward, its optimizer and what is copied."""
    updates = sizes(draft)
    length(draft, updates)
    advantage(draft)
    objective(draft)
    regularisers(draft)
    correction(draft)


def sizes(draft: Draft) -> int:
    """Problems and completions of a draw, and the updates that are made of them; returns these.

    Raises:
        UserError: a draw does not hold whole groups.
    """
    config = draft.config
    group, device = config.positive("num_generations"), config.positive("per_device_train_batch_size")
    accumulated, rows = config.positive("gradient_accumulation_steps"), device * config.processes
    drawn = _drawn(draft, rows, accumulated)
    updates = max(1, drawn // (rows * accumulated))
    completions = max(drawn, rows * accumulated)
    if completions % group:
        raise UserError(
            config.name("num_generations"),
            f"a step has {completions} completions on {config.processes} process(es), which are no whole groups of {group}",
            "Say how many processes it ran on: --processes N.",
        )
    keys = (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "generation_batch_size",
        "steps_per_generation",
    )
    put_size(draft, ".prompts", completions // group, *keys)
    draft.put(".group_size", group, "num_generations")
    if drawn % (rows * accumulated) and drawn > rows * accumulated:
        draft.leave(
            "steps_per_generation",
            "a draw is no whole number of updates there",
            f"The recipe makes {updates} of each draw.",
        )
    if updates > completions // group:
        draft.leave(
            "steps_per_generation", f"{updates} updates of a draw would divide its {completions // group} groups",
            "The recipe makes one update of each group.",
        )  # fmt: skip
        updates = completions // group
    draft.put(".mini_batches", updates, *keys)
    return updates


def _drawn(draft: Draft, rows: int, accumulated: int) -> int:
    """Completions of a draw."""
    config = draft.config
    if config.has("generation_batch_size") and config.has("steps_per_generation"):
        raise UserError(
            config.name("generation_batch_size"),
            f"{config.name('steps_per_generation')} says the same",
            "Give one of them.",
        )
    if config.has("generation_batch_size"):
        drawn = config.positive("generation_batch_size")
        if drawn % rows:
            raise UserError(
                config.name("generation_batch_size"),
                f"{drawn} is no multiple of the {rows} completions of a pass on {config.processes} process(es)",
                "Say how many processes it ran on: --processes N.",
            )
        return drawn
    return rows * (config.positive("steps_per_generation") if config.has("steps_per_generation") else accumulated)


def length(draft: Draft, updates: int) -> None:
    """Steps: draws of `prompts` problems."""
    config = draft.config
    passes, limit, epochs = (
        config.positive("num_iterations") if config.has("num_iterations") else 1,
        config.take("max_steps"),
        config.take("num_train_epochs"),
    )
    if limit is not None and limit > 0:
        draft.put(".steps", max(1, math.ceil(limit / (updates * passes))), "max_steps")
        draft.map("num_train_epochs", "", "max_steps decides")
        return
    draft.map("max_steps", "", "not positive: the epochs decide")
    steps_of_epochs(draft, epochs, draft.recipe["rlvr"]["prompts"], "num_train_epochs")


def steps_of_epochs(draft: Draft, epochs: float, drawn: int, *keys: str) -> None:
    """Set the steps of a run that is so many epochs long, with `drawn` problems in a draw; where the rows are not known, assume some."""
    if draft.config.rows:
        draft.put(".steps", max(1, int(draft.config.rows // drawn * epochs)), *keys)
        return
    draft.assume(
        ".steps", STEPS, f"{epochs:g} epochs are rows x {epochs:g} / {drawn} steps, and the number of rows is not known",
        "Give --rows N, or set steps.", *keys,
    )  # fmt: skip


def advantage(draft: Draft) -> None:
    """How rewards are compared."""
    config = draft.config
    value = config.take("scale_rewards")
    scale = SCALES.get(str(value).lower())
    if scale is None:
        raise UserError(
            config.name("scale_rewards"), f"{str(value)[:40]!r} is none of group, batch and none", "Correct it."
        )
    draft.put(
        ".advantage", {"kind": "grpo", "scale": scale} | ({} if scale == "none" else {"eps": EPS}), "scale_rewards"
    )


def objective(draft: Draft) -> None:
    """The clipped loss and its mean."""
    config = draft.config
    kind, low, high = config.take("loss_type"), float(config.take("epsilon")), config.take("epsilon_high")
    high, level = float(low if high is None else high), config.take("importance_sampling_level")
    part: dict[str, Any] = {"kind": "gspo" if level == "sequence" else "clip", "low": low, "high": high}
    keys = ["loss_type", "importance_sampling_level", "epsilon", "epsilon_high"]
    if kind not in AGGREGATIONS:
        draft.leave("loss_type", "not one of our losses", "The recipe has dapo's, the default there.")
    elif kind == "cispo":
        part = {"kind": "cispo", "high": high - 1}
        if high <= 1:
            draft.leave(
                "epsilon_high" if config.has("epsilon_high") else "loss_type",
                f"an upper bound of {high:g} on the weight itself cuts every weight at 1 and above", "The recipe has our default, 5.",
            )  # fmt: skip
            part = {"kind": "cispo"}
    elif kind in SETTINGS:
        part = {"kind": kind} | {setting: float(config.take(key)) for setting, key in SETTINGS[kind].items()}
        keys = ["loss_type", *SETTINGS[kind].values()]
    if level not in ("token", "sequence"):
        draft.leave("importance_sampling_level", "neither token nor sequence", "The recipe has token.")
    elif kind in ("cispo", "sapo") and level == "sequence":
        draft.leave("importance_sampling_level", f"{kind} weighs tokens here", "Take `token` there too, and compare.")
    delta = config.take("delta")
    if delta is not None and part["kind"] == "clip" and delta > 1 + high:
        part["dual"] = float(delta)
        keys.append("delta")
    elif delta is not None:
        draft.leave("delta", *DELTAS[part["kind"]])
    far = config.take("off_policy_mask_threshold")
    if far is not None and part["kind"] == "clip":
        part |= {"kind": "opsm", "delta": float(far)}
        keys.append("off_policy_mask_threshold")
    elif far is not None:
        draft.leave("off_policy_mask_threshold", f"{part['kind']} masks no rows here", "Use objective: opsm.")
    draft.put(".objective", part, *keys)
    draft.put(".loss_aggregation", AGGREGATIONS.get(kind, "token_mean"), "loss_type")


ADAPTIVE = {
    "target": "entropy_target", "delta": "entropy_coef_delta", "least": "entropy_coef_min", "most": "entropy_coef_max",
}  # fmt: skip
"""Setting of `adaptive_entropy` → theirs."""


def regularisers(draft: Draft) -> None:
    """The KL to the reference and the entropy."""
    config = draft.config
    beta, entropy = float(config.take("beta") or 0), float(config.take("entropy_coef") or 0)
    kind = "unbiased_k3" if config.take("use_bias_correction_kl") else "k3"
    draft.put(".divergence", {"kind": kind, "weight": beta} if beta else None, "beta", "use_bias_correction_kl")
    share = config.take("top_entropy_quantile")
    if share is not None and share < 1:
        draft.put(".credit", [{"kind": "high_entropy", "share": float(share)}], "top_entropy_quantile")
    else:
        draft.map("top_entropy_quantile", "", "changes nothing at this value")
    adaptive = config.take("use_adaptive_entropy")
    if adaptive:
        part = {"kind": "adaptive_entropy", "start": entropy}
        part |= {name: float(config.take(key)) for name, key in ADAPTIVE.items()}
        draft.put(".auxiliary_loss", [part], "use_adaptive_entropy", "entropy_coef", *ADAPTIVE.values())
    else:
        draft.map("use_adaptive_entropy", "", "changes nothing at this value")
        for key in ADAPTIVE.values():
            draft.map(key, "", "use_adaptive_entropy is false")
        if entropy:
            draft.put(".auxiliary_loss", [{"kind": "entropy", "weight": entropy}], "entropy_coef")
    if adaptive or entropy:
        if config.take("loss_type") == "dr_grpo":
            draft.leave(
                "entropy_coef",
                "theirs is a mean over tokens with any loss_type, ours is divided by the longest answer",
                "Multiply its weight by max_completion_length / the mean tokens of an answer.",
            )
    else:
        draft.map("entropy_coef", "", "changes nothing at this value")


CORRECTION = ("correction", "mode", "clip_max", "clip_min")
"""Fields `vllm_importance_sampling_...`."""


def of_tokens(draft: Draft) -> bool:
    """Whether the recipe's objective takes a weight of each token."""
    from pipelines.contract.catalogue import card, load

    return card(load("rlvr.objective", draft.recipe["rlvr"]["objective"]["kind"])).ratio_level in ("", "token")


def correction(draft: Draft) -> None:
    """Weights against a decoding engine that is not the trainer."""
    config = draft.config
    keys = [f"vllm_importance_sampling_{name}" for name in CORRECTION]
    if not (config.take("use_vllm") and config.take(keys[0])):
        for key in keys:
            draft.map(key, "", "nothing is corrected without use_vllm, or where correction is false")
        return
    mode, high, low = (config.take(key) for key in keys[1:])
    level, _, outside = str(mode).partition("_")
    if level not in ("token", "sequence") or outside not in ("truncate", "mask"):
        draft.leave(keys[1], "not one of our corrections", f"Take a row of {page('mismatch')}.")
        return
    if level == "token" and not of_tokens(draft):
        draft.leave(keys[1], "the objective's ratio belongs to the whole sequence here", "Take the mode of sequences.")
        return
    bounds = {"cap": high} | ({} if low is None else {"floor": low})
    kind, bounds = ("truncated_is", bounds) if outside == "truncate" else ("masked_is", {"low": low, "high": high})
    draft.put(".old_logp", "trainer", keys[0])
    before = draft.recipe["rlvr"].get("credit", [])
    draft.put(".credit", [*before, {"kind": kind, "level": level} | bounds], *keys)
