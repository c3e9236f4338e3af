"""A reward model: the policy's decoder with scalar heads, read at an answer's last token.

On disk it is a plain transformers checkpoint for sequence classification with one label, which TRL and transformers read. A model that sees
has no such class in transformers: its checkpoint is the whole model's, with all heads beside it. Where it has
several heads they stand beside it in `heads.safetensors`, and the checkpoint's own is their mean (of linear heads: the mean of their
scores), or the first where only that one is to be used. One that writes a critique and then scores has the language head beside it, in
`language_head.safetensors`, and one whose scores depend on a user has `users.safetensors`; its plain checkpoint scores for nobody.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from pipelines.base.errors import ModelError
from pipelines.contract.lent_models import Answered, ScoredCritique
from pipelines.contract.model_settings import Model
from pipelines.contract.sampling import Sampling
from pipelines.data import marks
from pipelines.data.chat import completion_text, render_prompt, with_system_prompt
from pipelines.data.records import Stop
from pipelines.engine import model_files, models, user_latent, vision
from pipelines.engine.answers import Answers
from pipelines.engine.critiques import CritiqueSampler, critique_prompt, language_model
from pipelines.engine.layout import Layout
from pipelines.engine.masks import MaskForm
from pipelines.engine.models import autocast
from pipelines.engine.policy import hidden_states
from pipelines.engine.reward_network import RewardNetwork
from pipelines.engine.user_latent import UserLatent
from pipelines.recipe.model_path import CLASSIFIER

HEADS, LANGUAGE_HEAD, USERS, ABOUT = (
    "heads.safetensors", "language_head.safetensors", "users.safetensors", "whetstone.json",
)  # fmt: skip


def save(
    network: RewardNetwork,
    tokenizer: Any,
    folder: Path,
    about: dict[str, Any],
    *,
    lora: bool = False,
    only_first: bool = False,
    language_head: bool = False,
    latents: Tensor | None = None,
) -> None:
    """Write a folder that transformers' `AutoModelForSequenceClassification` loads, with the chat template; see the module.

    Args:
        about: more lines of `whetstone.json`.
        only_first: the scores are the first head's; the others have another use.
        language_head: write it too.
        latents: of the users in `about["users"]`, float32 [U, size], where scores depend on one.

    Raises:
        ModelError: transformers has no sequence classification for the architecture.
    """
    causal = network.model
    if lora:
        from pipelines.engine import quantization

        causal = quantization.merged(causal)
    weight = network.heads.weight.detach()
    folder.mkdir(parents=True, exist_ok=True)
    if seeing := vision.sees(causal.config):
        _save_seeing(causal, folder)
    else:
        classifier = _classifier(causal, tokenizer.pad_token_id)
        head = torch.nn.Linear(weight.shape[1], 1, bias=False)
        with torch.no_grad():
            head.weight.copy_(plain_head(network, only_first=only_first))
        classifier.score = head
        classifier.save_pretrained(folder, safe_serialization=True)
    models.save_tokenizer(tokenizer, folder)
    from safetensors.torch import save_file

    if language_head:
        state = causal.get_output_embeddings().state_dict()
        save_file({name: value.cpu().clone().contiguous() for name, value in state.items()}, folder / LANGUAGE_HEAD)
    if network.users is not None and latents is not None:
        user_latent.save(network.users, latents.cpu(), folder / USERS)
    if len(weight) > 1 or seeing:
        save_file({"heads": weight.cpu().contiguous()}, folder / HEADS)
    body = {**about, "heads": len(weight), "only_first": only_first, "template": models.template_identity(tokenizer)}
    (folder / ABOUT).write_text(json.dumps(body, indent=1, sort_keys=True))


def _save_seeing(causal: Any, folder: Path) -> None:
    """Write a whole model that sees, under a class that says that it is a reward model."""
    causal.save_pretrained(folder, safe_serialization=True)
    body = json.loads((folder / "config.json").read_text())
    name = str(body["architectures"][0])
    body["architectures"] = [name[: name.index("For")] + CLASSIFIER if "For" in name else name + CLASSIFIER]
    (folder / "config.json").write_text(json.dumps(body, indent=2, sort_keys=True) + "\n")


def plain_head(network: RewardNetwork, only_first: bool = False) -> Tensor:
    """The one head of the plain checkpoint, [1, hidden]; see the module."""
    weight = network.heads.weight.detach()
    return weight[:1] if only_first else weight.mean(0, keepdim=True)


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
            "model",
            f"transformers has no sequence classification for {type(causal).__name__}, which a reward model is saved as",
            "Use another family, such as llama, qwen2, qwen3 or gemma.",
        ) from None
    if not hasattr(classifier, "score"):
        raise ModelError("model", f"{type(classifier).__name__} has no head called `score`", "Use another family.")
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
        self.network = _load(path, model, field, self.tokenizer)
        self.device = models.device()
        self.network.to(self.device)
        seeing = vision.sees(self.network.config)
        self.decoder = self.network.get_decoder() if seeing else getattr(self.network, self.network.base_model_prefix)
        self.config = self.network.config.get_text_config()
        self.mask_form = MaskForm.of(self.config)
        self.folder = folder = Path(models.local(self.path))
        self.metadata = json.loads((folder / ABOUT).read_text()) if (folder / ABOUT).is_file() else {}
        self.weight = self._heads(folder).to(self.device)
        self._writer: CritiqueSampler | None = None
        self._users: tuple[UserLatent, Tensor] | None = None
        if (folder / USERS).is_file():
            encoder, latents = user_latent.load(folder / USERS)
            self._users = encoder.to(self.device), latents.to(self.device)
        self.context: int | None = getattr(self.config, "max_position_embeddings", None)
        """Longest conversation that it reads, in tokens."""

    @property
    def critiques(self) -> bool:
        """Whether it writes a critique of an answer before it scores it."""
        return "critique" in self.metadata

    @property
    def separator(self) -> str | None:
        """Between the steps whose labels it was trained on; None where it was trained on whole answers."""
        return (self.metadata.get("steps") or {}).get("separator")

    @property
    def heads(self) -> int:
        """Scores of an answer."""
        return len(self.weight)

    @property
    def scale(self) -> Tensor | None:
        """Mean and standard deviation of each head's scores on the pairs of its card, float32 [heads, 2]; None where unknown."""
        if "score_mean" not in self.metadata:
            return None
        return torch.tensor([self.metadata["score_mean"], self.metadata["score_std"]]).T

    def reads(self, tokenizer: Any) -> bool:
        """Whether a tokenizer gives the token ids that it was trained on, so that they need not be rendered again."""
        return models.template_identity(tokenizer) == self.template

    def _heads(self, folder: Path) -> Tensor:
        """Weights of the heads that score, float32 [heads, hidden]."""
        if vision.sees(self.network.config):
            heads = load_file(folder / HEADS)["heads"]
            return heads[:1] if self.metadata.get("only_first") else heads
        if (folder / HEADS).is_file() and not self.metadata.get("only_first"):
            return load_file(folder / HEADS)["heads"]
        return self.network.score.weight.detach().float()

    def score(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int], *, latent: Tensor | None = None
    ) -> Tensor:
        """Scores of conversations that end with an answer, float32 [N, heads] on the CPU; NaN where one is longer than the context.

        Args:
            sequences: token ids.
            starts: index of each answer's first token.
            latent: of the user whose scores are wanted, float32 [size]; without it what all users share.

        Raises:
            ModelError: the model writes a critique first: `score_with_critiques`.
        """
        if self.critiques:
            raise ModelError(
                f"{self.path} writes a critique before it scores", fix="Use rlvr.reward: {kind: critiqued_model}."
            )
        return self._score(sequences, starts, latent)

    def latent_of(self, user: str) -> Tensor:
        """Latent of a user that it was trained on, float32 [size].

        Raises:
            ModelError: there is none of that name.
        """
        names = self.metadata.get("users", [])
        if self._users is None or user not in names:
            known = f"It knows {', '.join(names[:10])}." if names else "It was trained without reward_model.users."
            raise ModelError(f"{self.path} knows no user called {user!r}", fix=known)
        return self._users[1][names.index(user)]

    def infer_latent(self, chosen: Sequence[Sequence[int]], rejected: Sequence[Sequence[int]]) -> Tensor:
        """Latent of a user from a few of their pairs, float32 [size]: the posterior's mean, scaled as in training.

        Args:
            chosen, rejected: token ids of the pairs' two conversations.

        Raises:
            ModelError: it was trained without `reward_model.users`.
        """
        if self._users is None:
            raise ModelError(f"{self.path} was trained without reward_model.users: its scores depend on no user.")
        rows = [*chosen, *rejected]
        answers = Answers.of(rows, [len(row) - 1 for row in rows], self.tokenizer.pad_token_id)
        ends = torch.zeros(len(rows), self.weight.shape[1], device=self.device)
        for row, hidden in self._ends(answers):
            ends[row.to(self.device)] = hidden
        context = torch.stack([ends[: len(chosen)], ends[len(chosen) :]], 1)[None]
        present = torch.ones(1, len(chosen), dtype=torch.bool, device=self.device)
        mean, log_variance = self._users[0].posterior(context, present)
        return user_latent.draw(mean, log_variance, torch.zeros_like(mean))[0]

    def score_with_critiques(
        self, answered: Sequence[Answered], count: int, *, seed: int
    ) -> list[list[ScoredCritique]]:
        """`count` critiques of each answer, each with the score that is read after it; see `contract.lent_models.RewardModel`.

        Raises:
            ModelError: the model writes no critiques.
        """
        if not self.critiques:
            raise ModelError(f"{self.path} was not trained with critiques", fix="Use rlvr.reward: {kind: model}.")
        about = self.metadata["critique"]
        prompts = [with_system_prompt(each.prompt, self.metadata.get("system_prompt")) for each in answered]
        prefixes = [
            render_prompt(self.tokenizer, critique_prompt(prompt, each.text, about["instruction"]), each.tools)
            for prompt, each in zip(prompts, answered, strict=True)
        ]
        if self._writer is None:
            causal = language_model(self.network, load_file(self.folder / LANGUAGE_HEAD)).to(self.device)
            self._writer = CritiqueSampler(causal, self.tokenizer, dtype=self.dtype)
        sampling = Sampling.model_validate(about["sampling"])
        written = self._writer.write(prefixes, count, sampling, seed=seed)
        rows = [[*ids, *each.tokens] for ids, critiques in zip(prefixes, written, strict=True) for each in critiques]
        scores = self._score(rows, [len(ids) for ids in prefixes for _ in range(count)]).mean(1).tolist()
        graded = [
            ScoredCritique(completion_text(self.tokenizer, each.tokens), float("nan") if failed else score, each.stop)
            for each, score in zip((c for critiques in written for c in critiques), scores, strict=True)
            for failed in [each.stop == Stop.ERROR]
        ]
        return [graded[start : start + count] for start in range(0, len(graded), count)]

    @torch.no_grad()
    def _score(self, sequences: Sequence[Sequence[int]], starts: Sequence[int], latent: Tensor | None = None) -> Tensor:
        scores = torch.full((len(sequences), self.heads), float("nan"))
        fitting = [i for i, row in enumerate(sequences) if row and len(row) <= (self.context or len(row))]
        if not fitting:
            return scores
        answers = Answers.of([sequences[i] for i in fitting], [starts[i] for i in fitting], self.tokenizer.pad_token_id)
        for row, hidden in self._ends(answers):
            values = torch.nn.functional.linear(hidden, self.weight)
            if latent is not None and self._users is not None:
                values = values + self._users[0].gain(hidden, latent.expand(len(hidden), -1))[:, None]
            scores[torch.tensor(fitting)[row]] = values.cpu()
        return scores

    def _ends(self, answers: Answers) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows, int64 [M], and the hidden states at their ends, float32 [M, width], a pass at a time."""
        for layout in self._layouts(answers):
            row, last = answers.where(layout)
            yield row[last], self._hidden(layout)[last]

    @torch.no_grad()
    def _hidden(self, layout: Layout) -> Tensor:
        """Hidden states before each of the layout's scored tokens, float32 [M, width]."""
        with autocast(self.dtype, self.device):
            return hidden_states(self.decoder, layout, self.device, self.mask_form).float()

    @torch.no_grad()
    def pass_(self, layout: Layout) -> Tensor:
        """Scores of the prefixes before each of the layout's scored tokens, float32 [M, heads] on the CPU."""
        return torch.nn.functional.linear(self._hidden(layout), self.weight).cpu()

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
            shares[rows, :width] = at_end / total.where(total > 0, 1.0)
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
                f"the reward model {self.path}: the last block of {type(self.decoder).__name__} gives no attention weights",
                fix="Use a family such as llama, qwen2, qwen3 or gpt2.",
            )
        return weights.float().cpu()

    def _layouts(self, answers: Answers) -> list[Layout]:
        shared = bool(getattr(self.config, "num_kv_shared_layers", 0))
        trees = self.mask_form is not None
        return answers.layouts(self.budget, trees=trees, prefixes=trees and not shared)


def _load(path: str | Path, model: Model, field: str, tokenizer: Any) -> Any:
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoModelForSequenceClassification

    where = models.local(path)
    if Path(where).is_dir():
        model_files.check_folder(Path(where))
    with (
        model_files.reading(field, f"the reward model {where} could not be loaded", "Check the files and the name."),
        torch.random.fork_rng(devices=[]),
    ):
        config = AutoConfig.from_pretrained(where, trust_remote_code=model.trust_remote_code)
        check(config, where, field)
        seeing = vision.sees(config)
        loader: Any = AutoModelForImageTextToText if seeing else AutoModelForSequenceClassification
        both: Any = loader.from_pretrained(
            where,
            dtype=models.weights_dtype(model),
            attn_implementation=None if model.attention == "auto" else model.attention,
            trust_remote_code=model.trust_remote_code,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    network, info = both
    model_files.check_loaded(network, info, where)
    if seeing:
        if (reader := marks.reader_of(tokenizer)) is None:
            raise ModelError(
                field, f"{where} has no processor for its images", "Copy it from where the model came from."
            )
        network = vision.attach(network, reader)
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
            field,
            f"{where} is no reward model but {architecture}",
            "Name a stage of kind reward_model, or a checkpoint for sequence classification with one label.",
        )
    if vision.sees(config):
        if not (Path(where) / HEADS).is_file():
            raise ModelError(
                field, f"{where} has no {HEADS}, which a reward model that sees has", "Name another checkpoint."
            )
    elif config.num_labels != 1:
        raise ModelError(
            field, f"{where} has {config.num_labels} labels, and a reward model has one", "Name another checkpoint."
        )
