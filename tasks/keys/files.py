"""Digests of the files that a stage reads, by names that do not depend on where the files lie or how a path is spelled."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.benchmark_files import read_yaml
from pipelines.base.errors import DataError
from pipelines.base.files import file_sha256, texts
from pipelines.data.files import data_files, data_root
from pipelines.recipe.model_path import gguf_of
from pipelines.recipe.read import Recipe
from pipelines.recipe.settings import Source
from pipelines.recipe.stage_kind import Reads

TOKENIZER_SUFFIXES = {".json", ".jinja", ".model", ".txt", ".tiktoken", ".spm", ".vocab", ".bpe"}
WEIGHT_SUFFIXES = {".safetensors", ".bin"}
NOT_READ = (
    "license",
    "licence",
    "copying",
    "notice",
    "readme",
    "trainer_state",
    "training_args",
    "optimizer",
    "scheduler",
)
"""Beginnings of names in a model's or benchmark's folder that nothing reads."""


@dataclass
class Files:
    """Digests by name, and where each file was found; only the digests are part of a key."""

    digests: dict[str, str] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    """Name → path as a message shows it."""

    def add(self, label: str, root: Path, paths: Iterable[Path]) -> bool:
        """Take in files as `label/path below root`; whether there were any."""
        some = False
        for path in sorted(set(paths)):
            name = f"{label}/{Path(os.path.relpath(path, root)).as_posix()}"
            self.digests[name], self.where[name] = file_sha256(path), str(path)
            some = True
        return some


def local_folder(path: str | None) -> Path | None:
    """The folder that a path names, or None for hub names."""
    folder = Path(path).expanduser() if path else None
    return folder if folder is not None and folder.is_dir() else None


def model_source(path: str | None, *, weights: bool, code: bool) -> tuple[Path, list[Path]] | None:
    """The files that a model path names and the folder that their names are relative to; None for hub names.

    Raises:
        ModelError: the path names a GGUF file that is not there.
    """
    gguf = gguf_of(path)
    if gguf is not None:
        return gguf.parent, [gguf]
    folder = local_folder(path)
    return None if folder is None else (folder, model_files(folder, weights=weights, code=code))


def source_files(source: Source) -> tuple[Path, list[Path]]:
    """The files that a source reads and the folder that their names are relative to: a glob's part without wildcards."""
    if source.elsewhere:
        return Path(), []
    if source.kind == "hub":
        folder = Path(str(source.path)).expanduser()
        return folder, [p for p in _below(folder) if not _unread(p, keep_readme=True)] if folder.is_dir() else []
    return data_root(str(source.path)), [p for p in data_files(str(source.path)) if p.is_file()]


def is_local(path: str | None) -> bool:
    """Whether the files of a model path are on this machine, and so in the key."""
    return gguf_of(path) is not None or local_folder(path) is not None


def model_files(folder: Path, *, weights: bool, code: bool) -> list[Path]:
    """What transformers reads of a model folder."""
    suffixes = TOKENIZER_SUFFIXES | (WEIGHT_SUFFIXES if weights else set()) | ({".py"} if code else set())
    read_files = []
    for path in [*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")]:
        of_weights = path.name.endswith(".index.json") or path.name == "generation_config.json"
        kind = path.suffix in suffixes or path.name.startswith("vocab.")
        if path.is_file() and kind and not _unread(path) and (weights or not of_weights):
            read_files.append(path)
    return read_files


def _below(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(p.startswith(".") or p == "__pycache__" for p in path.relative_to(folder).parts)
    ]


def _unread(path: Path, *, keep_readme: bool = False) -> bool:
    # A dataset's README is read: its head says which files are which split.
    name = path.name.lower()
    return any(name.startswith(n) for n in NOT_READ if not (keep_readme and n == "readme"))


def benchmark_files(names: Iterable[str], folders: Iterable[Path], files: Files) -> list[Path]:
    """Take in what the tasks of these names read: their YAMLs, what these include and name, and the files beside them.

    Returns:
        the Python files among them.
    """
    code: list[Path] = []
    for folder in folders:
        bodies = {path: read_yaml(path) for path in sorted(_below(folder)) if path.suffix in (".yaml", ".yml")}
        tasks = {
            str(body.get(k)): path for path, body in bodies.items() for k in ("task", "group", "tag") if body.get(k)
        }
        tasks |= {path.stem: path for path in bodies}
        queue = [(tasks[name], True) for name in names if name in tasks]
        visited: set[Path] = set()
        while queue:
            path, is_task = queue.pop()
            if path in visited:
                continue
            visited.add(path)
            body = bodies.get(path) or read_yaml(path)
            named = list(_named(body, path.parent))
            task_files = [path, *(p for p in named if p.is_file())]
            task_files += _beside(path, bodies) if is_task else path.parent.glob("*.py")  # an included YAML's functions
            for subfolder in (p for p in named if p.is_dir() and p != path.parent and not folder.is_relative_to(p)):
                task_files += _below(subfolder)
            files.add("benchmarks", folder, task_files)
            code += [p for p in task_files if p.suffix == ".py"]
            queue += [(p, False) for p in task_files if p.suffix in (".yaml", ".yml")]
            queue += [(tasks[text], True) for text in texts(body.get("task")) if text in tasks]
    return code


def _beside(path: Path, bodies: dict[Path, Any]) -> list[Path]:
    """Files in a YAML's folder and below, without other benchmarks: YAMLs, and folders that have some."""
    others = {p.parent for p in bodies if p.parent != path.parent and p.parent.is_relative_to(path.parent)}
    return [
        p
        for p in _below(path.parent)
        if p not in bodies and not _unread(p) and not any(p.is_relative_to(other) for other in others)
    ]


def _named(body: dict[str, Any], base: Path) -> Iterator[Path]:
    """Files and folders that a benchmark's YAML names, relative to itself, to the working folder or absolute."""
    for key in ("include", "dataset_path", "dataset_kwargs", "data_files", "data_dir", "dataset_name"):
        for text in texts(body.get(key)):
            if not text.strip("./ ") or "\0" in text or len(text) > 1000:
                continue
            for start in (base, Path()):
                path = os.path.normpath(start / Path(text).expanduser())
                yield from (Path(p) for p in ([path] if os.path.exists(path) else glob.glob(path, recursive=True)))


def _add_elsewhere(files: Files, label: str, source: Source, field: str) -> None:
    """Add the files of a source that lies elsewhere, each by its version."""
    from pipelines.recipe import fetched

    try:
        for file in fetched.listing(source):
            name = f"{label}/{file.name}"
            files.digests[name], files.where[name] = file.version, file.url
    except DataError as error:
        raise error.moved("curate.sources", field) from None


def of_stage(recipe: Recipe, reads: Reads, benchmarks: Path) -> tuple[Files, list[Path]]:
    """Every file outside the project's code that a stage reads, and the benchmarks' Python among them.

    Args:
        benchmarks: the project's own benchmarks.
    """
    files, code = Files(), []
    for label, (source, place) in reads.sources.items():
        if source.elsewhere:
            _add_elsewhere(files, label, source, ".".join(map(str, place[:-1])))
        else:
            files.add(label, *source_files(source))
        if (
            source.image_folder is not None
            and source.images == "keep"
            and (folder := local_folder(source.image_folder))
        ):
            files.add(f"{label}.images", folder, _below(folder))
    for names, own_folder in reads.benchmarks:
        include = local_folder(own_folder)
        code += benchmark_files(names, [benchmarks, *([include] if include else [])], files)
    for text in dict.fromkeys(texts(reads.environment_settings)):
        path = Path(text).expanduser()
        if 0 < len(text) < 1000 and "\0" not in text and path.is_file():
            name = f"environment/{text}"
            files.digests[name], files.where[name] = file_sha256(path), text
    for label, text in reads.files.items():
        files.digests[label], files.where[label] = file_sha256(Path(text)), text
    model = recipe.model
    for label, each in reads.models.items():
        if each.path and (read_files := model_source(each.path, weights=each.weights, code=model.trust_remote_code)):
            files.add(label, *read_files)
    template = (
        Path(model.chat_template).expanduser() if model.chat_template and "{" not in model.chat_template else None
    )
    if template is not None and template.is_file():
        name = "model.chat_template"
        files.digests[name], files.where[name] = file_sha256(template), str(model.chat_template)
    return files, code
