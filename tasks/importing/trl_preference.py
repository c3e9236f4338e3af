"""The loss of TRL's DPO, in the fields of `preference`."""

from __future__ import annotations

from typing import Any

from tasks.importing.draft import Draft

LOSSES: dict[str, dict[str, Any]] = {
    "sigmoid": {"kind": "dpo"}, "hinge": {"kind": "hinge"}, "ipo": {"kind": "ipo"}, "robust": {"kind": "robust_dpo"},
    "apo_zero": {"kind": "apo", "anchor": "zero"}, "apo_down": {"kind": "apo", "anchor": "down"},
    "sigmoid_norm": {"kind": "dpo", "length_normalised": True}, "exo_pair": {"kind": "exo"}, "nca_pair": {"kind": "nca"},
    "bco_pair": {"kind": "mpo", "preference": 0.0, "quality": 1.0, "generation": 0.0}, "sppo_hard": {"kind": "sppo"},
    "aot": {"kind": "aot"}, "aot_unpaired": {"kind": "aot", "paired": False}, "discopop": {"kind": "discopop"},
}  # fmt: skip
"""DPO's loss_type → ours."""


def preference(draft: Draft) -> None:
    """The loss of the stage that learns from pairs, and its reference."""
    config = draft.config
    named = list(config.take("loss_type") or ["sigmoid"])
    beta, smoothing = float(config.take("beta")), float(config.take("label_smoothing") or 0)
    weights = config.take("loss_weights")
    if set(named) == {"sigmoid", "bco_pair", "sft"} and len(named) == 3:
        shares = dict(zip(named, weights or [1.0, 1.0, 1.0], strict=False))
        loss: dict[str, Any] = {
            "kind": "mpo",
            "preference": shares["sigmoid"],
            "quality": shares["bco_pair"],
            "generation": shares["sft"],
        }
    else:
        named, beside = with_sft(named, weights)
        if beside is not None:
            draft.put(".sft_weight", beside, "loss_type", "loss_weights")
        loss = dict(LOSSES.get(named[0], LOSSES["sigmoid"]))
        if named[0] not in LOSSES or len(named) > 1:
            draft.leave(
                "loss_type",
                "not one of our losses, or several of them",
                f"The recipe has {loss['kind']}; `whetstone methods --slot preference.loss` lists ours.",
            )
    loss["beta"] = beta
    read = variant(draft, loss)
    kind = loss["kind"]
    if kind == "robust_dpo":
        loss["false_rate"] = smoothing
    elif smoothing and kind in ("dpo", "aot", "exo", "ld_dpo", "wpo"):
        loss["label_smoothing"] = smoothing
    if kind == "discopop":
        loss["tau"] = float(config.take("discopop_tau"))
        read.append("discopop_tau")
    read += ["loss_weights"] if kind == "mpo" else []
    draft.put(".loss", loss, "loss_type", "beta", "label_smoothing", *read)
    if not config.take("sync_ref_model"):
        return
    draft.put(".reference_every", config.positive("ref_model_sync_steps"), "sync_ref_model", "ref_model_sync_steps")
    if config.take("ref_model_mixup_alpha") != 1:
        draft.leave(
            "ref_model_mixup_alpha",
            "the policy takes the reference's place whole",
            "Set it to 1 there too, and compare.",
        )


def with_sft(named: list[str], weights: list[float] | None) -> tuple[list[str], float | None]:
    """Losses without `sft` where it stands beside one of weight 1, and its weight.

    >>> with_sft(["ipo", "sft"], [1.0, 0.5]), with_sft(["ipo", "sft"], [0.5, 1.0])
    ((['ipo'], 0.5), (['ipo', 'sft'], None))
    """
    shares = dict(zip(named, weights or [1.0] * len(named), strict=False))
    others = [name for name in named if name != "sft"]
    if len(named) == 2 and len(others) == 1 and shares[others[0]] == 1:
        return others, float(shares["sft"])
    return named, None


def variant(draft: Draft, loss: dict[str, Any]) -> list[str]:
    """Turn `dpo` into what other fields of theirs make of it; the fields that were read."""
    config = draft.config
    divergence = config.take("f_divergence_type")
    changes: list[tuple[list[str], dict[str, Any]]] = []
    if divergence == "js_divergence":
        changes.append((["f_divergence_type"], {"kind": "f_dpo", "divergence": "jensen_shannon"}))
    elif divergence == "forward_kl":
        changes.append((["f_divergence_type"], {"kind": "f_dpo", "alpha": 1.0}))
    elif divergence == "alpha_divergence":
        alpha = 1 - float(config.take("f_alpha_divergence_coef"))
        if 0 <= alpha <= 1:
            changes.append((["f_divergence_type", "f_alpha_divergence_coef"], {"kind": "f_dpo", "alpha": alpha}))
        else:
            draft.leave(
                "f_alpha_divergence_coef", "ours are from the reverse to the forward KL", "Give one from 0 to 1."
            )
    if config.take("ld_alpha") is not None:
        changes.append((["ld_alpha"], {"kind": "ld_dpo", "alpha": float(config.take("ld_alpha"))}))
    if config.take("use_weighting"):
        changes.append((["use_weighting"], {"kind": "wpo"}))
    read: list[str] = []
    for fields, change in changes:
        if loss["kind"] != "dpo" or "length_normalised" in loss:
            draft.leave(
                fields[0],
                f"ours has it with DPO's loss alone, and not with {loss['kind']}",
                f"Use {change['kind']} alone, and compare.",
            )
            continue
        loss.update(change)
        read += fields
    return read
