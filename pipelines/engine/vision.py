"""Models that see: transformers' image-text-to-text families behind the interface of a causal language model.

What the engine hands to such a model are token ids as ever; those beyond the vocabulary are places of images (`pipelines/data/marks.py`).
Hooks on its embedding and its decoder, and nothing else, know about them: the embedding puts features of the vision tower in these
places, and the decoder is given what its family needs beside them. So every layout, cache, sampler and method works on images as it does
on text, an image is encoded once for all rows of a pass that have it, and models that read text alone have no hooks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipelines.base.errors import ModelError
from pipelines.contract.model_settings import Vision
from pipelines.data import marks
from pipelines.data.images import IMAGES, Reader
from pipelines.data.marks import FIRST_ID, PLACE_BITS
from pipelines.engine.masks import FULL

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

IMAGE_TOKEN = "<|image|>"
"""Of fresh models that see."""
FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
"""What a folder of a model that sees has beside its tokenizer; one of the first two."""
KEPT_BYTES = 1 << 28
"""Of a frozen tower's features."""
BIDIRECTIONAL = frozenset({"gemma3", "gemma3n", "gemma4", "gemma4_unified", "paligemma", "shieldgemma2"})
"""Families whose image tokens attend to later ones of their image."""
CROSS_ATTENTION = frozenset({"mllama", "blip-2", "instructblip", "idefics", "git", "florence2", "pix2struct", "blip"})
"""Families that read images otherwise than as tokens of the row."""


def sees(config: Any) -> bool:
    """Whether a transformers configuration is that of a language model with a vision tower."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    known = config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return known and getattr(config, "vision_config", None) is not None


def refusal(family: str) -> str | None:
    """Why the engine cannot read a family's images as tokens of a row; None where it can."""
    if family in BIDIRECTIONAL:
        return f"{family} lets the tokens of an image attend to later ones, which decoding and shared prefixes here do not know"
    if family in CROSS_ATTENTION:
        return f"{family} does not read images as tokens of the row"
    return None


def reader(where: str, tokenizer: PreTrainedTokenizerBase, revision: str | None, trust: bool) -> Reader | str | None:
    """What reads a model's images, or why they cannot be read; None where the folder or hub name has no processor.

    Processors of families that read videos too want torchvision for that alone; theirs are made here without what videos need.

    Args:
        where: a folder or hub name.
        tokenizer: of the model.
    """
    from transformers import AutoConfig, AutoImageProcessor, ProcessorMixin
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES, processor_class_from_name

    folder = Path(where)
    if folder.is_dir() and not any((folder / name).is_file() for name in FILES):
        return None
    body, _ = ProcessorMixin.get_processor_dict(where, revision=revision)
    if (folder / "config.json").is_file() or not folder.is_dir():
        config = AutoConfig.from_pretrained(where, revision=revision, trust_remote_code=trust)
        if not sees(config):
            return None
        family = str(config.model_type)
        if (reason := refusal(family)) is not None:
            return reason
        name = body.get("processor_class") or PROCESSOR_MAPPING_NAMES.get(family)
    else:
        name = body.get("processor_class")
    known = processor_class_from_name(str(name)) if name else None
    if known is None:
        raise ModelError(
            "model.path",
            f"{where} names the processor {name!r}, which transformers does not have",
            "Copy processor_config.json and preprocessor_config.json from where the model came from.",
        )
    kind: Any = type(known.__name__, (known,), {"check_argument_for_proper_class": _unchecked})
    own = {key: value for key, value in body.items() if key not in _NOT_ARGUMENTS}
    image_processor = AutoImageProcessor.from_pretrained(where, revision=revision, trust_remote_code=trust)
    attributes = dict.fromkeys(known.get_attributes()) | {"image_processor": image_processor, "tokenizer": tokenizer}
    return Reader(kind(**attributes, **own), placeholder(tokenizer), _files(where, revision))


def _files(where: str, revision: str | None) -> dict[str, bytes]:
    """The files of a processor as they are, so that a model made of this one has them too."""
    from transformers.utils.hub import cached_file

    named = ((name, cached_file(where, name, revision=revision, **_ABSENT)) for name in FILES)
    return {name: Path(path).read_bytes() for name, path in named if path is not None}


_ABSENT: dict[str, Any] = {"_raise_exceptions_for_missing_entries": False}
_NOT_ARGUMENTS = frozenset(
    {
        "processor_class",
        "auto_map",
        "image_processor",
        "video_processor",
        "tokenizer",
        "feature_extractor",
        "chat_template",
    }
)
"""Entries of a processor's file that are no numbers and flags of its own."""


def _unchecked(self: Any, name: str, argument: Any) -> None:
    """In place of a check that wants a video processor."""


def placeholder(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """What the chat template writes for an image; None where it knows no images."""
    from jinja2 import TemplateError

    before, after = "\u2042before\u2042", "\u2042after\u2042"
    parts: Any = [{"type": "text", "text": before}, {"type": "image"}, {"type": "text", "text": after}]
    try:
        text = str(tokenizer.apply_chat_template([{"role": "user", "content": parts}], tokenize=False))
    except (TemplateError, TypeError):
        return None
    written = text.partition(before)[2].partition(after)[0].strip()
    return written if written and "'type'" not in written else None  # a template without images writes the list itself


def attach(network: PreTrainedModel, of: marks.Reader, *, train: bool = True) -> PreTrainedModel:
    """Let a loaded model read the places of images in its token ids.

    Args:
        of: reads them for its tokenizer.
        train: False for a tower that stays as it is; what projects its features is trained all the same.
    """
    eyes = Eyes(network, of)
    if not train:
        for tower in eyes.towers():
            tower.requires_grad_(False)
    return network


def fresh_reader(settings: Vision, tokenizer: PreTrainedTokenizerBase) -> Reader:
    """The reader of a fresh model: every image is resized to one size, and each patch of it is a token."""
    from transformers import LlavaProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN]})
    side = {"height": settings.image_size, "width": settings.image_size}
    return Reader(
        LlavaProcessor(
            image_processor=SiglipImageProcessorPil(size=side),
            tokenizer=tokenizer,
            patch_size=settings.patch_size,
            vision_feature_select_strategy="full",
            image_token=IMAGE_TOKEN,
        )
    )


def fresh_config(settings: Vision, text: Any, tokenizer: PreTrainedTokenizerBase) -> Any:
    """The configuration of a fresh model that sees: LLaVA's, with a SigLIP tower and the language model that the recipe describes.

    Raises:
        ModelError: the tower refuses its numbers.
    """
    from transformers import LlavaConfig, SiglipVisionConfig

    own = SiglipVisionConfig()
    unknown = sorted(key for key in settings.config if not hasattr(own, key))
    if unknown:
        raise ModelError(
            f"model.fresh.vision.config.{unknown[0][:80]}",
            "a SigLIP tower has no such field",
            "It has hidden_size, intermediate_size, num_hidden_layers and num_attention_heads.",
        )
    tower = SiglipVisionConfig(**settings.config, image_size=settings.image_size, patch_size=settings.patch_size)
    if tower.hidden_size % tower.num_attention_heads:
        raise ModelError(
            "model.fresh.vision.config.num_attention_heads",
            f"{tower.hidden_size} numbers are not divided by {tower.num_attention_heads} heads",
            "Take a divisor of hidden_size.",
        )
    return LlavaConfig(
        vision_config=tower,
        text_config=text,
        image_token_index=int(tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)),  # type: ignore[arg-type]
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        tie_word_embeddings=bool(getattr(text, "tie_word_embeddings", False)),
    )


class Eyes:
    """The hooks of one model. Letters: R rows of W tokens, S of them places of images, H the decoder's width.

    Attributes:
        model: transformers' own, with `get_image_features`.
    """

    def __init__(self, network: Any, of: marks.Reader) -> None:
        self.reader = of
        self.model = network.base_model if hasattr(network.base_model, "get_image_features") else network
        self.decoder = network.get_decoder()
        self.embedding = network.get_input_embeddings()
        rope = getattr(network.config.get_text_config(), "rope_parameters", None) or {}
        self.places_in_3d = "mrope_section" in rope
        """Whether places of an image have a row and a column as positions (multimodal rotary embedding, 2409.12191)."""
        self.merge = int(getattr(network.config.vision_config, "spatial_merge_size", 1))
        self._ids: Tensor | None = None
        """int64 [R, W] of the pass that is under way, where it has images."""
        self._deep: list[Tensor] | None = None
        """[S, H] for each of the decoder's first blocks that add features of their own (Qwen3-VL)."""
        self._kept: OrderedDict[tuple[str, bool], tuple[Tensor, ...]] = OrderedDict()
        self.embedding.register_forward_pre_hook(self._before_embedding)
        self.embedding.register_forward_hook(self._after_embedding)
        self.decoder.register_forward_pre_hook(self._before_decoder, with_kwargs=True)
        network.eyes = self
        self._names = [name for name, _ in network.named_modules() if name and self._is_seeing(network, name)]

    def _is_seeing(self, network: Any, name: str) -> bool:
        """Whether a module, by its name in the network, is none of the language model's."""
        prefix = "" if self.model is network else f"{network.base_model_prefix}."
        return any(
            name == prefix + child or name.startswith(f"{prefix}{child}.")
            for child, module in self.model.named_children()
            if module is not self.decoder and module is not network.get_output_embeddings()
        )

    def names(self) -> list[str]:
        """Names, in the network, of all modules that are none of the language model's."""
        return list(self._names)

    def towers(self) -> Iterator[Any]:
        """The modules that turn pixels into features, without what projects these to the decoder's width where that stands apart."""
        for name, module in self.model.named_children():
            if module is not self.decoder and "vis" in name:
                yield module

    def seeing(self) -> Iterator[Any]:
        """All modules but the language model's."""
        for _, module in self.model.named_children():
            if module is not self.decoder:
                yield module

    def _before_embedding(self, module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        ids = inputs[0]
        self._ids = None
        if ids.shape[-1] == 1:  # a step of decoding: what is drawn is never a place of an image
            return None
        places = ids >= FIRST_ID
        if not bool(places.any()):
            return None
        self._ids = ids
        return (ids.masked_fill(places, self.reader.image_token), *inputs[1:])

    def _after_embedding(self, module: Any, inputs: Any, output: Tensor) -> Tensor | None:
        if self._ids is None:
            return None
        places = self._ids >= FIRST_ID
        features, *deep = self.features(self._ids[places])
        self._deep = deep or None
        return output.masked_scatter(places[..., None], features.to(output.dtype))

    def _before_decoder(
        self, module: Any, inputs: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        ids = named.get("input_ids")
        if ids is not None:
            named = {**named, "input_ids": None, "inputs_embeds": self.embedding(ids)}
        if self._ids is None:
            return (inputs, named) if ids is not None else None
        ids, self._ids = self._ids, None
        if self.places_in_3d:
            named = named | {"position_ids": self._positions(ids, named)}
        if self._deep is not None:
            named = named | {"visual_pos_masks": ids >= FIRST_ID, "deepstack_visual_embeds": self._deep}
            self._deep = None
        return inputs, named

    def features(self, ids: Tensor) -> list[Tensor]:
        """What stands in the places of images: [S, H] for the embedding, then for each block that adds features.

        Args:
            ids: int64 [S].
        """
        keys, image_of = ((ids.cpu() - FIRST_ID) >> PLACE_BITS).unique(return_inverse=True)
        digests = [IMAGES.named(FIRST_ID + (int(key) << PLACE_BITS)) for key in keys]
        of_images = self._encoded(digests)
        starts = torch.tensor([0, *(len(parts[0]) for parts in of_images)]).cumsum(0)
        at = (starts[image_of] + (ids.cpu() & ((1 << PLACE_BITS) - 1))).to(ids.device)
        return [torch.cat(list(parts))[at] for parts in zip(*of_images, strict=True)]

    def _encoded(self, digests: Sequence[str]) -> list[tuple[Tensor, ...]]:
        """Features of each image: ([places, H], ...)."""
        if any(weight.requires_grad for module in self.seeing() for weight in module.parameters()):
            return self._encode(digests)
        rounded = torch.is_autocast_enabled(self.embedding.weight.device.type)
        new = [digest for digest in digests if (digest, rounded) not in self._kept]
        if new:
            with torch.no_grad():
                for digest, parts in zip(new, self._encode(new), strict=True):
                    self._kept[digest, rounded] = tuple(part.clone() for part in parts)
        features = [self._kept[digest, rounded] for digest in digests]
        size = sum(part.numel() * part.element_size() for part in features[0]) if features else 0
        while len(self._kept) > len(digests) and size * len(self._kept) > KEPT_BYTES:
            self._kept.popitem(last=False)
        return features

    def _encode(self, digests: Sequence[str]) -> list[tuple[Tensor, ...]]:
        weight = self.embedding.weight
        inputs = [
            {
                name: value.to(weight.device, weight.dtype if value.is_floating_point() else value.dtype)
                for name, value in self.reader.tensors(digest).items()
            }
            for digest in digests
        ]
        counts = [sum(token >= FIRST_ID for token in self.reader.tokens(digest)) for digest in digests]
        outputs: list[list[Tensor]] = []
        for batch in _batches(inputs):
            result = self.model.get_image_features(**batch, return_dict=True)
            several = [result.pooler_output, *(getattr(result, "deepstack_features", None) or ())]
            outputs.append([_joined(part) for part in several])
        joined = [torch.cat(list(parts)) for parts in zip(*outputs, strict=True)]
        if len(joined[0]) != sum(counts):
            raise ModelError(
                "model.path",
                f"the vision tower gives {len(joined[0])} features for {len(digests)} images, and their processor {sum(counts)} places",
                "Take the processor that belongs to the model.",
            )
        return list(zip(*(part.split(counts) for part in joined), strict=True))

    def _positions(self, ids: Tensor, named: Mapping[str, Any]) -> Tensor:
        """int64 [3, R, W], positions in time, height and width.

        An image takes as many positions as it has rows or columns, whichever are more, so that what follows it has a position below its
        depth.
        Only differences between positions matter to a rotary embedding. So where a cache is filled, all positions are moved until what
        follows the pass stands at its depth, and later tokens need to know nothing of images.
        """
        rows, width = ids.shape
        positions = named.get("position_ids")
        if positions is None:
            positions = torch.arange(width, device=ids.device).expand(rows, width)
        positions = positions.expand(rows, width)
        places = ids >= FIRST_ID
        index = torch.where(places, ids & ((1 << PLACE_BITS) - 1), 0)
        keys = torch.where(places, (ids - FIRST_ID) >> PLACE_BITS, -1)
        shift, offset = torch.zeros_like(ids), torch.zeros(3, rows, width, dtype=ids.dtype, device=ids.device)
        for key in keys.unique().tolist():
            if key < 0:
                continue
            _, height, columns = self._grid(IMAGES.named(FIRST_ID + (key << PLACE_BITS)))
            own, count = keys == key, height * columns
            shift = shift.masked_fill(own & (index == count - 1), max(height, columns) - count)
            inside = torch.stack([-index, index // columns - index, index % columns - index])
            offset = torch.where(own, inside, offset)
        before = _of_ancestors(shift, named.get("attention_mask")) - shift
        cache = named.get("past_key_values")
        moved = shift.sum(1, keepdim=True) if cache is not None and cache.get_seq_length() == 0 else 0
        return (positions + before - moved)[None] + offset

    def _grid(self, digest: str) -> tuple[int, int, int]:
        """Frames, rows and columns of an image's places."""
        frames, height, width = self.reader.tensors(digest)["image_grid_thw"][0].tolist()
        return frames, height // self.merge, width // self.merge


def _batches(of_images: Sequence[Mapping[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Tensors of neighbouring images side by side, as far as their shapes agree."""
    waiting: list[Mapping[str, Tensor]] = []
    for each in of_images:
        shapes = {name: value.shape[1:] for name, value in each.items()}
        if waiting and shapes != {name: value.shape[1:] for name, value in waiting[0].items()}:
            yield {name: torch.cat([inputs[name] for inputs in waiting]) for name in waiting[0]}
            waiting = []
        waiting.append(each)
    if waiting:
        yield {name: torch.cat([inputs[name] for inputs in waiting]) for name in waiting[0]}


def _joined(features: Any) -> Tensor:
    """Features of all images of a batch, [places, H]."""
    parts = features if isinstance(features, list | tuple) else [features]
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def _of_ancestors(values: Tensor, mask: Any) -> Tensor:
    """Sums over what each token attends to, itself included.

    Args:
        values: int64 [R, W].
        mask: as the decoder is given it: for kinds of layers, bool or added to the scores [R, 1, W, K], or None and anything flat for
            rows in which every token attends to all earlier ones.
    """
    if isinstance(mask, dict):
        mask = mask.get(FULL)
    if mask is None or mask.dim() != 4:
        return values.cumsum(1)
    attended = mask if mask.dtype == torch.bool else mask == 0
    own = attended[:, 0, :, attended.shape[-1] - values.shape[1] :]
    return (own.to(torch.float64) @ values.to(torch.float64)[..., None])[..., 0].to(values.dtype)
