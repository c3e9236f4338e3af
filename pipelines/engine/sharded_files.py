"""Weights between safetensors files and shards, one tensor at a time: no process ever holds a whole model beside its shard.

Reading: `outline` makes a model whose weights have shapes and no values, FSDP2 shards it, and `Unread.fill` reads the rows that each
process keeps. Buffers that a model computes itself, such as the frequencies of rotary embeddings, are real from the start: they
are computed by the family's own code. Writing: `write` gathers the tensors one after the other, and the first process appends each
to a file that is byte for byte what transformers' `save_pretrained` writes of the same weights.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Model
from pipelines.engine import model_files, models
from pipelines.engine.adamw import first_row

SHARD_BYTES = 50_000_000_000
"""Most bytes of one written file, as of `save_pretrained`."""
NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
"""How safetensors calls what weights and buffers are made of."""
ORDER = ("BOOL", "U8", "I8", "I16", "F16", "BF16", "I32", "F32", "F64", "I64")
"""Types by the place that safetensors gives them, the last first in a file."""


class WholeModel(Exception):
    """Why a model cannot be read shard by shard."""


@dataclass(frozen=True)
class Unread:
    """The files that the weights of an outline are in."""

    where: str
    files: Mapping[str, Path]
    """Tensor → the safetensors file that has it."""

    @torch.no_grad()
    def fill(self, causal: Any) -> list[str]:
        """Read this process's rows of every weight, and every buffer that the files have; the names of those that are not finite.

        Args:
            causal: the outline, with memory for its weights, sharded on the first dimension.
        """
        from safetensors import safe_open

        broken = []
        values = dict(causal.named_parameters()) | dict(causal.named_buffers())
        with contextlib.ExitStack() as opened:
            handles = {
                path: opened.enter_context(safe_open(path, framework="pt")) for path in sorted(set(self.files.values()))
            }
            for name, path in self.files.items():
                value = values[name]
                own = value.to_local() if isinstance(value, DTensor) else value
                start = first_row(value)
                rows = handles[path].get_slice(name)
                if own.numel():
                    own.copy_(rows[start : start + len(own)] if own.ndim else rows[...])
                    if not model_files.finite(own):
                        broken.append(name)
        return broken

    def refuse(self, broken: list[str]) -> None:
        """Raise where weights of any process are not finite.

        Raises:
            ModelError: some are not; names them.
        """
        if broken:
            listed = model_files.listed(sorted(set(broken)))
            raise ModelError("model.path", f"the weights of {self.where} hold NaN or infinite values: {listed}.")


def outline(path: str | Path, model: Model) -> tuple[Any, Unread]:
    """A causal LM whose weights have no values yet, as `models.load_model` would load it, and where they are.

    Raises:
        WholeModel: the files do not hold just the weights of this model, tensor by tensor; says why.
        ModelError: the folder is damaged.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    where, own = models.local(path), str(path) == model.path
    revision = model.revision if own else None
    if model.trust_remote_code:
        raise WholeModel("its code is its own")
    if Path(where).is_dir():
        model_files.check_folder(Path(where))
        model_files.check_language_model(Path(where))
    stored = _stored(where, revision)
    config = AutoConfig.from_pretrained(where, revision=revision)
    if getattr(config, "quantization_config", None):
        raise WholeModel("its weights are quantised")
    with torch.random.fork_rng(devices=[]), _without_values():
        network: Any = AutoModelForCausalLM.from_config(
            config, dtype=models.weights_dtype(model), attn_implementation=models.attention(model)
        )
    if network._keep_in_fp32_modules or network._keep_in_fp32_modules_strict:
        raise WholeModel("some of its weights stay in float32")
    _check_names(network, stored)
    network.eval()
    if network.can_generate():
        network.adjust_generation_fn(
            None, True, None, where, cache_dir=None, force_download=False, proxies=None, local_files_only=False, token=None,
            revision=revision, subfolder="", trust_remote_code=False,
        )  # fmt: skip
    return models.prepared(network, model), Unread(where, {name: path for name, (path, _) in stored.items()})


def outline_or_why(
    path: str | Path, model: Model, gather: Callable[[str], list[str]]
) -> tuple[Any, Unread | None, str]:
    """`outline`, and an empty text; or no outline and why any of the processes cannot have one. Every process must call.

    Args:
        gather: as in `parallel.World`.
    """
    why, network, unread = "", None, None
    try:
        network, unread = outline(path, model)
    except WholeModel as reason:
        why = str(reason)
    why = next((reason for reason in gather(why) if reason), "")
    return (None, None, why) if why else (network, unread, "")


def _stored(where: str, revision: str | None) -> dict[str, tuple[Path, list[int]]]:
    """Tensor → its file and shape, of a folder or a hub name; without what today's code computes itself.

    Raises:
        WholeModel: there are no safetensors files.
    """
    from safetensors import safe_open
    from transformers.utils.hub import cached_file, get_checkpoint_shard_files

    quiet = {"revision": revision, "_raise_exceptions_for_missing_entries": False}
    single, index = (cached_file(where, name, **quiet) for name in model_files.WEIGHTS[:2])
    if single is None and index is None:
        raise WholeModel("its weights are in no safetensors file")
    files = [single] if single is not None else get_checkpoint_shard_files(where, index, revision=revision)[0]
    stored = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                stored[name] = (Path(file), tensors.get_slice(name).get_shape())
    return {name: about for name, about in stored.items() if not model_files.leftover(name)}


def _check_names(network: Any, stored: Mapping[str, tuple[Path, list[int]]]) -> None:
    """Refuse files that hold other tensors than the network has, each once.

    Raises:
        WholeModel: they do.
    """
    wanted = {name: list(value.shape) for name, value in network.named_parameters()}
    kept = network.state_dict().keys()
    wanted |= {name: list(value.shape) for name, value in network.named_buffers() if name in kept}
    if {name: shape for name, (_, shape) in stored.items()} != wanted:
        odd = sorted(stored.keys() ^ wanted.keys()) or sorted(n for n in wanted if wanted[n] != stored[n][1])
        raise WholeModel(f"its files hold other tensors than the model has: {model_files.listed(odd)}")


@contextlib.contextmanager
def _without_values() -> Iterator[None]:
    """Parameters that are made meanwhile have no values; buffers are computed as ever."""

    def on_meta(module: nn.Module, name: str, weight: nn.Parameter) -> nn.Parameter:
        del module, name
        return weight if weight.is_meta else nn.Parameter(weight.detach().to("meta"), weight.requires_grad)

    hook: Any = on_meta  # torch's stubs know no hook that returns a parameter
    handle = nn.modules.module.register_module_parameter_registration_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def without_values(model: Any) -> Any:
    """A copy of a model whose weights have shapes and no values; buffers are copied."""
    empty = {id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), False) for weight in model.parameters()}
    return copy.deepcopy(model, empty)


def allocate(module: nn.Module, device: torch.device) -> None:
    """Give every weight without values memory on a device, and move the rest there; what was tied stays tied."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules():
        for name, weight in owner._parameters.items():
            if weight is not None:
                places.setdefault(id(weight), []).append((owner, name))
    module._apply(lambda value: torch.empty_like(value, device=device) if value.is_meta else value.to(device))
    for (owner, name), *others in places.values():
        for other, alias in others:
            setattr(other, alias, getattr(owner, name))


def copy_of(emptied: Any, device: torch.device) -> Any:
    """A copy of a model without values, with memory for them on a device."""
    copied = copy.deepcopy(emptied)
    allocate(copied, device)
    return copied


def stored_as_they_are(network: Any) -> bool:
    """Whether a family's files hold all of its weights under their own names, each as it is in memory."""
    from transformers.core_model_loading import revert_weight_conversion

    if network._keys_to_ignore_on_save:
        return False
    state = {name: torch.empty_like(value, device="meta") for name, value in network.state_dict().items()}
    saved = revert_weight_conversion(network, dict(state))
    return {n: v.shape for n, v in saved.items()} == {n: v.shape for n, v in state.items()}


def write(network: Any, folder: Path, gather: Callable[[str], Tensor], *, first: bool) -> None:
    """Write the weights of a model beside its configuration; every process must call.

    Args:
        network: an outline of it, with names, shapes and types.
        gather: name → the tensor, gathered; called once for each in the same order on every process.
        first: whether this process writes.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    state = _untied(network)
    split = split_state_dict_into_shards_factory(
        state, get_storage_size=lambda value: value.numel() * value.element_size(), max_shard_size=SHARD_BYTES,
        filename_pattern="model{suffix}.safetensors",
    )  # fmt: skip
    if first:
        network.save_pretrained(folder, state_dict={})
        if split.is_sharded:
            total = {"total_parameters": network.num_parameters(), **split.metadata}
            index = {"metadata": total, "weight_map": split.tensor_to_filename}
            text = json.dumps(index, indent=2, sort_keys=True) + "\n"
            (folder / model_files.WEIGHTS[1]).write_text(text, encoding="utf-8")
    for name, tensors in split.filename_to_tensors.items():
        _write_file(folder / name, {tensor: state[tensor] for tensor in tensors}, gather, first=first)


def _untied(network: Any) -> dict[str, Tensor]:
    """The tensors that are saved, without values; of those that are tied the one that transformers loads."""
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    state = {name: torch.empty_like(value, device="meta") for name, value in network.state_dict().items()}
    return remove_tied_weights_from_state_dict(state, network)


def _write_file(path: Path, tensors: Mapping[str, Tensor], gather: Callable[[str], Tensor], *, first: bool) -> None:
    """One safetensors file: the length of its header, the header, and the tensors in the order of the format."""
    names = sorted(tensors, key=lambda name: (-ORDER.index(NAMES[tensors[name].dtype]), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for name in names:
        value = tensors[name]
        end = place + value.numel() * value.element_size()
        header[name] = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") if first else contextlib.nullcontext() as file:
        if file is not None:
            file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            value = gather(name)
            if file is not None:
                data: Any = value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
                file.write(data)
