"""A reward model: the policy's decoder with scalar heads, read at an answer's last token.

On disk it is a plain transformers checkpoint for sequence classification with one label, which TRL and transformers read. Where it has
several heads they stand beside it in `heads.safetensors`, and the checkpoint's own is their mean (of linear heads: the mean of their
scores), or the first where only that one is to be used.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.engine import model_files, models
from pipelines.engine.layout import Layout, best_layouts
from pipelines.engine.masks import MaskForm
from pipelines.engine.models import autocast
from pipelines.engine.policy import Policy, hidden_states
from pipelines.errors import ModelError
from pipelines.recipe.model_path import CLASSIFIER
from pipelines.recipe.settings import Model, Sampling

HEADS, ABOUT = "heads.safetensors", "whetstone.json"


@dataclass(frozen=True, eq=False)
class Answers:
    """Conversations that end with an answer, each with a place behind its last token whose prediction reads the reward."""

    tokens: Tensor
    """int64 [B, T], padded on the right."""
    mask: Tensor
    """bool [B, T], the answer's tokens and the place behind them."""
    end: Tensor
    """int64 [B], that place."""

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], starts: Sequence[int], pad: int) -> Answers:
        """Rows from token ids; padding at their end is left out, as transformers does when it looks for the last token.

        Args:
            starts: index of each answer's first token.
        """
        ends = [max((i + 1 for i, token in enumerate(row) if token != pad), default=1) for row in sequences]
        tokens = torch.full((len(ends), max(ends, default=0) + 1), pad, dtype=torch.int64)
        for i, (row, length) in enumerate(zip(sequences, ends, strict=True)):
            tokens[i, :length] = torch.tensor(row[:length])
        end, place = torch.tensor(ends), torch.arange(tokens.shape[1])
        start = torch.tensor([max(1, start) for start in starts]).minimum(end)
        return cls(tokens, (place >= start[:, None]) & (place <= end[:, None]), end)

    def layouts(self, budget: int, *, trees: bool, prefixes: bool) -> list[Layout]:
        """Forward passes over all rows, about `budget` tokens each; what rows share is computed once where it pays."""
        rows = torch.arange(len(self.tokens))
        return best_layouts(self.tokens, self.mask, rows, budget, allow_trees=trees, allow_prefixes=prefixes)

    def where(self, layout: Layout) -> tuple[Tensor, Tensor]:
        """Row of each scored place of a layout, int64 [M], and whether it reads the reward, bool [M]."""
        width = self.tokens.shape[1]
        row = layout.target // width
        return row, layout.target % width == self.end[row]


class RewardNetwork(torch.nn.Module):
    """A causal LM, or a peft wrapper of one, with scalar heads over its last hidden state.

    The heads start from the family's own initial distribution, by `seed`. Weights that neither the heads nor the text loss need are
    frozen.

    Args:
        model: its language head stays, for losses on text.
        heads: how many.
        text: whether the language head is trained.
        dtype: as in `Policy`; the heads compute in float32.
    """

    def __init__(self, model: Any, heads: int, *, seed: int, text: bool, dtype: str = "float32") -> None:
        super().__init__()
        self.model = model
        policy = Policy(model, Sampling(), dtype=dtype)
        self._policy = [policy]  # in a list: not a sub-module
        width = policy.head.in_features
        spread = getattr(policy.config, "initializer_range", 0.02)
        draw = torch.Generator().manual_seed(seed)
        self.heads = torch.nn.Linear(width, heads, bias=False)
        with torch.no_grad():
            self.heads.weight.copy_(torch.randn(heads, width, generator=draw) * spread)
        self.heads.to(policy.device)
        tied = policy.head.weight is policy.causal.get_input_embeddings().weight
        if not text and not tied:
            policy.head.requires_grad_(False)

    @property
    def policy(self) -> Policy:
        """The language model's side."""
        return self._policy[0]

    def scores(
        self, answers: Answers, budget: int, *, text: bool = False, prefixes: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """Rewards of all rows, float32 [B, heads], and with `text` the log-probabilities (nats) of their answers, [B]; on the CPU.

        Gradients flow through both.
        """
        policy, count = self.policy, len(answers.tokens)
        rewards = torch.zeros(count, self.heads.out_features)
        logps = torch.zeros(count) if text else None
        for layout in answers.layouts(budget, trees=policy.takes_masks, prefixes=prefixes and policy.takes_prefixes):
            with autocast(policy.dtype, policy.device):
                hidden = hidden_states(policy.decoder, layout, policy.device, policy.mask_form)
            row, last = answers.where(layout)
            rewards = rewards.index_put((row[last],), self.heads(hidden[last].float()).cpu(), accumulate=True)
            if logps is not None:
                chosen = answers.tokens.flatten()[layout.target[~last]]
                logp, _ = policy.score_hidden(hidden[~last], chosen)
                logps = logps.index_add(0, row[~last], logp.cpu())
        return rewards, logps


def save(
    network: RewardNetwork,
    tokenizer: Any,
    folder: Path,
    about: dict[str, Any],
    *,
    lora: bool = False,
    only_first: bool = False,
) -> None:
    """Write a folder that transformers' `AutoModelForSequenceClassification` loads, with the chat template; see the module.

    Args:
        about: more lines of `whetstone.json`.
        only_first: the scores are the first head's; the others have another use.

    Raises:
        ModelError: transformers has no sequence classification for the architecture.
    """
    causal = network.model.merge_and_unload() if lora else network.model
    weight = network.heads.weight.detach()
    classifier = _classifier(causal, tokenizer.pad_token_id)
    head = torch.nn.Linear(weight.shape[1], 1, bias=False)
    with torch.no_grad():
        head.weight.copy_(weight[:1] if only_first else weight.mean(0, keepdim=True))
    classifier.score = head
    folder.mkdir(parents=True, exist_ok=True)
    classifier.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    if len(weight) > 1:
        from safetensors.torch import save_file

        save_file({"heads": weight.cpu().contiguous()}, folder / HEADS)
    body = {**about, "heads": len(weight), "only_first": only_first, "template": models.template_identity(tokenizer)}
    (folder / ABOUT).write_text(json.dumps(body, indent=1, sort_keys=True))


def _classifier(causal: Any, pad: int) -> Any:
    """A sequence classifier around the causal LM's own decoder; its head has no values yet."""
    from transformers import AutoModelForSequenceClassification

    config = copy.deepcopy(causal.config)
    config.num_labels, config.pad_token_id, config.use_cache = 1, pad, True
    try:
        with torch.device("meta"):
            classifier = AutoModelForSequenceClassification.from_config(config)
    except ValueError:
        raise ModelError(
            f"model: transformers has no sequence classification for {type(causal).__name__}, which a reward model is saved as. "
            "Use another family, such as llama, qwen2, qwen3 or gemma."
        ) from None
    if not hasattr(classifier, "score"):
        raise ModelError(f"model: {type(classifier).__name__} has no head called `score`. Use another family.")
    setattr(classifier, classifier.base_model_prefix, getattr(causal, causal.base_model_prefix))
    return classifier


class RewardScorer:
    """A trained reward model that scores answers, without gradient.

    Args:
        path: folder or hub name of a sequence classifier with one label.
        model: the recipe's model section, for compute precision and permission.
        budget: tokens of a forward pass.
        field: what a message calls the setting that names it.

    Raises:
        ModelError: it is no such checkpoint, or a damaged one.
    """

    def __init__(self, path: str | Path, model: Model, *, budget: int, field: str) -> None:
        self.path, self.budget, self.dtype = str(path), budget, model.dtype
        self.tokenizer = models.load_tokenizer(path, model)
        self.template = models.template_identity(self.tokenizer)
        self.network = _load(path, model, field)
        self.device = models.device()
        self.network.to(self.device)
        self.decoder = getattr(self.network, self.network.base_model_prefix)
        self.config = self.network.config.get_text_config()
        self.mask_form = MaskForm.of(self.config)
        folder = Path(models.local(self.path))
        self.about = json.loads((folder / ABOUT).read_text()) if (folder / ABOUT).is_file() else {}
        self.weight = self._heads(folder).to(self.device)
        self.context: int | None = getattr(self.config, "max_position_embeddings", None)
        """Longest conversation that it reads, in tokens."""

    @property
    def heads(self) -> int:
        """Scores of an answer."""
        return len(self.weight)

    @property
    def scale(self) -> Tensor | None:
        """Mean and standard deviation of each head's scores on the pairs of its card, float32 [heads, 2]; None where unknown."""
        if "score_mean" not in self.about:
            return None
        return torch.tensor([self.about["score_mean"], self.about["score_std"]]).T

    def reads(self, tokenizer: Any) -> bool:
        """Whether a tokenizer gives the token ids that it was trained on, so that they need not be rendered again."""
        return models.template_identity(tokenizer) == self.template

    def _heads(self, folder: Path) -> Tensor:
        """Weights of the heads that score, float32 [heads, hidden]."""
        if (folder / HEADS).is_file() and not self.about.get("only_first"):
            from safetensors.torch import load_file

            return load_file(folder / HEADS)["heads"]
        return self.network.score.weight.detach().float()

    @torch.no_grad()
    def score(self, sequences: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Scores of conversations that end with an answer, float32 [N, heads] on the CPU; NaN where one is longer than the context.

        Args:
            sequences: token ids.
            starts: index of each answer's first token.
        """
        scores = torch.full((len(sequences), self.heads), float("nan"))
        fitting = [i for i, row in enumerate(sequences) if row and len(row) <= (self.context or len(row))]
        if not fitting:
            return scores
        answers = Answers.of([sequences[i] for i in fitting], [starts[i] for i in fitting], self.tokenizer.pad_token_id)
        for layout in self._layouts(answers):
            row, last = answers.where(layout)
            scores[torch.tensor(fitting)[row[last]]] = self.pass_(layout)[last]
        return scores

    @torch.no_grad()
    def pass_(self, layout: Layout) -> Tensor:
        """Scores of the prefixes before each of the layout's scored tokens, float32 [M, heads] on the CPU."""
        with autocast(self.dtype, self.device):
            hidden = hidden_states(self.decoder, layout, self.device, self.mask_form)
        return torch.nn.functional.linear(hidden.float(), self.weight).cpu()

    @torch.no_grad()
    def last_attention(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """How much the last block's attention at each row's last token looks at its masked tokens, float32 [B, T] on the CPU.

        Mean over the heads, as a share of what goes to masked tokens; all 0 where nothing does, or where the row is longer than the
        context. The model must be loaded with `attention: eager`.

        Args:
            tokens: int64 [B, T], padded on the right.
            mask: bool [B, T]; a row ends at its last True.

        Raises:
            ModelError: the last block gives no attention weights.
        """
        shares = torch.zeros(tokens.shape)
        lengths = (mask.long() * torch.arange(1, mask.shape[1] + 1)).amax(1)
        fitting = (lengths > 0) & (lengths <= (self.context or tokens.shape[1]))
        waiting = fitting.nonzero().squeeze(1)
        waiting = waiting[lengths[waiting].argsort(descending=True, stable=True)]
        while len(waiting):
            width = int(lengths[waiting[0]])
            rows, waiting = waiting.split(
                [count := min(len(waiting), max(1, self.budget // width)), len(waiting) - count]
            )
            weights = self._attention(tokens[rows, :width])
            at_end = weights[torch.arange(len(rows)), :, lengths[rows] - 1].mean(1) * mask[rows, :width]
            total = at_end.sum(1, keepdim=True)
            shares[rows, :width] = torch.where(total > 0, at_end / total.clamp(min=1e-30), at_end)
        return shares

    def _attention(self, ids: Tensor) -> Tensor:
        """Attention weights of the last block, float32 [R, heads, W, W] on the CPU; padding on the right needs no mask of its own."""
        block = list(getattr(self.decoder, "layers", None) or self.decoder.h)[-1]
        module = getattr(block, "self_attn", None) or getattr(block, "attn", None)
        returned: list[Any] = []
        if module is not None:
            hook = module.register_forward_hook(lambda _, inputs, outputs: returned.append(outputs))
            with autocast(self.dtype, self.device):
                self.decoder(input_ids=ids.to(self.device), use_cache=False)
            hook.remove()
        weights = returned[0][1] if returned and isinstance(returned[0], tuple) and len(returned[0]) > 1 else None
        if weights is None:
            raise ModelError(
                f"the reward model {self.path}: the last block of {type(self.decoder).__name__} gives no attention weights. Use a "
                "family such as llama, qwen2, qwen3 or gpt2."
            )
        return weights.float().cpu()

    def _layouts(self, answers: Answers) -> list[Layout]:
        shared = bool(getattr(self.config, "num_kv_shared_layers", 0))
        trees = self.mask_form is not None
        return answers.layouts(self.budget, trees=trees, prefixes=trees and not shared)


def _load(path: str | Path, model: Model, field: str) -> Any:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    where = models.local(path)
    if Path(where).is_dir():
        model_files.check_folder(Path(where))
    with (
        model_files.reading(f"{field}: the reward model {where} could not be loaded", "Check the files and the name."),
        torch.random.fork_rng(devices=[]),
    ):
        config = AutoConfig.from_pretrained(where, trust_remote_code=model.trust_remote_code)
        check(config, where, field)
        both: Any = AutoModelForSequenceClassification.from_pretrained(
            where,
            dtype=torch.float32,
            attn_implementation=None if model.attention == "auto" else model.attention,
            trust_remote_code=model.trust_remote_code,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    network, info = both
    model_files.check_loaded(network, info, where)
    return network.eval().requires_grad_(False)


def check(config: Any, where: str | Path, field: str) -> None:
    """Refuse a checkpoint that is no reward model.

    Args:
        config: a transformers configuration.

    Raises:
        ModelError: names what it is.
    """
    architecture = (getattr(config, "architectures", None) or ["an unknown class"])[0]
    if not architecture.endswith(CLASSIFIER):
        raise ModelError(
            f"{field}: {where} is no reward model but {architecture}. Name a stage of kind reward_model, or a checkpoint for sequence "
            "classification with one label."
        )
    if config.num_labels != 1:
        raise ModelError(
            f"{field}: {where} has {config.num_labels} labels, and a reward model has one. Name another checkpoint."
        )
