"""The key of a stage: a digest of everything that can change what it makes, with the parts kept for explanations."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pipelines.recipe.read import ROOT, SLOTS, Recipe, resolve
from pipelines.stage.files import digest, file_sha256

PROJECT = ("pipelines", "evaluation")
LIBRARIES = {
    "curate": ("reasoning-gym", "math-verify", "datasets", "tokenizers", "transformers", "numpy"),
    "sft": ("torch", "transformers", "tokenizers", "peft"),
    "rlvr": ("torch", "transformers", "tokenizers", "peft", "reasoning-gym", "math-verify"),
    "evaluate": ("torch", "transformers", "tokenizers", "lm_eval", "reasoning-gym", "math-verify", "numpy"),
}
ENTRY = {
    "curate": "pipelines.curate.__main__",
    "sft": "pipelines.sft.__main__",
    "rlvr": "pipelines.rlvr.__main__",
    "evaluate": "evaluation.__main__",
}
"""The module that runs as the stage's process."""


def settings_of(recipe: Recipe, stage: str) -> dict[str, Any]:
    """The part of the resolved recipe that a stage reads."""
    model = resolve(recipe.model)
    own = resolve(getattr(recipe, stage))
    if stage == "curate":
        used = {k: model[k] for k in ("path", "revision", "chat_template", "trust_remote_code")}
        if recipe.model.fresh is not None:
            used["tokenizer"] = model["tokenizer"]
        if recipe.evaluate is not None and recipe.curate.decontaminate is not None:
            names = sorted(t.name for t in recipe.evaluate.tasks)
            return {"curate": own, "model": used, "decontaminate_against": [*names, recipe.evaluate.include]}
        return {"curate": own, "model": used}
    if stage == "evaluate":
        return {
            "evaluate": own,
            "model": {k: v for k, v in model.items() if k not in ("fresh", "tokenizer")},
        }
    if stage == "rlvr":
        return {"rlvr": own, "model": {k: v for k, v in model.items() if k not in ("fresh", "tokenizer")}}
    return {"sft": own, "model": model}


def key_parts(recipe: Recipe, stage: str, inputs: dict[str, str]) -> dict[str, Any]:
    """Everything the key is made of.

    Args:
        inputs: name → content digest of the artifacts the stage reads.
    """
    settings = settings_of(recipe, stage)
    parts = {
        "settings": settings,
        "inputs": dict(inputs),
        "seed": recipe.seed,
        "source": _source(recipe, stage),
        "versions": {name: _version(name) for name in LIBRARIES[stage]},
        "device": device_class() if stage != "curate" else "any",
    }
    files = _files(recipe, stage)
    return parts | ({"files": files} if files else {})


def stage_key(parts: dict[str, Any]) -> str:
    """16 hexadecimal characters."""
    return digest(parts)[:16]


@cache
def device_class() -> str:
    """What the numerics depend on: the kind of processor. Asked of the driver, not of torch, to stay quick."""
    if shutil.which("nvidia-smi"):
        import subprocess

        ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        found = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=False)
        if found.returncode == 0 and found.stdout.strip():
            return found.stdout.strip().splitlines()[0]
    return "cpu"


@cache
def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _files(recipe: Recipe, stage: str) -> dict[str, str]:
    """Digests of the files outside the project that the stage reads."""
    found: dict[str, str] = {}
    if stage == "curate":
        for source in recipe.curate.sources:
            if source.kind == "file":
                paths = sorted(Path().glob(str(source.path))) if not Path(str(source.path)).is_absolute() else []
                for path in paths or [Path(str(source.path)).expanduser()]:
                    if path.is_file():
                        found[str(path)] = file_sha256(path)
        found |= _benchmark_files(recipe)
    if stage == "evaluate":
        found |= _benchmark_files(recipe)
    base = recipe.model.path
    if base:
        found |= _model_files(base, weights=stage != "curate")
    if stage == "curate" and recipe.curate.difficulty is not None:
        found |= _model_files(recipe.curate.difficulty.model, weights=True)
    if stage == "rlvr" and recipe.rlvr is not None:
        for name in (*recipe.rlvr.reward_functions, recipe.rlvr.reward.get("judge")):
            file = _plugin(name) if name else None
            if file is not None:
                found[str(name)] = file_sha256(file)
    template = recipe.model.chat_template
    if template and "{" not in template and Path(template).is_file():
        found[template] = file_sha256(Path(template))
    return found


def _plugin(name: str) -> Path | None:
    """The file of `package.module:function`, searched as the stage will; None where there is none, which it will say."""
    inner = Path(*name.partition(":")[0].split("."))
    for base in (Path.cwd(), *map(Path, sys.path)):
        for path in (base / inner.with_suffix(".py"), base / inner / "__init__.py"):
            if path.is_file():
                return path
    return None


def _model_files(folder: str, *, weights: bool) -> dict[str, str]:
    """Digests of a local model folder; nothing for a hub name (pin those with `model.revision`)."""
    if not Path(folder).is_dir():
        return {}
    patterns = ("*.json", "*.safetensors") if weights else ("*.json",)
    return {str(path): file_sha256(path) for pattern in patterns for path in sorted(Path(folder).glob(pattern))}


def _benchmark_files(recipe: Recipe) -> dict[str, str]:
    if recipe.evaluate is None:
        return {}
    found = {}
    for folder in (
        ROOT / "evaluation" / "benchmarks",
        Path(recipe.evaluate.include) if recipe.evaluate.include else None,
    ):
        if folder is not None and folder.is_dir():
            for task in recipe.evaluate.tasks:
                for path in sorted(folder.rglob("*")):
                    if path.is_file() and (path.stem.split(".")[0] == task.name or path.parent.name == task.name):
                        found[path.name] = file_sha256(path)
    return found


def _source(recipe: Recipe, stage: str) -> dict[str, str]:
    """Module → digest of its code for every project module the stage can reach, the chosen methods included."""
    entries = [ENTRY[stage]]
    if stage == "rlvr" and recipe.rlvr is not None:
        for slot in SLOTS:
            spec = getattr(recipe.rlvr, slot)
            for one in spec if isinstance(spec, list) else [] if spec is None else [spec]:
                entries.append(f"pipelines.rlvr.{slot}.{one.get('kind')}")
    if stage in ("curate", "rlvr", "evaluate"):
        entries += [f"pipelines.verifiers.{p.stem}" for p in (ROOT / "pipelines" / "verifiers").glob("[a-z]*.py")]
    if stage == "curate" and recipe.evaluate is not None:
        entries.append("evaluation.documents")
    if stage == "evaluate":
        entries.append("evaluation.scoring")
    return {name: code for entry in entries for name, code in reach(entry).items()}


@cache
def reach(module: str) -> dict[str, str]:
    """The module and all project modules it imports, directly or not: name → digest of the code, comments left out."""
    seen: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _path(name)
        if name in seen or path is None:
            continue
        tree = ast.parse(path.read_text())
        seen[name] = digest(ast.dump(tree))
        waiting += _imports(tree)
        parent = name.rpartition(".")[0]
        if parent:
            waiting.append(parent)
    return dict(sorted(seen.items()))


def _path(module: str) -> Path | None:
    base = ROOT.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _imports(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
    return [name for name in found if name.split(".")[0] in PROJECT]


def difference(old: Any, new: Any, path: str = "", limit: int = 3) -> list[str]:
    """What changed between two sets of key parts, in words; a method chosen anew is told once, not as code too.

    >>> difference({"settings": {"rlvr": {"steps": 3}}}, {"settings": {"rlvr": {"steps": 5}}})
    ['rlvr.steps changed 3 → 5']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        found: list[str] = []
        for key in sorted(set(old) | set(new)):
            deeper = key if path in ("", "settings") else f"{path}.{key}"
            found += difference(old.get(key), new.get(key), deeper, limit)
        return found
    if old == new:
        return []
    top, _, rest = path.partition(".")
    if top == "source":
        return [f"the code of {rest} changed"] if old and new else []
    if top == "inputs":
        return [f"its input {rest} changed"]
    if top == "files":
        return [f"the file {rest} changed"]
    if top == "versions":
        return [f"{rest} changed {old} → {new}"]
    return [f"{path.removesuffix('.kind')} changed {_short(old)} → {_short(new)}"]


def _short(value: Any) -> str:
    if isinstance(value, dict) and "kind" in value and len(value) == 1:
        return str(value["kind"])
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
