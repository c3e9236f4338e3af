"""An axolotl configuration as a recipe: SFT, and `rl: dpo`, `ipo`, `orpo`, `kto`, `simpo` and `grpo`. Its trainers are TRL's."""

from __future__ import annotations

from typing import Any

from pipelines.base.errors import UserError
from pipelines.base.project import page
from tasks.importing import trl
from tasks.importing.draft import Draft
from tasks.importing.table import Config, Field, renamed, tables
from tasks.importing.trl_rl import rlvr

METHODS = {None: "sft", "grpo": "grpo", "dpo": "dpo", "ipo": "dpo", "orpo": "dpo", "kto": "dpo", "simpo": "dpo"}
"""`rl` → TRL's method whose sizes it has."""
STAGES = {"packing": "sft", "rpo_alpha": "dpo"}
"""Fields of one kind of stage alone → TRL's method."""
DEFAULT_WARMUP, MOST_WARMUP = 0.03, 100
"""Share of the updates, and most of them."""
CHATS = ("chat_template", "sharegpt", "alpaca", "alpaca_chat", "messages", "input_output")


def fields() -> list[Field]:
    """axolotl's table: fields that TRL has too, and its own."""
    own, trls = tables("axolotl"), tables("trl")
    return [*renamed([*trls["common"], *trls["grpo"]], own["same"], own["defaults"]), *own["fields"]]


def _is_of(field: Field, method: str) -> bool:
    """Whether a stage of this method can have the field: those of the section `trl` are GRPO's."""
    return method == "grpo" or not field.names[0].startswith("trl.")


def build(config: Config) -> Draft:
    """The recipe of an axolotl configuration.

    Raises:
        UserError: a field has a value that cannot be read, or one without which there is no run is missing.
    """
    rl = config.take("rl")
    if rl not in METHODS:
        raise UserError(
            "rl",
            f"{str(rl)[:40]!r} is not imported",
            f"One of {', '.join(str(m) for m in METHODS if m)}, or none for SFT.",
        )
    method = METHODS[rl]
    whole_values(config)
    draft = trl.start(config, method)
    draft.map("rl", "rlvr" if method == "grpo" else "stages.preference")
    data(draft, method)
    template(draft)
    storage(draft)
    trl.optimizer(draft)
    warmup(draft)
    least = config.take("cosine_min_lr_ratio")
    if least is not None:
        draft.put(".optimizer.final_share", min(1.0, max(0.0, float(least))), "cosine_min_lr_ratio")
    if method == "grpo":
        trl.rewards(draft, trl.REWARDS)
        rlvr(draft)
    elif method == "sft":
        trl.sft(draft)
        if config.take("train_on_inputs"):
            draft.leave("train_on_inputs", "prompts are not trained", "For raw texts set text_column of the source.")
    else:
        preference(draft, str(rl))
    draft.put(".gradient_checkpointing", bool(config.take("gradient_checkpointing")), "gradient_checkpointing")
    trl.lora(draft)
    draft.map("adapter", draft.path(".lora") if config.take("adapter") else "")
    if config.take("adapter"):
        draft.map("lora_target_linear", draft.path(".lora.target_modules"))
    draft.copy(
        [
            field.key
            for field in config.fields.values()
            if STAGES.get(field.key, method) == method and _is_of(field, method)
        ]
    )
    draft.finish()
    return draft


def whole_values(config: Config) -> None:
    """Give fields that TRL has in another form that form: adapters, precision, the warmup by default, the longest row."""
    bf16, checkpoints = config.take("bf16"), config.take("gradient_checkpointing")
    if bf16 not in (None, True, False, "auto", "full", "true", "false"):
        raise UserError(config.name("bf16"), f"{str(bf16)[:40]!r} is none of auto, true, false and full", "Correct it.")
    if checkpoints not in (None, True, False, "offload", "offload_disk", "true", "false"):
        raise UserError(
            "gradient_checkpointing", f"{str(checkpoints)[:40]!r} is neither true, false nor offload", "Correct it."
        )
    adapter = config.take("adapter")
    if adapter not in (None, "", "lora", "qlora"):
        raise UserError("adapter", f"{adapter[:40]!r} is neither lora nor qlora", "Correct it, or leave the field out.")
    derived = {
        "bf16": bf16 not in (None, False, "false"),
        "gradient_checkpointing": checkpoints not in (None, False, "false"),
        "use_peft": bool(adapter),
        "load_in_4bit": adapter == "qlora" or bool(config.take("load_in_4bit")),
        "beta": 0.1 if config.take("rl") != "grpo" else 0.0,
        "eval_strategy": "no",
        "assistant_only_loss": True,  # every answer of a conversation is trained
        "loss_type": "dapo" if config.take("rl") == "grpo" else None,
    }  # fmt: skip
    if config.take("lora_target_linear"):
        derived["lora_target_modules"] = ["all-linear"]
    steps = config.take("max_steps") or 0
    if steps > 0:
        derived["warmup_steps"] = min(int(DEFAULT_WARMUP * steps), MOST_WARMUP)
    config.derive(derived)


def storage(draft: Draft) -> None:
    """What weights are stored in: bfloat16 there wherever it computes in it."""
    if draft.recipe["model"]["dtype"] == "bfloat16" and draft.recipe["model"]["weights_dtype"] == "float32":
        draft.assume(
            "model.weights_dtype", "float32", "theirs are stored in bfloat16 with bf16, which loses small updates",
            "Set bfloat16 for what it does, in half the memory.", "dtype",
        )  # fmt: skip


def warmup(draft: Draft) -> None:
    """Their default is a share of the updates, but not more than `MOST_WARMUP` of them; what is known of their number is derived."""
    config = draft.config
    stated = config.has("warmup_steps") or config.has("warmup_ratio") or "warmup_steps" in config.derived
    if not stated and config.take("lr_scheduler_type") != "constant":
        draft.assume(
            ".optimizer.warmup", DEFAULT_WARMUP, f"theirs is that share, but at most {MOST_WARMUP} updates",
            f"Set {MOST_WARMUP} where the share is more.", "warmup_steps",
        )  # fmt: skip


def data(draft: Draft, method: str) -> None:
    """The sources, and the held-out part."""
    config = draft.config
    entries = config.take("datasets")
    if not entries:
        raise UserError(
            "datasets", "the configuration does not name the data", "Give it: datasets, a list with `path` and `type`."
        )
    listed, share = [], config.take("val_set_size")
    for entry in entries:
        each = trl.source(entry, "datasets")
        kind = entry.get("type")
        if kind in ("completion", "pretrain"):
            each["text_column"] = str(entry.get("field") or entry.get("text_column") or "text")
        elif entry.get("field_messages") not in (None, "messages", "conversations", "conversation"):
            each["columns"] = {"prompt": str(entry["field_messages"])}
        if config.has("default_system_message") and "text_column" not in each:
            each["system"] = config.take("default_system_message")
        listed.append(each)
        read = {
            "path",
            "name",
            "split",
            "data_files",
            "type",
            "field",
            "field_messages",
            "text_column",
            "ds_type",
            "trust_remote_code",
            "chat_template",
        }
        unread = sorted(str(key) for key, value in entry.items() if key not in read and value is not None)
        if unread:
            draft.leave(
                "datasets",
                f"of {each['path']}: nothing reads {', '.join(unread)}",
                f"Use conversations with role and content; marks of messages are `train` ({page('sft')}).",
            )
        if isinstance(kind, dict) or (
            isinstance(kind, str) and kind.split(".")[0] not in (*CHATS, "completion", "pretrain", "chatml", "llama3")
        ):
            draft.leave(
                "datasets",
                f"of {each['path']}: rows are recognised by their columns, not by a type",
                f"See {page('data')}, and `columns` of a source.",
            )
    if method == "dpo":
        draft.put("curate.kind", "curate")
    draft.put("curate.sources", listed, "datasets", "default_system_message")
    held = min(0.5, share if share < 1 else 0.05) if share > 0 else 0.0
    draft.put("curate.splits", {"train": 1 - held, "heldout": held} if held else {"train": 1.0}, "val_set_size")
    if share >= 1:
        draft.leave("val_set_size", "splits are shares of the rows", "The recipe holds 0.05 out; set curate.splits.")
    if method == "dpo":
        draft.put(".kind", "preference")
        draft.put(".data", "data")
    if method != "grpo":
        draft.put(".heldout", "heldout" if held else None, "val_set_size")
    draft.put("curate.near_duplicates", None)
    draft.put("curate.decontaminate", None)


def template(draft: Draft) -> None:
    """The chat template."""
    config = draft.config
    name = config.take("chat_template")
    if config.has("chat_template_jinja"):
        draft.put("model.chat_template", config.take("chat_template_jinja"), "chat_template_jinja", "chat_template")
    elif name.startswith("tokenizer_default"):
        draft.map("chat_template", "", "the tokenizer's own")
    else:
        draft.leave(
            "chat_template",
            f"the template {name[:40]!r} is axolotl's",
            "Put its Jinja text into model.chat_template; without, the tokenizer's own is used.",
        )


def preference(draft: Draft, rl: str) -> None:
    """The loss of a stage that learns from pairs or labelled answers."""
    trl.pairs(draft)
    config = draft.config
    beta = float(config.take("beta"))
    smoothing = float(config.take("dpo_label_smoothing") or 0)
    loss: dict[str, Any] = {"kind": rl, "beta": beta}
    keys = ["rl", "beta"]
    if rl == "dpo" and smoothing:
        loss["label_smoothing"] = smoothing
        keys.append("dpo_label_smoothing")
    if rl == "orpo":
        key = "orpo_alpha" if config.has("orpo_alpha") and not config.has("beta") else "beta"
        loss, keys = {"kind": "orpo", "weight": float(config.take(key))}, ["rl", key]
    if rl == "simpo":
        loss["gamma"] = float(config.take("simpo_gamma"))
        keys.append("simpo_gamma")
        draft.put(".sft_weight", float(config.take("cpo_alpha")), "cpo_alpha")
    if rl == "kto":
        loss |= {f"{each}_weight": float(config.take(f"kto_{each}_weight")) for each in ("desirable", "undesirable")}
        keys += ["kto_desirable_weight", "kto_undesirable_weight"]
    draft.put(".loss", loss, *keys)
