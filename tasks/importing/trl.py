"""A TRL configuration as a recipe: `trl grpo`, `trl sft` and `trl dpo`. What axolotl and open-r1 share with it is here too."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from pipelines.base.errors import UserError, did_you_mean
from tasks.importing.draft import Draft
from tasks.importing.table import Config, Field, tables
from tasks.importing.trl_preference import preference
from tasks.importing.trl_rl import put_size, rlvr

SECTIONS = {"grpo": "rlvr", "sft": "sft", "dpo": "preference"}
"""`trl METHOD` → our kind of stage."""
FILES = (".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".gz")
NO_CLIPPING = 1e6
"""Of max_grad_norm."""
SIZES = ("per_device_train_batch_size", "gradient_accumulation_steps")
"""Of an update."""
THINK = r"<think>(?!.*<think>).*?</think>.*"
"""The form that `think_format_reward` asks for: one thought, then anything."""
REWARDS: dict[str, dict[str, Any]] = {
    "accuracy_reward": {"kind": "verifier"},
    "reasoning_accuracy_reward": {"kind": "verifier"},
    "think_format_reward": {"kind": "verifier", "name": "think_format", "verifier": "regex", "answer": THINK, "info": {"flags": "s"}},
}  # fmt: skip
"""TRL's own rewards → ours; `accuracy_reward` compares with the column `solution`."""
RATES = {"grpo": 1e-6, "sft": 2e-5, "dpo": 1e-6}
"""`trl METHOD` → its default learning rate."""


def fields(method: str) -> list[Field]:
    """The table of `trl METHOD`, with its default learning rate."""
    every = [*tables("trl")["common"], *tables("trl")[method]]
    return [replace(f, default=RATES[method]) if f.key == "learning_rate" else f for f in every]


def build(config: Config, method: str) -> Draft:
    """The recipe of a TRL configuration.

    Raises:
        UserError: a field has a value that cannot be read, or one without which there is no run is missing.
    """
    draft = start(config, method)
    sources(draft, method)
    optimizer(draft)
    if method == "grpo":
        rewards(draft, REWARDS)
        rlvr(draft)
    elif method == "sft":
        sft(draft)
    else:
        pairs(draft)
        preference(draft)
    lora(draft)
    draft.copy()
    draft.finish()
    return draft


def start(config: Config, method: str) -> Draft:
    """Name and model of the recipe; the order of its sections."""
    draft = Draft(config, SECTIONS[method])
    place = config.take("run_name") or config.take("output_dir") or config.take("model_name_or_path") or "imported"
    keys = [key for key in ("run_name", "output_dir") if config.has(key)][:1]
    draft.put("name", recipe_name(str(place)), *keys)
    if len(keys) == 1 and config.has("output_dir") and keys != ["output_dir"]:
        draft.map("output_dir", "", "the run has a folder of its own")
    draft.put("seed", config.take("seed") or 0, "seed")
    if not config.has("model_name_or_path"):
        raise UserError(
            config.name("model_name_or_path"),
            "the configuration does not name the model",
            f"Give it after the file: {config.name('model_name_or_path')}=OWNER/NAME.",
        )
    draft.copy(["model_name_or_path"])
    if config.has("model_revision") and config.take("model_revision") != "main":
        draft.put("model.revision", config.take("model_revision"), "model_revision")
    else:
        draft.map("model_revision", "", "the default")
    precision(draft)
    attention(draft)
    return draft


def recipe_name(text: str) -> str:
    """A name that a recipe may have, of a path or any other.

    >>> recipe_name("data/My run/"), recipe_name("")
    ('My-run', 'imported')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", PurePath(text).name).strip("-._")[:80] or "imported"


def precision(draft: Draft) -> None:
    """Compute and storage precision."""
    config = draft.config
    stored, half = config.take("dtype"), bool(config.take("fp16"))
    autocast = config.take("bf16") if config.has("bf16") else bool(config.take("bf16")) and not half
    if half or stored == "float16":
        draft.leave(
            "fp16" if half else "dtype",
            "there is no float16",
            "bfloat16 stands in the recipe; float32 is the exact choice.",
        )
    narrow = stored in ("bfloat16", "float16")
    draft.put(
        "model.dtype",
        "bfloat16" if autocast or half or narrow else "float32",
        *(["dtype"] if narrow and not autocast else []),
        "bf16",
    )
    draft.put("model.weights_dtype", "bfloat16" if narrow else "float32", "dtype")


def attention(draft: Draft) -> None:
    """How attention is computed."""
    value = draft.config.take("attn_implementation")
    if value in ("sdpa", "eager", "flash_attention_2"):
        draft.put("model.attention", value, "attn_implementation")
    elif value is not None:
        draft.leave(
            "attn_implementation",
            "not one of sdpa, eager and flash_attention_2",
            "It is chosen by itself (model.attention: auto).",
        )


def lora(draft: Draft) -> None:
    """Adapters, where there are any."""
    config = draft.config
    if not config.take("use_peft"):
        return
    draft.put(".lora.load_in_4bit", bool(config.take("load_in_4bit")), "load_in_4bit")
    rank, alpha = config.positive("lora_r"), float(config.take("lora_alpha"))
    draft.put(".lora.rank", rank, "lora_r")
    draft.put(".lora.alpha", alpha, "lora_alpha")
    for key in ("use_rslora", "use_dora"):
        draft.put(f".lora.{key}", bool(config.take(key)), key)
    draft.map("use_peft", draft.path(".lora"))
    draft.put(".lora.dropout", float(config.take("lora_dropout") or 0), "lora_dropout")
    modules = config.take("lora_target_modules")
    if modules in (["all-linear"], ["all_linear"]):
        draft.put(".lora.target_modules", "all-linear", "lora_target_modules")
    elif modules:
        draft.put(".lora.target_modules", modules, "lora_target_modules")
    else:
        draft.assume(
            ".lora.target_modules", ["q_proj", "v_proj"], "it is peft's default for Llama, Mistral, Qwen and Gemma",
            "Name the modules of another architecture.", "lora_target_modules",
        )  # fmt: skip


def optimizer(draft: Draft) -> None:
    """The schedule, the warmup and the bounds of AdamW."""
    config = draft.config
    draft.copy(["learning_rate"])
    warmup_key = (
        "warmup_ratio"
        if config.has("warmup_ratio") and not (config.has("warmup_steps") and config.take("warmup_steps"))
        else "warmup_steps"
    )
    warmup = config.take(warmup_key) or 0
    if warmup < 0 or (warmup_key == "warmup_ratio" and warmup >= 1):
        raise UserError(
            config.name(warmup_key), f"{warmup} is no length of a warmup", "Give a share below 1, or a number of steps."
        )
    schedule(draft, warmup, warmup_key)
    betas = [float(config.take("adam_beta1")), float(config.take("adam_beta2"))]
    draft.put(".optimizer.betas", betas, "adam_beta1", "adam_beta2")
    norm = config.take("max_grad_norm")
    draft.put(".optimizer.max_grad_norm", float(norm) if norm else NO_CLIPPING, "max_grad_norm")
    optim = config.take("optim")
    if optim is not None and re.fullmatch(
        r"adamw(_torch|_torch_fused|_hf|_apex_fused|_torch_xla|_torch_npu_fused|_anyprecision)?|optimi_adamw", optim
    ):
        draft.map("optim", draft.path(".optimizer"))
    elif optim == "muon":
        draft.put(".optimizer.kind", "muon", "optim")
    else:
        draft.leave(
            "optim", "the optimizer is AdamW or Muon with float32 moments", "Compare at a learning rate of AdamW's."
        )


def schedule(draft: Draft, warmup: float, warmup_key: str) -> None:
    """The learning rate after its warmup."""
    config = draft.config
    kind, other = config.take("lr_scheduler_type"), dict(config.take("lr_scheduler_kwargs") or {})
    least = other.pop("min_lr_rate", None)
    peak = other.pop("min_lr", None)
    name = config.name("lr_scheduler_kwargs")
    for value in (least, peak):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            raise UserError(name, f"{str(value)[:40]!r} is no least learning rate", "Give a number from 0.")
    if least is None and peak is not None:
        least = peak / config.take("learning_rate") if config.take("learning_rate") else 0
    plain = {
        "linear": "linear",
        "cosine": "cosine",
        "cosine_with_min_lr": "cosine",
        "constant": "constant",
        "constant_with_warmup": "constant",
    }
    draft.put(".optimizer.schedule", plain.get(kind, "cosine"), "lr_scheduler_type")
    if kind not in plain:
        draft.leave("lr_scheduler_type", "schedules are constant, linear and cosine", "A cosine stands in the recipe.")
    if kind == "constant" and warmup:
        if config.has(warmup_key):
            draft.leave(
                warmup_key, "their schedule `constant` has no warmup", "Nothing to do: the recipe has none either."
            )
        warmup = 0
    draft.put(".optimizer.warmup", warmup, warmup_key)
    final = min(1.0, float(least)) if least is not None and kind == "cosine_with_min_lr" else 0.0
    draft.put(".optimizer.final_share", final, "lr_scheduler_kwargs")
    if other:
        draft.leave(
            "lr_scheduler_kwargs", f"nothing reads {', '.join(sorted(map(str, other)))}", "See optimizer.final_share."
        )


def sources(draft: Draft, method: str) -> None:
    """The data sets, as they are: no near duplicates removed, all rows for training."""
    config = draft.config
    listed = [source(entry, config.name("datasets")) for entry in config.take("datasets") or []]
    keys = ["datasets"]
    if not listed:
        name = config.take("dataset_name")
        if name is None:
            raise UserError(
                config.name("dataset_name"), "the configuration does not name the data",
                f"Give it after the file: {config.name('dataset_name')}=OWNER/NAME, or a .jsonl file.",
            )  # fmt: skip
        listed = [
            source(
                {"path": name, "name": config.take("dataset_config"), "split": config.take("dataset_train_split")},
                "dataset_name",
            )
        ]
        keys = ["dataset_name", "dataset_config", "dataset_train_split"]
    for entry, each in zip(config.take("datasets") or [], listed, strict=False):
        unread = sorted(set(map(str, entry)) - {"path", "name", "data_files", "split", "id", "config"})
        if unread:
            draft.leave(
                "datasets", f"of {each['path']}: nothing reads {', '.join(unread)}", "Prepare the rows beforehand."
            )
    place_sources(draft, listed, method, *keys)


def place_sources(draft: Draft, listed: list[dict[str, Any]], method: str, *keys: str) -> None:
    """Write the sources, and a held-out part where the run evaluates on one."""
    config = draft.config
    evaluates = (
        method != "grpo" and config.take("eval_strategy") not in (None, "no", False) and not config.has("datasets")
    )
    if method == "dpo":
        draft.put("curate.kind", "curate")
    if evaluates and listed[0]["kind"] == "hub":
        held = {**listed[0], "split": config.take("dataset_test_split"), "splits": ["heldout"]}
        listed = [{**each, "splits": ["train"]} for each in listed]
        draft.put("curate.sources", [*listed, held], *keys, "dataset_test_split")
        draft.put("curate.splits", {"train": 0.5, "heldout": 0.5}, "eval_strategy")
    else:
        draft.put("curate.sources", listed, *keys)
        draft.put("curate.splits", {"train": 1.0}, "eval_strategy" if method != "grpo" else "dataset_name")
    if method != "grpo":
        if method == "dpo":
            draft.put(".kind", "preference")
            draft.put(".data", "data")
        heldout = "heldout" if evaluates and listed[0]["kind"] == "hub" else None
        draft.put(".heldout", heldout, "eval_strategy")
        every = config.take("eval_steps")
        if heldout and every is not None and every >= 1:
            draft.put(".evaluate_every", int(every), "eval_steps")
        best = config.take("load_best_model_at_end") and heldout
        draft.put(".checkpoint_selection", "best" if best else "last", "load_best_model_at_end")
    draft.put("curate.near_duplicates", None)
    draft.put("curate.decontaminate", None)


def source(entry: dict[str, Any], name: str) -> dict[str, Any]:
    """A source of a data set's name, or of its files.

    Raises:
        UserError: it names no data set.
    """
    path = entry.get("data_files") or entry.get("path") or entry.get("id")
    if isinstance(path, list) and len(path) == 1:
        path = path[0]
    if not isinstance(path, str) or not path.strip():
        raise UserError(
            name, f"{str(entry)[:80]} names no data set or single file", "Give `path`, or `data_files` as one pattern."
        )
    if path.endswith(FILES) or entry.get("data_files"):
        return {"kind": "file", "path": path}
    listed = {"kind": "hub", "path": path}
    config = entry.get("name") or entry.get("config")
    if config:
        listed["name"] = str(config)
    return listed | {"split": str(entry.get("split") or "train")}


def rewards(draft: Draft, known: dict[str, dict[str, Any]]) -> None:
    """What scores an answer.

    Args:
        known: names of the trainer's own rewards → ours.
    """
    config = draft.config
    names, weights = list(config.take("reward_funcs") or []), config.take("reward_weights")
    path = str(config.take("reward_model_name_or_path")) if config.has("reward_model_name_or_path") else ""
    if path:  # it is the first of them there
        names.insert(0, path if "/" in path else f"./{path}")
    if weights is not None and len(weights) != len(names):
        raise UserError(
            config.name("reward_weights"),
            f"{len(weights)} weights for {len(names)} rewards",
            "Give one for each.",
        )
    terms: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        term: dict[str, Any] | None = {"kind": "model", "model": name} if path and not number else reward(name, known)
        if term is None:
            draft.leave(
                "reward_funcs", f"{name} is none of ours{_hint(name, known)}",
                f"Write it with TRL's signature, and add {{kind: function, path: my_rewards:{re.sub(r'[^0-9A-Za-z_]', '_', name)}}}.",
            )  # fmt: skip
            continue
        terms.append(term | ({"weight": float(weights[number])} if weights else {}))
    single = len(terms) == 1 and "weight" not in terms[0] and "name" not in terms[0]
    value: Any = terms if terms and not single else terms[0] if terms else {"kind": "verifier"}
    if terms:
        draft.put(".reward", value, "reward_funcs", "reward_model_name_or_path", "reward_weights")
    else:
        draft.assume(
            ".reward", value, "no reward of the configuration has a counterpart",
            "The recipe scores by the verifier of the rows until you name one.", "reward_funcs",
        )  # fmt: skip
    if any(term.get("kind") == "verifier" and "verifier" not in term for term in terms):
        for each in draft.recipe["curate"]["sources"]:
            each.update(verifier="math", columns={**each.get("columns", {}), "answer": "solution"})


def _hint(name: str, known: dict[str, dict[str, Any]]) -> str:
    hint = did_you_mean(name, known, lists=False)
    return f" ({hint})" if hint else ""


def reward(name: str, known: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """A reward by its name; None where there is no counterpart.

    >>> reward("lab.rewards.brevity", {}), reward("org/scorer", {}), reward("x", {})
    ({'kind': 'function', 'path': 'lab.rewards:brevity'}, {'kind': 'model', 'model': 'org/scorer'}, None)
    """
    if name in known:
        return dict(known[name])
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name):
        module, _, function = name.rpartition(".")
        return {"kind": "function", "path": f"{module}:{function}"}
    return {"kind": "model", "model": name} if "/" in name and not name.isspace() else None


def length_of_run(draft: Draft) -> None:
    """Epochs or steps of a stage on fixed data."""
    config = draft.config
    steps = config.take("max_steps")
    if steps is not None and steps > 0:
        draft.put(".steps", steps, "max_steps")
        if config.has("num_train_epochs"):
            draft.map("num_train_epochs", "", "max_steps decides")
        return
    epochs = float(config.take("num_train_epochs"))
    if epochs <= 0:
        raise UserError(config.name("num_train_epochs"), f"{epochs} is no number of passes", "Give a number above 0.")
    draft.put(".epochs", epochs, "num_train_epochs")
    draft.map("max_steps", "", "not positive: the epochs decide")


def longest_row(draft: Draft, what: str) -> int:
    """The stage's limit of tokens.

    Args:
        what: the limit is of, for the message.

    Raises:
        UserError: there is none.
    """
    longest = draft.config.take("max_length")
    if longest is None or longest < 2:
        problem = f"a stage has a longest {what}"
        raise UserError(draft.config.name("max_length"), problem, "Give a number of tokens from 2.")
    draft.put(".max_length", longest, "max_length")
    return int(longest)


def rows_of_update(draft: Draft) -> int:
    """Rows of an update over all processes; says what was assumed of them."""
    config = draft.config
    size = config.positive("per_device_train_batch_size") * config.positive("gradient_accumulation_steps")
    return size * config.processes


def sft(draft: Draft) -> None:
    """The SFT stage."""
    config = draft.config
    length_of_run(draft)
    longest = longest_row(draft, "row")
    rows = rows_of_update(draft)
    packs = config.take("packing")
    tokens = rows * (config.row_tokens if config.row_tokens and not packs else longest)
    put_size(draft, ".tokens_per_step", tokens, *SIZES)
    if not packs and not config.row_tokens:
        draft.assume(
            ".tokens_per_step",
            tokens,
            f"theirs are {rows} rows a step, ours counts their tokens, which are at most {longest} a row",
            f"Give --row-tokens N, the mean of your rows, for {rows} rows a step.",
            *SIZES,
        )
    draft.put(
        ".micro_batch_tokens", longest * config.positive("per_device_train_batch_size"), "per_device_train_batch_size"
    )
    turns(draft)
    loss_per_token(draft)
    if config.has("chat_template_path"):
        draft.put("model.chat_template", config.take("chat_template_path"), "chat_template_path")


def loss_per_token(draft: Draft) -> None:
    """The loss of SFT."""
    config = draft.config
    if config.name("loss_type").startswith("trl."):  # axolotl's is GRPO's alone
        draft.put(".loss", "cross_entropy")
        return
    loss = config.take("loss_type")
    losses = {None: "cross_entropy", "nll": "cross_entropy", "chunked_nll": "cross_entropy", "dft": "dft"}
    draft.put(".loss", losses.get(loss, "cross_entropy"), "loss_type")
    if loss not in losses:
        draft.leave("loss_type", "not one of our losses", "`whetstone methods --slot sft.loss` lists them.")


def turns(draft: Draft) -> None:
    """Which messages are trained."""
    config = draft.config
    keys = ("assistant_only_loss", "completion_only_loss")
    if config.take("assistant_only_loss") or config.take("completion_only_loss"):
        draft.put(".turns", "all" if config.take("assistant_only_loss") else "last", *keys)
        return
    draft.assume(
        ".turns",
        "last",
        "of `messages` theirs trains every token, the user's too, and of prompt and completion the completion",
        "For conversations set `turns: all`: every answer is trained; prompts never are.",
        *keys,
    )


def pairs(draft: Draft) -> None:
    """The sizes of the stage that learns from pairs."""
    length_of_run(draft)
    longest_row(draft, "answer")
    put_size(draft, ".pairs_per_step", rows_of_update(draft), *SIZES)
