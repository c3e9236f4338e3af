"""Texts as vectors: a transformers encoder, mean-pooled and of unit length, on the CPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from pipelines.base.errors import DataError

BATCH = 32
"""Windows encoded together."""
MOST_WINDOWS = 16
"""A text with more is not encoded."""
TINY = "tiny random encoder"
"""In the place of a path: a BERT of random weights that reads characters, for the verifier's test of itself."""


class Encoder:
    """A model that gives a hidden state per token.

    Args:
        path: of a transformers model, or its name on the hub.

    Raises:
        DataError: it cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        self.model, self.tokenizer = _tiny() if path == TINY else _loaded(path)
        limit = getattr(self.model.config, "max_position_embeddings", None) or 512
        self.before, self.after = _around(self.tokenizer)
        longest = min(int(limit), int(min(self.tokenizer.model_max_length, 1 << 20)))
        self.window = max(1, longest - len(self.before) - len(self.after))

    def embed(self, texts: list[str]) -> torch.Tensor:
        """Unit vectors of the texts.

        A text longer than the encoder's window is encoded in windows, and the mean is over all of its tokens.

        Returns:
            [texts, hidden] float32; zeros for a text that is empty or longer than `MOST_WINDOWS` windows.
        """
        windows: list[tuple[int, list[int]]] = []
        for index, text in enumerate(texts):
            ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] if text.strip() else []
            cut = [ids[at : at + self.window] for at in range(0, len(ids), self.window)]
            windows += [(index, piece) for piece in cut] if len(cut) <= MOST_WINDOWS else []
        sums = torch.zeros(len(texts), self.model.config.hidden_size)
        for at in range(0, len(windows), BATCH):
            batch = windows[at : at + BATCH]
            for (index, _), pooled in zip(batch, self._sums([piece for _, piece in batch]), strict=True):
                sums[index] += pooled
        return torch.nn.functional.normalize(sums, dim=-1)

    def _sums(self, pieces: list[list[int]]) -> torch.Tensor:
        """Sums of the hidden states of each piece's tokens, the special ones among them; [pieces, hidden]."""
        full = [[*self.before, *piece, *self.after] for piece in pieces]
        longest = max(map(len, full))
        padding = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([row + [padding] * (longest - len(row)) for row in full])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in full])
        with torch.no_grad():
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        return (hidden * mask[..., None]).sum(1)


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens that a tokenizer puts before and after a text."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    for at in range(len(full) - len(bare) + 1):
        if full[at : at + len(bare)] == bare:
            return full[:at], full[at + len(bare) :]
    return [], []


@lru_cache(maxsize=2)
def encoder(path: str) -> Encoder:
    """The encoder at a path, loaded once."""
    return Encoder(path)


def _loaded(path: str) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    try:
        return AutoModel.from_pretrained(path, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0][:200].rstrip(".")
        raise DataError(
            "info.encoder",
            f"no encoder at {path!r} ({first})",
            "Name a transformers model: a folder, or a name on the hub.",
        ) from error


def _tiny() -> tuple[Any, Any]:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    letters = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *map(chr, range(33, 127))]
    table = Tokenizer(models.WordLevel({letter: at for at, letter in enumerate(letters)}, unk_token="[UNK]"))
    table.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split("", "isolated")])  # fmt: skip
    table.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=table, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(letters), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=64, initializer_range=0.5,
        )  # fmt: skip
        return BertModel(config, add_pooling_layer=False).eval(), tokenizer
