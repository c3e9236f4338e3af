"""Policies and tokenizers: load, make, save as ordinary Hugging Face folders, and the chat template's identity."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.base.errors import ModelError, did_you_mean
from pipelines.base.files import digest
from pipelines.contract.model_settings import Fresh, Model
from pipelines.data import chat, marks, template
from pipelines.data.template import PLAIN_TEMPLATE, TOOLS_TEMPLATE
from pipelines.engine import model_files
from pipelines.engine.model_files import first_line, reading
from pipelines.recipe.model_path import gguf_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PAD, BOS, EOS, UNK = "<|pad|>", "<|begin|>", "<|end|>", "<|unknown|>"
NEW_WEIGHTS_SEED = 0
"""Of weights that `model.allow_missing` lets be new: every stage that loads the base must see the same ones."""
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
TOOL_ROLES = ("<|tool|>", "<|tools|>")
GENERIC = "TokenizersBackend"
"""Class of a tokenizer that is what its tokenizer.json says. transformers' `AutoTokenizer` takes Qwen2's beside a model of that
architecture all the same, which splits text in its own way."""
CALL_TAGS = ("<tool_call>", "</tool_call>")
"""Tokens of fresh models that call tools. The tags stay in decoded text, as in Qwen's tokenizers."""


def train_tokenizer(
    kind: str,
    vocab_size: int,
    texts: Iterable[str],
    *,
    tools: bool = False,
    single_digits: bool = False,
    extra_characters: str = "",
) -> PreTrainedTokenizerBase:
    """A fast tokenizer trained on texts, with the role markers and the plain chat template.

    Args:
        kind: "char" (one token per character seen) or "bpe" (byte-level).
        vocab_size: upper bound on the vocabulary, special tokens included.
        texts: read once.
        tools: with the tokens and the template of models that call tools.
        single_digits: "bpe": every digit is a token of its own.
        extra_characters: "char": tokens whether or not a text has them.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = [PAD, BOS, EOS, UNK, *ROLES, *(TOOL_ROLES if tools else ())]
    tags = list(CALL_TAGS) if tools else []
    if kind == "char":
        characters = set(extra_characters)
        for text in texts:
            characters.update(text)
        known = [*special, *tags]
        vocabulary = {token: i for i, token in enumerate([*known, *sorted(characters)[: vocab_size - len(known)]])}
        core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
        core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        core.decoder = decoders.Fuse()
        core.add_special_tokens(special)
    else:
        core = Tokenizer(models.BPE(unk_token=None))
        words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = pre_tokenizers.Digits(individual_digits=True)
        core.pre_tokenizer = pre_tokenizers.Sequence([digits, words]) if single_digits else words
        core.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        core.train_from_iterator(texts, trainer)
    core.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        chat_template=TOOLS_TEMPLATE if tools else PLAIN_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(
    path: str | Path, model: Model | None = None, *, trust_remote_code: bool | None = None
) -> PreTrainedTokenizerBase:
    """A tokenizer with a chat template and a padding token.

    Args:
        path: a folder or hub name.
        model: the recipe's section, for its template, its permission, and its revision where `path` is its own.
        trust_remote_code: run Python that the folder brings; default: what `model` says, else no.

    Raises:
        ModelError: the folder or hub name has no tokenizer, a damaged one or one that wants to run code, no chat
            template or a faulty one, or ids that the model's embedding has no row for.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    where, revision = local(path), model.revision if model is not None and str(path) == model.path else None
    trust = trust_remote_code if trust_remote_code is not None else bool(model and model.trust_remote_code)
    with reading(
        "model.path",
        f"no tokenizer could be loaded from {where}",
        "Save the tokenizer beside the model, or check the name and the network.",
    ):
        bodies = _configurations(where, revision, trust)
        loader: Any = AutoTokenizer
        if bodies.get("tokenizer_config.json", {}).get("tokenizer_class") == GENERIC:
            loader = PreTrainedTokenizerFast
        tokenizer = loader.from_pretrained(where, revision=revision, trust_remote_code=trust)
    if len(tokenizer.get_vocab()) <= len(tokenizer.added_tokens_decoder):
        raise ModelError(
            "model.path",
            f"the tokenizer of {where} has no vocabulary; are its files there (tokenizer.json, or tokenizer.model, or vocab.json and "
            "merges.txt)?",
            "Save the tokenizer beside the model.",
        )
    if model is not None and model.chat_template is not None:
        tokenizer.chat_template = template_text(model.chat_template)
    if not tokenizer.chat_template:
        raise ModelError(
            "model.chat_template",
            f"the tokenizer of {where} has no chat template; give one in the recipe (Jinja text or a path to it).",
        )
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise ModelError(
                "model.path",
                f"the tokenizer of {where} has neither a padding nor an end token; name them in its tokenizer_config.json (pad_token, "
                "eos_token).",
            )
        tokenizer.pad_token = tokenizer.eos_token
    with reading("model.chat_template", f"the chat template of {where} cannot be used", "Correct its Jinja text."):
        set_template_options(tokenizer, model)
        template.habits(tokenizer)
    model_files.check_vocabulary(tokenizer, bodies.get("config.json", {}), where)
    if "vision_config" in bodies.get("config.json", {}) or (Path(where) / "processor_config.json").is_file():
        _attach_reader(tokenizer, where, revision, trust)
    return tokenizer


def _attach_reader(tokenizer: PreTrainedTokenizerBase, where: str, revision: str | None, trust: bool) -> None:
    """Let the tokenizer of a model that sees encode images.

    Raises:
        ModelError: its processor cannot be loaded.
    """
    from pipelines.engine import vision

    with reading(
        "model.path",
        f"the image processor of {where} cannot be used",
        "Copy processor_config.json and preprocessor_config.json from where the model came from.",
    ):
        marks.attach(tokenizer, vision.reader(where, tokenizer, revision, trust))


def local(path: str | Path) -> str:
    """A folder's path with `~` written out, for a GGUF file the folder that it is converted to; a hub name as it is.

    Raises:
        ModelError: the path names a GGUF file that is not there or cannot be read.
    """
    file = gguf_of(path)
    if file is not None:
        from pipelines.engine import gguf_models

        return str(gguf_models.converted(file))
    folder = Path(path).expanduser()
    return str(folder) if folder.is_dir() else str(path)


def _configurations(where: str, revision: str | None, trust: bool) -> dict[str, dict[str, Any]]:
    """`config.json` and `tokenizer_config.json` of a folder or hub name, where they are there, after the checks that need no weights."""
    from transformers import AutoConfig, PreTrainedConfig
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    if Path(where).is_dir():
        bodies = model_files.check_json(Path(where))
    else:
        config, _ = PreTrainedConfig.get_config_dict(where, revision=revision)
        bodies = {"config.json": config, "tokenizer_config.json": get_tokenizer_config(where, revision=revision)}
    if not trust:
        model_files.check_code(bodies, where)
    if "config.json" in bodies:
        with reading("model.path", f"config.json of {where} is refused", "Correct it, or take the model's own."):
            AutoConfig.from_pretrained(where, revision=revision, trust_remote_code=trust)
    return bodies


def template_text(value: str) -> str:
    """Jinja text itself, or the file it names.

    Raises:
        ModelError: it looks like a path and there is no such file.
    """
    if "{" in value:
        return value
    path = Path(value).expanduser()
    if not path.is_file():
        raise ModelError("model.chat_template", f"{value} is neither Jinja text nor a file.")
    return path.read_text()


def set_template_options(tokenizer: PreTrainedTokenizerBase, model: Model | None) -> None:
    """Write the recipe's template variables and date into the template's text (`chat.with_options`)."""
    if model is not None and isinstance(tokenizer.chat_template, str):
        tokenizer.chat_template = chat.with_options(
            tokenizer.chat_template, model.chat_template_kwargs, model.chat_template_date
        )


def template_identity(tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of what turns messages into ids: the template, the special tokens and the vocabulary's size."""
    special = {k: str(v) for k, v in tokenizer.special_tokens_map.items()}
    return digest([tokenizer.chat_template, special, len(tokenizer)])[:16]


def check_template(expected: str | None, tokenizer: PreTrainedTokenizerBase, where: str) -> None:
    """Refuse to mix stages that render messages differently.

    Raises:
        ModelError: the identities differ.
    """
    identity = template_identity(tokenizer)
    if expected is not None and expected != identity:
        raise ModelError(
            where,
            f"the chat template or vocabulary differs from the one the data was curated with ({identity} here, {expected} there)",
            "Run curate again with this model, or use that model.",
        )


def system_prompt_of(path: str | Path) -> str | None:
    """The system prompt that the model in a folder was trained with; None for most."""
    about = Path(path) / "whetstone.json"
    return json.loads(about.read_text()).get("system_prompt") if about.is_file() else None


def fresh_config(settings: Fresh, special: dict[str, Any]) -> Any:
    """The transformers configuration of a fresh model, which would drop a misspelt field and take a negative number of layers.

    Args:
        special: size of the vocabulary and ids of special tokens, which replace those of the recipe.

    Raises:
        ModelError: no such architecture, a misspelt field, or a size below 1. Names the field and the fix.
    """
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = settings.architecture
    if name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        hint = did_you_mean(name, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, lists=False)  # there are hundreds
        hint = hint or "Use one such as llama, qwen3, gemma2 or gpt2."
        raise ModelError("model.fresh.architecture", f"transformers has no causal language model {name[:80]!r}", hint)
    if "vocab_size" in settings.config:
        raise ModelError(
            "model.fresh.config.vocab_size",
            "the tokenizer says how large the vocabulary is",
            "Set model.tokenizer.vocab_size.",
        )
    blank = AutoConfig.for_model(name)
    for field in settings.config:  # others that it lacks may be read all the same: head_dim by qwen3_moe
        near = [] if hasattr(blank, field) else get_close_matches(field, blank.to_dict(), n=1, cutoff=0.85)
        if near:
            raise ModelError(
                f"model.fresh.config.{field[:80]}", f"{name} has no such field", f"Did you mean {near[0]!r}?"
            )
    config = AutoConfig.for_model(name, **{**settings.config, **special})
    for field in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
        value = getattr(config.get_text_config(), field, 1)
        if isinstance(value, int) and value < 1:
            raise ModelError(f"model.fresh.config.{field}", f"{value} is below 1", "A model needs at least 1.")
    return config


def fresh_model(model: Model, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A randomly initialised causal LM, drawn in float32 and stored in `weights_dtype`.

    Raises:
        ModelError: an unknown architecture or a configuration it does not take.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    assert model.fresh is not None
    special = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    try:
        config = fresh_config(model.fresh, special)
        loader: Any = AutoModelForCausalLM
        if model.fresh.vision is not None:
            from pipelines.engine import vision

            config, loader = vision.fresh_config(model.fresh.vision, config, tokenizer), AutoModelForImageTextToText
        torch.manual_seed(seed)
        network = loader.from_config(config, attn_implementation=attention(model))
    except ModelError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ModelError(
            "model.fresh", f"{model.fresh.architecture} refuses this config: {first_line(error)}"
        ) from error
    network.to(torch.float32)
    for weight in network.parameters():  # not the buffers: frequencies of rotary embeddings need float32
        weight.data = weight.data.to(weights_dtype(model))
    return prepared(network, model, marks.reader_of(tokenizer))


def weights_dtype(model: Model) -> torch.dtype:
    """What weights are stored in."""
    import torch

    return torch.bfloat16 if model.weights_dtype == "bfloat16" else torch.float32


def load_model(path: str | Path, model: Model, takes: Collection[str] = (model_files.PLAIN,)) -> PreTrainedModel:
    """A pretrained causal LM in `weights_dtype`, each weight from the checkpoint or tied to one that is.

    `allow_missing`, `allow_unexpected` and `revision` hold for the recipe's own `model.path`, not for what stages make of it.

    Args:
        takes: as in `model_files.check_language_model`.

    Raises:
        ModelError: the weights cannot be loaded, or do not fit the configuration; lists the tensors.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    where, own = local(path), str(path) == model.path
    revision = model.revision if own else None
    if Path(where).is_dir():
        model_files.check_folder(Path(where))
        model_files.check_language_model(Path(where), takes)
    with (
        reading(
            "model.path", f"the weights of {where} could not be loaded", "Check the files, the name and the network."
        ),
        torch.random.fork_rng(devices=[]),
    ):
        bodies = _configurations(where, revision, model.trust_remote_code)
        seeing = marks.reader_of(load_tokenizer(path, model)) if "vision_config" in bodies["config.json"] else None
        loader: Any = AutoModelForCausalLM if seeing is None else AutoModelForImageTextToText
        torch.manual_seed(NEW_WEIGHTS_SEED)
        both: Any = loader.from_pretrained(
            where,
            dtype=weights_dtype(model),
            attn_implementation=attention(model),
            revision=revision,
            trust_remote_code=model.trust_remote_code,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    loaded, info = both
    model_files.check_loaded(
        loaded,
        info,
        where,
        allow_missing=model.allow_missing if own else (),
        allow_unexpected=model.allow_unexpected if own else (),
    )
    return prepared(loaded, model, seeing)


def prepared(network: PreTrainedModel, model: Model, reader: marks.Reader | None = None) -> PreTrainedModel:
    """The network as it is used here: without a bound on time steps where it keeps a state, else with compiled blocks where the recipe
    says so, or says nothing and it pays.

    Args:
        reader: of images, for a model that sees.
    """
    import torch

    if reader is not None:
        from pipelines.engine import vision

        return vision.attach(network, reader, train=model.train_vision)

    from pipelines.engine.masks import keeps_state

    if keeps_state(network.config.get_text_config()):
        from pipelines.engine.recurrent import open_time_steps

        open_time_steps(network)
        return network
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if torch.cuda.is_available() and model.compiles(network.num_parameters(), processes):
        from pipelines.engine.compiled import compile_blocks

        compile_blocks(network)
    return network


def attention(model: Model) -> str | None:
    """transformers' name of the attention; None lets it choose: sdpa where the architecture has it, else eager."""
    return None if model.attention == "auto" else model.attention


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, about: dict[str, Any]) -> None:
    """Write a folder that `from_pretrained` loads, chat template included, and `whetstone.json` beside it."""
    save_around(model, tokenizer, folder, about)
    model.save_pretrained(folder, safe_serialization=True)


def save_around(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, about: dict[str, Any]
) -> None:
    """Write what stands beside the weights, and set the ids in the model's generation config that `save_pretrained` is to write."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.generation_config
    if config is not None and tokenizer.eos_token_id is not None:
        ends = stop_ids(model, tokenizer)
        config.pad_token_id = tokenizer.pad_token_id
        config.eos_token_id = ends if len(ends) > 1 else ends[0]
    save_tokenizer(tokenizer, folder)
    body = {**about, "template": template_identity(tokenizer)}
    (folder / "whetstone.json").write_text(json.dumps(body, indent=1, sort_keys=True))


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer with its chat template, and the processor of its model's images where it has one."""
    tokenizer.save_pretrained(folder)
    if (reader := marks.reader_of(tokenizer)) is not None:
        reader.save(folder)


def stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Every id that ends a completion: the tokenizer's, the generation config's and the template's end of a turn."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    of_config = configured if isinstance(configured, list) else [] if configured is None else [configured]
    return sorted({*chat.end_ids(tokenizer), *of_config})


def device() -> torch.device:
    """The GPU of this process where there is one, else the CPU."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


@contextlib.contextmanager
def autocast(dtype: str, where: torch.device, *, cache: bool = True) -> Iterator[None]:
    """bfloat16 compute, whatever the weights are stored in; nothing at all for float32.

    Args:
        cache: keep rounded weights until the outermost of these contexts ends. A CUDA graph would go on to read them after that.
    """
    import torch

    if dtype == "bfloat16":
        with torch.autocast(where.type, dtype=torch.bfloat16, cache_enabled=cache):
            yield
    else:
        yield
