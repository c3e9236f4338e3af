"""A Python script that uses TRL, read without running it: the literal arguments of its configuration, trainer and data set."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

from pipelines.base.errors import UserError
from tasks.importing import shell, trl

CONFIGS = {"GRPOConfig": "grpo", "SFTConfig": "sft", "DPOConfig": "dpo"}
"""Class → the method."""
LORA = {
    "r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout", "target_modules": "lora_target_modules",
    "use_rslora": "use_rslora", "use_dora": "use_dora", "modules_to_save": "lora_modules_to_save",
    "target_parameters": "lora_target_parameters",
}  # fmt: skip
"""peft's LoraConfig → TRL's field; its other arguments are called `LoraConfig.NAME`."""
PEFT = {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0}
"""peft's defaults, which are not TRL's."""
PLUMBING = ("args", "train_dataset", "eval_dataset", "processing_class", "tokenizer", "peft_config")
"""Arguments of a trainer that hand over what is read elsewhere."""
BUILDERS = ("json", "csv", "parquet")
"""Names with which load_dataset reads files."""


def read(path: Path) -> tuple[dict[str, Any], str, dict[str, str]]:
    """The fields of the configuration, the method, and arguments that are no literals (name → source).

    Raises:
        UserError: it is not Python, or it has no call of GRPOConfig, SFTConfig or DPOConfig.
    """
    try:
        tree = ast.parse(shell.read(path), filename=str(path))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise UserError(
            path, f"not readable as Python{f' (line {line})' if line else ''}", "Correct it there."
        ) from None
    bound = Counter(
        node.arg if isinstance(node, ast.arg) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )
    constants = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and bound[target.id] == 1
    }
    values: dict[str, Any] = {}
    unread: dict[str, str] = {}
    method = None
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in CONFIGS:
            if method is not None:
                raise UserError(path, "it has several configurations", "Give the fields of one as YAML.")
            method = CONFIGS[name]
            _arguments(call, constants, values, unread, None)
        elif name in ("LoraConfig", "LoRAConfig"):
            values |= {"use_peft": True, **PEFT}
            _arguments(call, constants, values, unread, LORA)
        elif name in ("GRPOTrainer", "SFTTrainer", "DPOTrainer"):
            _trainer(call, constants, values, unread)
        elif name == "load_dataset":
            _data(call, constants, values)
    if method is None:
        raise UserError(path, f"it has no call of {', '.join(CONFIGS)}", "Give its fields as YAML.")
    return values, method, unread


def _literal(node: ast.AST, constants: dict[str, ast.expr]) -> Any:
    """The value of a literal, or of a name that one is assigned to.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(node, ast.Name) and node.id in constants:
        node = constants[node.id]
    try:
        return ast.literal_eval(node)
    except (TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _arguments(
    call: ast.Call,
    constants: dict[str, ast.expr],
    values: dict[str, Any],
    unread: dict[str, str],
    names: dict[str, str] | None,
) -> None:
    for keyword in call.keywords:
        name = (
            keyword.arg if names is None or keyword.arg is None else names.get(keyword.arg, f"LoraConfig.{keyword.arg}")
        )
        if name is None:
            if keyword.arg is None:
                unread["**"] = ast.unparse(keyword.value)
            continue
        try:
            values[name] = _literal(keyword.value, constants)
        except ValueError:
            unread[name] = ast.unparse(keyword.value)


def _trainer(call: ast.Call, constants: dict[str, ast.expr], values: dict[str, Any], unread: dict[str, str]) -> None:
    for keyword in call.keywords:
        if keyword.arg == "model":
            try:
                values["model_name_or_path"] = str(_literal(keyword.value, constants))
            except ValueError:
                unread["model"] = ast.unparse(keyword.value)
        elif keyword.arg == "reward_funcs":
            listed = keyword.value.elts if isinstance(keyword.value, ast.List) else [keyword.value]
            values["reward_funcs"] = [_function(node, constants) for node in listed]
        elif keyword.arg is not None and keyword.arg not in PLUMBING:
            value = _written(keyword.value, constants)
            if value is not None:
                values[keyword.arg] = value


def _function(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    """The name of a reward function; what is no name as it is written."""
    return str(_written(node, constants))


def _written(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    """The value of a literal; what is none as it is written."""
    try:
        return _literal(node, constants)
    except ValueError:
        return ast.unparse(node)


def _data(call: ast.Call, constants: dict[str, ast.expr], values: dict[str, Any]) -> None:
    """The data of the first call of load_dataset; a name that is not written out is None, and then an error asks for it."""
    if "dataset_name" in values:
        return
    named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    places = dict(zip(("path", "name", "data_dir", "data_files"), call.args, strict=False)) | named
    stated: dict[str, Any] = {}
    for argument in ("path", "name", "split", "data_files"):
        if argument in places:
            try:
                stated[argument] = _literal(places[argument], constants)
            except ValueError:
                stated[argument] = None
    path = stated.get("path")
    values["dataset_name"] = _file(stated) if "data_files" in stated or path in BUILDERS else path
    for argument, field in (("name", "dataset_config"), ("split", "dataset_train_split")):
        if stated.get(argument) is not None:
            values[field] = str(stated[argument])


def _file(stated: dict[str, Any]) -> str | None:
    """The one file that a call of load_dataset names; None where it is another thing than a text."""
    files = stated.get("data_files")
    if isinstance(files, list) and len(files) == 1:
        files = files[0]
    return files if stated.get("path") in BUILDERS and isinstance(files, str) and files.endswith(trl.FILES) else None
