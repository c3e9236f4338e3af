"""docs/coming-from*.md: names of other trainers beside ours, from the tables that `whetstone import` reads with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tasks.importing import axolotl, open_r1, trl, trl_preference, verl
from tasks.importing.table import Field, tables

GENERATED = "Generated from the tables in `tasks/importing` by `make docs`; do not edit."
INTRODUCTION = f"""# Coming from TRL, open-r1, verl or axolotl

{GENERATED}

`whetstone import` makes a recipe of a configuration of another trainer. What their fields are called here, and which have no counterpart:

LINKS

```
whetstone import config.yaml --to my.yaml                 # YAML of TRL, open-r1, verl or axolotl; which it is, is recognised
whetstone import config.yaml learning_rate=1e-6 --to my.yaml              # with what was given on the command line after it
whetstone import --to my.yaml config.yaml -- --learning_rate 1e-6         # the same, as it was written there
whetstone import run.sh --to my.yaml                      # the overrides of a script with verl or trl; it is read, never executed
whetstone import train.py --to my.yaml                    # the literal arguments of GRPOConfig, SFTConfig or DPOConfig
whetstone import config.yaml --processes 8 --rows 7473 --json             # what was mapped, assumed and left out
```

The recipe says at its top what the configuration does not say and what has no counterpart, with what to do instead, and behind each field
which of theirs it is from. Their defaults are written out too, so that the run means the same; those in the tables are of TRL 1.x and axolotl
in July 2026 and of verl in January 2026, and earlier versions had others (TRL's `beta` and `loss_type`, for example).

What every import does:

- All rows train (`splits: {{train: 1.0}}`) unless the configuration evaluates on some, and `near_duplicates` and `decontaminate` are null: the
  other trainers clean nothing. Equal rows and rows that cannot be read are dropped all the same; the data card counts them.
- `--processes` is how many processes it ran with: TRL, open-r1 and axolotl count batches by device. verl counts problems of a step, as we do.
- An RL run has `steps`, one draw of `prompts` problems each. Where the other side counts epochs, `--rows` is how many rows the data have.
- Micro-batches have no meaning of their own here: a mean is always over the whole update, where theirs are often means of micro-batches' means.
"""
HEADER = f"""# Coming from TRAINER

{GENERATED}

[What every import does](coming-from.md) is on a page of its own. In the tables `.name` is a field of the stage that trains: `rlvr` for GRPO
and PPO, `sft`, or a stage of kind `preference`; an empty cell means that there is nothing to say.
"""
ABOUT = {
    "TRL": """A step of ours draws `prompts` problems with `group_size` answers each and makes `mini_batches` updates of them,
`epochs` times. A draw of TRL's GRPO is `per_device_train_batch_size` x processes x `steps_per_generation`
completions (default: `gradient_accumulation_steps`), so `prompts` is that divided by `num_generations`, and
`mini_batches` is `steps_per_generation` / `gradient_accumulation_steps`. `max_steps` counts updates. The column
`solution`, which `accuracy_reward` reads, becomes `columns: {answer: solution}`. Columns of the data reach a
reward function under their own names, as there. For SFT without packing `--row-tokens` turns rows of a step
into tokens.""",
    "open-r1": f"""[TRL's fields](coming-from-trl.md) and these. It pins TRL 0.18.0, whose defaults differ: for GRPO
{", ".join(f"`{name}` `{value}`" for name, value in open_r1.defaults("grpo").items())}.""",
    "verl": """`data.train_batch_size` and `ppo_mini_batch_size` are problems, as ours; a step is a draw. Rows name their
verifier by the columns of verl's own data sets, else it is `math`; a reward function of verl's must be wrapped
into one with TRL's signature. Only the PPO trainer (`main_ppo`) is read, not the SFT trainers.""",
    "axolotl": """SFT trains all answers of a conversation (`turns: all`), as there. `rl: dpo`, `ipo`, `orpo`, `kto` and `simpo`
become a stage of kind `preference`, `rl: grpo` an rlvr stage with the fields of the section `trl`.""",
}
"""Trainer → what to know beside its table."""


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")


def _code(value: Any) -> str:
    return "" if value is None else f"`{_cell(value)}`"


def _table(fields: Iterable[Field]) -> list[str]:
    """Fields with a counterpart, then those without, of which those with one reason stand together."""
    fields = list(fields)
    lines = ["| theirs | ours | their default | what differs |", "|---|---|---|---|"]
    for field in fields:
        if field.to:
            names = " or ".join(f"`{name}`" for name in field.names)
            lines.append(f"| {names} | `{field.to}` | {_code(field.default)} | {_cell(field.note)} |")
    lines += ["", "Without a counterpart:", "", "| theirs | why | instead |", "|---|---|---|"]
    groups: dict[tuple[str, str], list[str]] = {}
    for field in fields:
        if not field.to:
            groups.setdefault((field.note, field.instead), []).extend(f"`{name}`" for name in field.names)
    return [
        *lines,
        *(f"| {', '.join(names)} | {_cell(why)} | {_cell(instead)} |" for (why, instead), names in groups.items()),
        "",
    ]


def _renames(title: str, pairs: dict[str, Any]) -> list[str]:
    shown = {
        name: ours if isinstance(ours, str) else f"`{ours}`".replace("'", "").replace("`", "")
        for name, ours in pairs.items()
    }
    return [
        f"| {title} | ours |",
        "|---|---|",
        *(f"| `{name}` | `{_cell(ours)}` |" for name, ours in shown.items()),
        "",
    ]


def _tables(trainer: str) -> list[str]:
    """The tables of a trainer's page."""
    table = tables("trl")
    if trainer == "TRL":
        lines = ["## Every method", "", *_table(table["common"])]
        lines += ["## GRPO", "", *_table(table["grpo"]), *_renames("reward_funcs", trl.REWARDS)]
        lines += ["## SFT", "", *_table(table["sft"])]
        return [*lines, "## DPO", "", *_table(table["dpo"]), *_renames("loss_type", trl_preference.LOSSES)]
    if trainer == "open-r1":
        rewards = open_r1.REWARDS | {open_r1.OVERLONG: "shaping: [soft_overlong]"}
        fields = tables("open_r1")
        return [*_table([*fields["both"], *fields["grpo"]]), *_renames("reward_funcs", rewards)]
    return _table(verl.fields() if trainer == "verl" else axolotl.fields())


def file_name(trainer: str) -> str:
    """The page of a trainer."""
    return f"coming-from-{trainer.lower()}.md"


def markdown(trainer: str | None = None) -> str:
    """The text of a trainer's page; without one, that of the page with what all imports share."""
    if trainer is None:
        return INTRODUCTION.replace("LINKS", "\n".join(f"- [{name}]({file_name(name)})" for name in ABOUT))
    lines = [HEADER.replace("TRAINER", trainer), ABOUT[trainer], "", *_tables(trainer)]
    return "\n".join(lines).rstrip() + "\n"
