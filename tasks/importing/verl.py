"""A verl configuration as a recipe: a YAML file, or a script with the overrides of `python -m verl.trainer.main_ppo`."""

from __future__ import annotations

import math
from typing import Any

from pipelines.base.errors import UserError
from pipelines.base.project import page
from tasks.importing import trl
from tasks.importing.draft import Draft
from tasks.importing.table import Config, Field, refused, tables
from tasks.importing.trl_rl import of_tokens, steps_of_epochs

UNBOUNDED = 10_000
"""Draws of a step where there is no limit."""
ESTIMATORS = {
    "gae": "gae", "grpo": "grpo", "grpo_vectorized": "grpo", "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline", "rloo": "rloo", "rloo_vectorized": "rloo", "opo": "opo",
    "gpg": "gpg", "grpo_passk": "grpo_passk", "remax": "remax", "optimal_token_baseline": "otb", "tir_optimal_token_baseline": "otb",
}  # fmt: skip
"""algorithm.adv_estimator → ours."""
AGGREGATIONS = {
    "token-mean": "token_mean", "seq-mean-token-mean": "row_mean", "seq-mean-token-sum": {"kind": "fixed_length", "length": 1},
    "seq-mean-token-sum-norm": "fixed_length",
}  # fmt: skip
"""actor.loss_agg_mode → ours."""
ROW_MEANS = ("gspo", "sapo", "geo_mean")
"""Values of loss_mode that do not read loss_agg_mode."""
PENALTIES = {"kl": "k1", "k1": "k1", "low_var_kl": "k3", "k3": "k3", "mse": "k2", "k2": "k2"}
"""kl_loss_type and kl_penalty → ours."""

REJECTIONS = {"token": "token", "seq_sum": "sum", "seq_mean": "mean", "seq_max": "worst"}
"""Front of an option of rollout_rs → `over` of ours."""


def build(config: Config) -> Draft:
    """The recipe of a verl configuration.

    Raises:
        UserError: a field has a value that cannot be read, or one without which there is no run is missing.
    """
    draft = Draft(config, "rlvr")
    draft.put("name", trl.recipe_name(str(config.take("experiment_name"))), "experiment_name")
    draft.put("seed", config.take("data.seed") or 0, "data.seed")
    if not config.has("model.path"):
        name = config.name("model.path")
        raise UserError(
            name, "the configuration does not name the model", f"Give it after the file: {name}=OWNER/NAME."
        )
    draft.copy(["model.path"])
    draft.put("model.dtype", "bfloat16")
    draft.put("model.weights_dtype", "float32")
    data(draft)
    updates = sizes(draft)
    length(draft)
    optimizer(draft, updates)
    reward(draft)
    advantage(draft)
    objective(draft)
    divergence(draft)
    correction(draft)
    adapters(draft)
    if config.has("project_name"):
        draft.put("tracking.experiment", config.take("project_name"), "project_name")
    draft.copy()
    draft.finish()
    return draft


def data(draft: Draft) -> None:
    """The files, as they are."""
    config = draft.config
    files = config.take("data.train_files")
    if not files:
        raise UserError(
            "data.train_files",
            "the configuration does not name the data",
            "Give it after the file: data.train_files=FILE.parquet.",
        )
    column, most = config.take("data.prompt_key"), config.take("data.train_max_samples")
    listed = [
        {"kind": "file", "path": path} | ({"columns": {"prompt": column}} if column != "prompt" else {})
        for path in files
    ]
    if most > 0:
        if len(listed) == 1:
            listed[0]["size"] = most
            draft.map("data.train_max_samples", "curate.sources")
        else:
            draft.leave(
                "data.train_max_samples", "it counts the rows of all files together", "Set size of each source."
            )
    draft.put("curate.sources", listed, "data.train_files")
    draft.map("data.prompt_key", "curate.sources")
    draft.put("curate.splits", {"train": 1.0})
    draft.put("curate.near_duplicates", None)
    draft.put("curate.decontaminate", None)


def sizes(draft: Draft) -> int:
    """Problems of a step, and its updates; returns these, of all epochs."""
    config = draft.config
    uncut = config.has("data.gen_batch_size") and not config.take("filter_groups")
    key = "data.gen_batch_size" if uncut else "data.train_batch_size"  # nothing but the filter cuts the loader's batch
    prompts, mini, passes = (
        config.positive(key),
        config.positive("mini_batch"),
        config.positive("ppo_epochs"),
    )
    draft.put(".prompts", prompts, key)
    updates = max(1, math.ceil(prompts / mini))
    draft.put(".mini_batches", updates, "mini_batch", key)
    if mini > prompts or prompts % mini:
        draft.leave(
            "mini_batch",
            f"{prompts} problems are no whole number of mini-batches of {mini}",
            f"The recipe makes {updates}.",
        )
    return updates * passes


def length(draft: Draft) -> None:
    """Steps of the run."""
    config = draft.config
    epochs = config.take("epochs")
    if config.has("steps"):
        draft.put(".steps", config.positive("steps"), "steps")
        draft.map("epochs", "", "total_training_steps decides")
    else:
        steps_of_epochs(draft, epochs, drawn(config), "epochs", "data.gen_batch_size")


def drawn(config: Config) -> int:
    """Problems of a draw: the loader's batch."""
    return config.positive("data.gen_batch_size" if config.has("data.gen_batch_size") else "data.train_batch_size")


def optimizer(draft: Draft, updates: int) -> None:
    """Schedule and warmup; theirs count steps, ours updates."""
    config = draft.config
    draft.copy(["lr"])
    kind, steps, share = config.take("schedule"), config.take("warmup_steps"), config.take("warmup_ratio")
    if kind not in ("constant", "cosine"):
        draft.leave("schedule", "neither constant nor cosine", "A constant rate stands in the recipe.")
    if steps is not None and steps >= 0:
        draft.put(".optimizer.warmup", steps * updates, "warmup_steps")
        draft.map("warmup_ratio", "", "lr_warmup_steps decides")
    else:
        if not 0 <= share < 1:
            raise refused(config.name("warmup_ratio"), "a share from 0 to below 1", share)
        draft.put(".optimizer.warmup", float(share), "warmup_ratio")
        draft.map("warmup_steps", "", "negative: the ratio decides")
    draft.put(".optimizer.schedule", kind if kind in ("constant", "cosine") else "constant", "schedule")
    draft.put(".optimizer.final_share", float(config.take("min_lr_ratio") or 0), "min_lr_ratio")
    betas = config.take("betas")
    if len(betas) != 2:
        raise refused(config.name("betas"), "a list of two numbers", betas)
    draft.put(".optimizer.betas", [float(each) for each in betas], "betas")


def reward(draft: Draft) -> None:
    """The verifier of each row; the penalty and the filter of DAPO."""
    config = draft.config
    draft.put(".reward", {"kind": "verifier"})
    if config.take("overlong"):
        most = config.positive("data.max_response_length")
        buffer = config.take("overlong_len")
        if 0 < buffer <= most:
            part = {"kind": "soft_overlong", "buffer": buffer / most, "factor": float(config.take("overlong_factor"))}
            draft.put(".shaping", [part], "overlong", "overlong_len", "overlong_factor")
        else:
            draft.leave("overlong_len", f"no length from 1 to {most}", "Set shaping: [soft_overlong].")
    if config.take("filter_groups"):
        # a draw here has as many problems as a step
        draws = math.ceil(config.take("max_draws") * drawn(config) / config.positive("data.train_batch_size"))
        draft.put(".filter", {"kind": "mixed"}, "filter_groups", "filter_metric")
        draft.put(
            ".sampling_schedule",
            {"kind": "dynamic", "max_draws": min(draws, UNBOUNDED) if draws > 0 else UNBOUNDED},
            "filter_groups",
            "max_draws",
            "data.gen_batch_size",
        )


def advantage(draft: Draft) -> None:
    """How rewards become advantages, and the critic where it asks one."""
    config = draft.config
    kind = ESTIMATORS.get(config.take("adv_estimator"))
    if kind is None:
        draft.leave(
            "adv_estimator",
            "not one of our advantages",
            "The recipe has rloo; `whetstone methods --slot rlvr.advantage` lists ours.",
        )
        kind = "rloo"
    part: dict[str, Any] = {"kind": kind}
    keys = ["adv_estimator"]
    if kind in ("grpo", "grpo_passk"):
        part["scale"] = "std" if config.take("norm_by_std") else "none"
        keys.append("norm_by_std")
    if kind == "otb":
        part["zero_tail"] = config.take("adv_estimator").startswith("tir")
    if kind == "remax":
        draft.put(".rollout", kind, "adv_estimator")
    if kind == "reinforce_pp":
        part["gamma"] = float(config.take("gamma"))
        keys.append("gamma")
    if kind == "gae":
        part |= {"discount": float(config.take("gamma")), "lam": float(config.take("lam"))}
        keys += ["gamma", "lam"]
        critic = {
            "kind": "critic", "learning_rate": config.take("critic.lr"),
            "epochs": config.take("critic.epochs") or config.take("ppo_epochs"),
            "discount": float(config.take("gamma")), "warm_up": max(0, config.take("critic_warmup") - 1),  # theirs counts steps from 1
            "value_clip": float(config.take("critic.cliprange_value")),
        }  # fmt: skip
        draft.put(".providers", [critic], "critic.lr", "critic.epochs", "critic_warmup", "critic.cliprange_value")
    draft.put(".advantage", part, *keys)


def objective(draft: Draft) -> None:
    """The loss of a token, and its mean."""
    config = draft.config
    both = config.take("clip_ratio")
    low, high = (config.take(key) if config.has(key) else both for key in ("clip_ratio_low", "clip_ratio_high"))
    mode, dual = config.take("loss_mode"), config.take("clip_ratio_c")
    keys = ["loss_mode", "clip_ratio", "clip_ratio_low", "clip_ratio_high"]
    part: dict[str, Any] = {"kind": "clip", "low": float(low), "high": float(high)}
    if mode == "gpg":
        part, keys = {"kind": "reinforce"}, ["loss_mode"]
    elif mode in ("gspo", "cispo"):
        part["kind"] = mode
    elif mode == "geo_mean":
        part["kind"] = "gmpo"
    elif mode == "sapo":
        part = {"kind": "sapo"} | {key: float(config.take(key)) for key in ("tau_pos", "tau_neg")}
        keys = ["loss_mode", "tau_pos", "tau_neg"]
    elif mode == "clip_cov":
        part |= {"kind": mode, "share": float(config.take("clip_cov_ratio"))}
        part |= {"least": float(config.take("clip_cov_lb")), "most": float(config.take("clip_cov_ub"))}
        keys += ["clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"]
    elif mode == "kl_cov":
        part = {
            "kind": "kl_cov",
            "share": float(config.take("kl_cov_ratio")),
            "coef": float(config.take("ppo_kl_coef")),
        }
        keys = ["loss_mode", "kl_cov_ratio", "ppo_kl_coef"]
    elif mode in ("dppo_tv", "dppo_kl"):
        part |= {"kind": "dppo", "divergence": mode.removeprefix("dppo_"), "largest": float(dual)}
        keys.append("clip_ratio_c")
    elif mode != "vanilla":
        draft.leave(
            "loss_mode",
            "not one of our objectives",
            "The recipe has clip; `whetstone methods --slot rlvr.objective` lists ours.",
        )
    if part["kind"] == "clip":
        part["dual"] = float(dual)
        keys.append("clip_ratio_c")
    draft.put(".objective", part, *keys)
    aggregate(draft, mode)
    entropy = float(config.take("entropy_coeff") or 0)
    if entropy:
        draft.put(".auxiliary_loss", [{"kind": "entropy", "weight": entropy}], "entropy_coeff")
    else:
        draft.map("entropy_coeff", "", "changes nothing at this value")


def aggregate(draft: Draft, mode: str) -> None:
    """The mean over tokens and rows; that of some objectives is fixed there."""
    config = draft.config
    mode_of_mean = config.take("loss_agg_mode")
    value: Any = AGGREGATIONS.get(mode_of_mean)
    if value is None:
        draft.leave("loss_agg_mode", "not one of our means", "The recipe has token_mean.")
        value = "token_mean"
    if mode in ROW_MEANS and value != "row_mean":
        draft.put(
            ".loss_aggregation",
            "row_mean",
            "loss_mode",
            note=f"{mode} is a mean of rows there, whatever loss_agg_mode says",
        )
        return
    keys = ["loss_agg_mode"]
    if mode_of_mean == "seq-mean-token-sum-norm" and config.has("loss_scale_factor"):
        value = {"kind": "fixed_length", "length": config.positive("loss_scale_factor")}
        keys.append("loss_scale_factor")
    draft.put(".loss_aggregation", value, *keys)


def divergence(draft: Draft) -> None:
    """The KL to the reference, in the loss or in the reward."""
    config = draft.config
    in_loss, in_reward = config.take("use_kl_loss"), config.take("use_kl_in_reward")
    part: dict[str, Any] | None = None
    keys: list[str] = ["use_kl_loss", "use_kl_in_reward"]
    if in_loss:
        name = config.take("kl_loss_type")
        # with a + it has the estimator's value and the gradient of k2
        kind = "k2" if name.endswith("+") else PENALTIES.get(name)
        if kind in ("k2", "k3"):
            part = {"kind": kind, "weight": float(config.take("kl_loss_coef"))}
            keys += ["kl_loss_type", "kl_loss_coef"]
        else:
            draft.leave(
                "kl_loss_type",
                "as a loss it has no useful gradient here",
                "The recipe has no divergence; take k3 or k2.",
            )
        if in_reward:
            draft.leave("use_kl_in_reward", "there is one divergence, and the loss has it", "Choose one of the two.")
    elif in_reward:
        kind = PENALTIES.get(config.take("kl_penalty").removesuffix("+"))
        if kind in ("k1", "k3"):
            part = {"kind": kind, "where": "reward", "weight": float(config.take("kl_coef"))}
            keys += ["kl_penalty", "kl_coef"]
        else:
            draft.leave(
                "kl_penalty", "no penalty of the reward here", "The recipe has no divergence; take kl or low_var_kl."
            )
    if part is not None and not part["weight"]:
        part = None
    draft.put(".divergence", part, *keys)


def correction(draft: Draft) -> None:
    """Weights and rejection against a decoding engine that is not the trainer."""
    config = draft.config
    level, wanted = config.take("rollout_is"), config.take("rollout_rs")
    if config.take("bypass_mode"):
        draft.put(".old_logp", "sampler", "bypass_mode")
        for key in ("rollout_is", "rollout_rs"):
            if config.take(key):
                draft.leave(key, "with old_logp: sampler the objective's ratio corrects", "Set old_logp: trainer.")
        return
    parts = _rejections(draft, wanted)
    if level in ("token", "sequence"):
        if level == "token" and not of_tokens(draft):
            draft.leave("rollout_is", "the objective's ratio belongs to the whole sequence here", "Take sequence.")
        else:
            parts.append({"kind": "truncated_is", "level": level, "cap": float(config.take("rollout_is_threshold"))})
    elif level:
        draft.leave("rollout_is", "neither token nor sequence", f"Take a row of {page('mismatch')}.")
    if parts:
        draft.put(".old_logp", "trainer", *(key for key in ("rollout_is", "rollout_rs") if config.take(key)))
        draft.put(".credit", parts, "rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")
    else:
        for key in ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold"):
            draft.map(key, "", "nothing is corrected at this value")


def _rejections(draft: Draft, wanted: str | None) -> list[dict[str, Any]]:
    """One part for each of verl's options, such as `seq_mean_k1`.

    >>> REJECTIONS["seq_max"]
    'worst'
    """
    options = [each.strip() for each in (wanted or "").split(",") if each.strip()]
    thresholds = str(draft.config.take("rollout_rs_threshold") or "")
    bounds = [each.strip() for each in thresholds.split(",") if each.strip()]
    bounds = bounds * len(options) if len(bounds) == 1 else bounds
    parts = []
    try:
        for option, bound in zip(options, bounds, strict=True):
            over, measure = REJECTIONS[option[:-3]], option[-2:]
            part: dict[str, Any] = {"kind": "rejection", "over": over}
            if measure == "k1":
                low, _, high = bound.rpartition("_")
                part["high"] = round(1 / float(low), 6) if low else float(high)
                part["low"] = round(1 / float(high), 6)
            else:
                part |= {"measure": {"k2": "k2", "k3": "k3"}[measure], "high": float(bound)}
            parts.append(part)
    except (KeyError, ValueError, ZeroDivisionError):
        draft.leave("rollout_rs", "its options and thresholds cannot be read", f"Take a row of {page('mismatch')}.")
        return []
    return parts


def adapters(draft: Draft) -> None:
    """LoRA, where there is a rank."""
    config = draft.config
    if not config.take("lora_rank"):
        draft.map("lora_rank", "", "0: all weights are trained")
        return
    draft.put(".lora.rank", config.positive("lora_rank"), "lora_rank")
    draft.put(".lora.alpha", float(config.take("lora_alpha")), "lora_alpha")
    modules = config.take("target_modules")
    draft.put(
        ".lora.target_modules", "all-linear" if modules in ("all-linear", ["all-linear"]) else modules, "target_modules"
    )
    draft.put(".lora.dropout", 0.0)


def fields() -> list[Field]:
    """verl's table."""
    return list(tables("verl")["fields"])
