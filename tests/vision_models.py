"""Tiny random checkpoints of families that see, with tokenizer and processor files as the families publish them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import toys
import yaml
from PIL import Image, ImageDraw

from pipelines.contract.model_settings import Model
from pipelines.curate.run import _tokenizer
from pipelines.data import dataset, images
from pipelines.data.records import Problem
from pipelines.engine import models
from pipelines.engine.models import train_tokenizer

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
PARTS = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}WRITTEN{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""A chat template that reads texts and lists of parts, as Qwen's does."""
ONLY_PARTS = PARTS.replace("message['content'] is string", "false")
"""One that reads lists of parts alone, as Idefics3's does."""


def _family_tokenizer(*special: str, template: str, written: str) -> Any:
    text = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ?.,:;-+*/=()[]{}'\"\n"
    tokenizer = train_tokenizer("char", 200, [text])
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    tokenizer.chat_template = template.replace("WRITTEN", written)
    return tokenizer


def _numbers(tokenizer: Any) -> dict[str, Any]:
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return TEXT | {"vocab_size": len(tokenizer)} | ids


def _head() -> int:
    return int(TEXT["hidden_size"] / TEXT["num_attention_heads"])


def _rope(*quarters: int) -> dict[str, Any]:
    """Of a head's half, quarters that turn with time, height and width."""
    sections = [quarter * _head() // 8 for quarter in quarters]
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}


def _qwen_images() -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    size = {"min_pixels": 64, "max_pixels": 4096}
    return Qwen2VLImageProcessorPil(patch_size=4, temporal_patch_size=2, merge_size=2, **size)


def _qwen_ids(tokenizer: Any) -> dict[str, int]:
    names = ("vision_start", "vision_end", "image", "video")
    return {f"{name}_token_id": tokenizer.convert_tokens_to_ids(token) for name, token in zip(names, QWEN, strict=True)}


def _llava() -> tuple[Any, Any, Any, dict[str, Any]]:
    from transformers import LlamaConfig, LlavaConfig, SiglipVisionConfig
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    tokenizer = _family_tokenizer("<image>", template=PARTS, written="<image>\n")
    config = LlavaConfig(
        vision_config=SiglipVisionConfig(image_size=32, patch_size=8, **TOWER),
        text_config=LlamaConfig(**_numbers(tokenizer)),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    own = {"processor_class": "LlavaProcessor", "patch_size": 8, "vision_feature_select_strategy": "full"}
    return config, tokenizer, SiglipImageProcessorPil(size={"height": 32, "width": 32}), own


def _qwen2_5_vl() -> tuple[Any, Any, Any, dict[str, Any]]:
    from transformers import Qwen2_5_VLConfig

    tokenizer = _family_tokenizer(*QWEN, template=PARTS, written="<|vision_start|><|image_pad|><|vision_end|>")
    rope = _rope(1, 1, 2)
    tower = {
        "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 32, "patch_size": 4,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16, "fullatt_block_indexes": [1],
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=_numbers(tokenizer) | {"rope_parameters": rope},
        vision_config=tower,
        **_qwen_ids(tokenizer),
    )
    return config, tokenizer, _qwen_images(), {"processor_class": "Qwen2_5_VLProcessor"}


def _qwen3_vl() -> tuple[Any, Any, Any, dict[str, Any]]:
    from transformers import Qwen3VLConfig

    tokenizer = _family_tokenizer(*QWEN, template=PARTS, written="<|vision_start|><|image_pad|><|vision_end|>")
    rope = _rope(2, 1, 1)
    tower = {
        "depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 32, "patch_size": 4,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "deepstack_visual_indexes": [0, 1],
        "num_position_embeddings": 64,
    }  # fmt: skip
    config = Qwen3VLConfig(
        text_config=_numbers(tokenizer) | {"rope_parameters": rope, "head_dim": _head()},
        vision_config=tower,
        **_qwen_ids(tokenizer),
    )
    return config, tokenizer, _qwen_images(), {"processor_class": "Qwen3VLProcessor"}


def _idefics3() -> tuple[Any, Any, Any, dict[str, Any]]:
    from transformers import Idefics3Config
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    cells = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    special = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *cells)
    tokenizer = _family_tokenizer(*special, template=ONLY_PARTS, written="<image>")
    config = Idefics3Config(
        vision_config={"image_size": 32, "patch_size": 8, **TOWER},
        text_config={"model_type": "llama", **_numbers(tokenizer)},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
    )
    images = Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32})
    return config, tokenizer, images, {"processor_class": "Idefics3Processor", "image_seq_len": 4}


def _internvl() -> tuple[Any, Any, Any, dict[str, Any]]:
    from transformers import InternVLConfig
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    tokenizer = _family_tokenizer(
        "<IMG_CONTEXT>", "<img>", "</img>", "<video>", template=PARTS, written="<IMG_CONTEXT>\n"
    )
    config = InternVLConfig(
        vision_config={"image_size": [32, 32], "patch_size": [8, 8], **TOWER},
        text_config={"model_type": "qwen2", **_numbers(tokenizer)},
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        downsample_ratio=0.5,
    )
    images = GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}, crop_to_patches=False)
    return config, tokenizer, images, {"processor_class": "InternVLProcessor", "image_seq_length": 4}


FAMILIES: dict[str, Callable[[], tuple[Any, Any, Any, dict[str, Any]]]] = {
    "llava": _llava,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "idefics3": _idefics3,
    "internvl": _internvl,
}
INTERNVL_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}


def make(family: str, folder: Path) -> Path:
    """Write a random model of a family (about 100 thousand parameters), which transformers loads."""
    from transformers import AutoModelForImageTextToText

    config, tokenizer, images, own = FAMILIES[family]()
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if family == "internvl":
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"extra_special_tokens": INTERNVL_TOKENS}))
    images.save_pretrained(folder)
    (folder / "processor_config.json").write_text(json.dumps(own))
    return folder


COLOURS = ("red", "lime", "blue", "black")
CELLS = "ab"


def cells(colours: tuple[str, ...], side: int = 16) -> Image.Image:
    """Cells side by side, each a square of one colour."""
    image = Image.new("RGB", (side * len(colours), side), "white")
    draw = ImageDraw.Draw(image)
    for number, colour in enumerate(colours):
        draw.rectangle([number * side, 0, (number + 1) * side - 1, side - 1], fill=colour)
    return image


def picture(width: int, height: int, seed: int) -> Image.Image:
    """A few rectangles in colours."""
    draw_of = random.Random(seed)
    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(6):
        left, top = draw_of.randrange(width), draw_of.randrange(height)
        draw.rectangle([left, top, left + 9, top + 9], fill=tuple(draw_of.randrange(256) for _ in range(3)))
    return image


TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
"""Of a fresh model that sees."""


def recipe(folder: Path, **model: Any) -> Path:
    """A recipe of a fresh model that sees, of about 50 thousand parameters: which colour does a cell have?"""
    path = toys.recipe(folder)
    body = yaml.safe_load(path.read_text())
    body["model"]["fresh"]["vision"] = {"image_size": 32, "patch_size": 16, "config": TOWER}
    body["model"] |= model
    body.pop("evaluate")
    path.write_text(yaml.safe_dump(body))
    return path


def lake(folder: Path) -> Path:
    """The recipe of `toys.lake` for a model that sees: the lake is a picture in every turn, whose cells are patches."""
    path = toys.lake(folder)
    body = yaml.safe_load(path.read_text())
    body["model"]["fresh"]["vision"] = {"image_size": 24, "patch_size": 8, "config": TOWER}
    for source in body["curate"]["sources"]:
        source["config"]["shows"] = "image"
    body["evaluate"]["tasks"][0]["environment"]["config"] = {"side": 3, "shows": "image"}
    path.write_text(yaml.safe_dump(body))
    return path


def data(folder: Path, settings: Model, count: int = 200) -> Path:
    """A data folder of questions about cells, with their images and a tokenizer."""
    folder.mkdir(parents=True)
    draw_of = random.Random(0)
    problems = []
    for number in range(count):
        colours = tuple(draw_of.choice(COLOURS) for _ in CELLS)
        asked = draw_of.randrange(len(CELLS))
        text = images.IMAGES.add(cells(colours)) + CELLS[asked]
        problems.append(
            Problem(
                uid=f"{number:08x}" * 4, prompt=[{"role": "user", "content": text}], answer=colours[asked], verifier="exact",
                source="cells", licence="Apache-2.0", info={"solution": colours[asked]},
            )
        )  # fmt: skip
    texts = (message["content"] for problem in problems for message in problem.prompt)
    images.copy_named(texts, folder)
    for split, part in (("train", problems[:-20]), ("heldout", problems[-20:])):
        writer = dataset.Writer(folder / f"{split}.parquet")
        for problem in part:
            writer.add(problem)
        writer.close()
    tokenizer = _tokenizer(settings, folder / "train.parquet", folder, {})
    about = {"template": models.template_identity(tokenizer), "splits": {"train": count - 20, "heldout": 20}}
    (folder / "data.json").write_text(json.dumps(about))
    return folder
