"""What a model folder holds, checked before and after it is loaded: nothing damaged, missing, left over or random.

transformers fills tensors that a checkpoint lacks with random numbers and goes on with a warning; here that is an error.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import zipfile
from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.base.errors import ModelError, UserError, out_of_memory
from pipelines.data.control import TAGS
from pipelines.recipe.model_path import ADAPTER_CONFIG, CLASSIFIER, PLAIN, architecture_of, made_as

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger("whetstone")
JSON_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "model.safetensors.index.json", "pytorch_model.bin.index.json",
)  # fmt: skip
"""Files of a folder that transformers reads as JSON objects where they are there."""
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Where weights are looked for; the first that is there is the one that transformers loads."""
LEFTOVERS = (
    "*.attn.bias", "*.attn.masked_bias", "*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq",
    "*.position_ids", "*_extra_state",
)  # fmt: skip
"""Buffers that old checkpoints hold and today's code computes: no weight is lost when they stay unread."""
SHOWN = 5
"""Tensors that a message lists."""


def check_folder(folder: Path) -> None:
    """Read every header of a local model folder, so that a damaged file is named before anything is loaded.

    Raises:
        ModelError: a JSON file is none, a shard is missing, a weight file is empty, truncated or corrupt, weights are
            integers or quantised, or the folder holds adapters.
    """
    bodies = check_json(folder)
    if (folder / ADAPTER_CONFIG).exists():
        raise ModelError(
            "model.path",
            f"{folder} holds adapters ({ADAPTER_CONFIG})",
            "Merge them into their base model first (peft: merge_and_unload) and name the merged folder; of a stage it is `model` beside "
            "`adapter`.",
        )
    if "config.json" not in bodies:
        raise ModelError(
            "model.path", f"{folder} has no config.json; give a transformers model folder, a .gguf file or a hub name."
        )
    quantised = bodies["config.json"].get("quantization_config")
    if quantised:
        method = quantised.get("quant_method", "unknown method") if isinstance(quantised, dict) else quantised
        raise ModelError(
            "model.path",
            f"{folder / 'config.json'} says that the weights are quantised ({method})",
            "Training and the sampler need plain weights; give the model it was made from.",
        )
    for path in weight_files(folder, bodies):
        integers = sorted(n for n, dtype in tensor_dtypes(path).items() if _is_integer(dtype) and not leftover(n))
        if integers:
            raise ModelError(
                "model.path",
                f"{path} holds integers where weights belong: {listed(integers)}",
                "Save the model again in float32, bfloat16 or float16.",
            )


def check_language_model(folder: Path, takes: Collection[str] = (PLAIN,)) -> None:
    """Refuse a reward model where a language model is asked, and one that would be read otherwise than it was trained.

    Args:
        takes: what the model may be, as ports of stages name it.

    Raises:
        ModelError: the folder holds a sequence classifier, or its stage says that it is something else.
    """
    if (kind := made_as(folder)) not in takes:
        raise ModelError(
            "model.path",
            f"{folder} is a {kind}, which cannot be read here as it was trained",
            "Name the model that it was trained from, or another language model.",
        )
    architecture = architecture_of(folder) or ""
    if architecture.endswith(CLASSIFIER):
        raise ModelError(
            "model.path",
            f"{folder} is a reward model ({architecture}), which cannot be sampled",
            "Name the model that it was trained from, or another language model.",
        )


def check_json(folder: Path) -> dict[str, dict[str, Any]]:
    """The folder's JSON files that transformers reads, by name.

    Raises:
        ModelError: one of them is no JSON object.
    """
    bodies = {}
    for name in JSON_FILES:
        path = folder / name
        if not path.is_file():
            continue
        try:
            body = json.loads(path.read_text(encoding="utf-8"), parse_constant=_constant)
        except (ValueError, RecursionError) as error:
            raise ModelError(
                "model.path", f"{path} is not JSON ({error})", "Copy the file again from where the model came from."
            ) from None
        if not isinstance(body, dict):
            raise ModelError("model.path", f"{path} holds no JSON object", "Copy the file again from its source.")
        bodies[name] = body
    return bodies


def _constant(name: str) -> float:
    """Some models' configurations hold an infinite limit; nothing is meant by NaN.

    Raises:
        ValueError: it is NaN.
    """
    if name == "NaN":
        raise ValueError("it holds NaN, which is no number")
    return float(name)


def weight_files(folder: Path, bodies: dict[str, dict[str, Any]]) -> list[Path]:
    """The files that transformers will read the weights from.

    Raises:
        ModelError: there are none, or a shard that the index names is missing.
    """
    chosen = next((name for name in WEIGHTS if (folder / name).exists()), None)
    if chosen is None:
        raise ModelError(
            "model.path", f"{folder} has no weights ({' or '.join(WEIGHTS)})", "Copy the folder again, whole."
        )
    if not chosen.endswith(".index.json"):
        return [folder / chosen]
    shards = bodies[chosen].get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(s, str) for s in shards.values()):
        raise ModelError("model.path", f"{folder / chosen} maps no tensors to files (weight_map).")
    paths = [folder / name for name in sorted(set(shards.values()))]
    for path in paths:
        if ".." in path.relative_to(folder).parts if path.is_relative_to(folder) else True:
            raise ModelError("model.path", f"{folder / chosen} names a file outside the folder: {path}.")
        if not path.is_file():
            raise ModelError("model.path", f"{path} is missing; {chosen} names it", "Copy the shard from its source.")
    return paths


def tensor_dtypes(path: Path) -> dict[str, str]:
    """Tensor name → dtype of a weight file, from its header; no tensor is read.

    Raises:
        ModelError: the file is empty, truncated or corrupt.
    """

    def damaged(why: object) -> ModelError:
        return ModelError(
            "model.path", f"{path} cannot be read: {why}", "Copy the file again from where the model came from."
        )

    if path.stat().st_size == 0:
        raise damaged("it is empty")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as tensors:
                return {name: str(tensors.get_slice(name).get_dtype()) for name in tensors.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise damaged(error) from None
    import torch

    try:
        state = torch.load(path, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(path))
    except (RuntimeError, EOFError, pickle.UnpicklingError, OSError, IndexError, KeyError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise damaged(first) from None
    if not isinstance(state, dict):
        raise damaged("it holds no dictionary of tensors")
    return {str(name): str(tensor.dtype) for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}


def _is_integer(dtype: str) -> bool:
    return dtype.removeprefix("torch.").lower().startswith(("i", "u", "bool"))


def leftover(name: str) -> bool:
    """Whether a tensor is a buffer that today's code computes itself."""
    return any(fnmatchcase(f".{name}", pattern) for pattern in LEFTOVERS)


def check_loaded(
    model: PreTrainedModel,
    info: dict[str, Any],
    where: str | Path,
    *,
    allow_missing: Iterable[str] = (),
    allow_unexpected: Iterable[str] = (),
) -> None:
    """Compare what a model needs with what its checkpoint had.

    Args:
        info: transformers' `output_loading_info`, loaded with `ignore_mismatched_sizes`; weights that are tied to one
            that was there do not count as missing in it.
        where: the folder or hub name, for the message.
        allow_missing, allow_unexpected: names or globs of tensors that may be absent, or may stay unread.

    Raises:
        ModelError: tensors are missing, of another shape, or not of this model; or some are not finite.
    """
    missing = sorted(n for n in info["missing_keys"] if not leftover(n) and not _matches(n, allow_missing))
    unexpected = sorted(n for n in info["unexpected_keys"] if not leftover(n) and not _matches(n, allow_unexpected))
    mismatched = sorted(
        f"{name} {list(checkpoint_shape)} there, {list(model_shape)} by config.json"
        for name, checkpoint_shape, model_shape in info["mismatched_keys"]
    )
    parts = [
        f"{len(names)} {what}: {listed(names)}"
        for names, what in (
            (missing, "missing"),
            (mismatched, "of another shape"),
            (unexpected, "not of this model"),
        )
        if names
    ]
    if info.get("error_msgs"):
        parts.append("; ".join(str(m) for m in info["error_msgs"][:SHOWN]))
    if parts:
        raise ModelError(
            "model.path",
            f"the weights of {where} do not fit its config.json; tensors {'; '.join(parts)}. They would be random, or stay unread",
            _hint(missing, unexpected, mismatched),
        )
    allowed = [n for n in info["missing_keys"] if not leftover(n)]
    if allowed:
        log.warning("%s: new weights, as model.allow_missing says: %s", where, listed(sorted(allowed)))
    broken = sorted(name for name, weight in model.named_parameters() if not finite(weight))
    if broken:
        raise ModelError("model.path", f"the weights of {where} hold NaN or infinite values: {listed(broken)}.")


def finite(weight: torch.Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinite values; True where it has no values at all."""
    # The sum of the absolute values needs no mask as large as the weight; float64 keeps it from overflowing.
    import torch

    return weight.is_meta or bool(torch.isfinite(torch.linalg.vector_norm(weight.detach(), 1, dtype=torch.float64)))


def _hint(missing: list[str], unexpected: list[str], mismatched: list[str]) -> str:
    if missing == ["lm_head.weight"] and not unexpected and not mismatched:
        return (
            "If the head is the embedding, set tie_word_embeddings: true in config.json; "
            "if it shall be new, model.allow_missing: [lm_head.weight]."
        )
    if missing and unexpected and len(missing) == len(unexpected):
        return "They look renamed: give each tensor the name that config.json's architecture has for it."
    if missing:
        return "Take config.json and the weights from one place; a new head is allowed by model.allow_missing: [NAME]."
    if unexpected and not mismatched:
        return (
            "Take config.json and the weights from one place; "
            "what may stay unread is named by model.allow_unexpected: [NAME]."
        )
    return "Take config.json and the weights from one place."


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def listed(names: list[str]) -> str:
    """The first few names, and how many more there are.

    >>> listed(["a", "b", "c", "d", "e", "f", "g"])
    'a, b, c, d, e and 2 more'
    """
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest


def check_code(bodies: dict[str, dict[str, Any]], where: str | Path) -> None:
    """Refuse a model that would run Python of its own.

    Args:
        bodies: file name → parsed `config.json` and `tokenizer_config.json`.

    Raises:
        ModelError: one of them has an `auto_map`.
    """
    for name, body in bodies.items():
        if body.get("auto_map"):
            raise ModelError(
                "model.trust_remote_code",
                f"{name} of {where} asks for Python code of its own (auto_map: {json.dumps(body['auto_map'])[:200]})",
                "Read that code and set model.trust_remote_code: true to run it, or take the auto_map out to use the architecture that "
                "transformers has.",
            )


def check_vocabulary(tokenizer: PreTrainedTokenizerBase, config: dict[str, Any], where: str | Path) -> None:
    """Refuse a tokenizer with ids that the embedding has no row for.

    Special tokens beyond it are passed over where nothing renders them: text models that were cut out of multimodal ones
    keep the tokens for images.

    Raises:
        ModelError: names the tokens.
    """
    text = config.get("text_config")
    rows = config.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    if not isinstance(rows, int):
        return
    beyond = {token: i for token, i in tokenizer.get_vocab().items() if i >= rows}
    if not beyond:
        return
    added = tokenizer.added_tokens_decoder
    used = {str(token) for token in tokenizer.special_tokens_map.values()}
    template = str(tokenizer.chat_template or "")
    written = used | TAGS.keys()
    needed = [t for t, i in beyond.items() if i not in added or not added[i].special or t in written or t in template]
    if needed:
        raise ModelError(
            "model.path",
            f"the tokenizer of {where} has ids up to {max(beyond.values())} and the embedding {rows} rows (vocab_size in config.json); "
            f"without a row: {listed(sorted(needed, key=beyond.__getitem__))}",
            "Resize the embedding, or take the tokenizer that belongs to the model.",
        )
    log.warning("%s: special tokens without a row in the embedding, unused: %s", where, listed(sorted(beyond)))


@contextlib.contextmanager
def reading(field: str, what: str, fix: str) -> Iterator[None]:
    """Make whatever a library says about a user's model files a ModelError.

    transformers, tokenizers, safetensors, pickle and Jinja raise two dozen types for damaged files, bare `Exception` among
    them, so no list of types is whole; the cause stays chained.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise ModelError(field, f"{what} ({first_line(error)})", fix) from error


def first_line(error: BaseException) -> str:
    """The first line that a library's message has, and the next one where it ends with a colon; at most 300 characters."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])[:300]
