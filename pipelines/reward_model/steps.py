"""Learning from labelled steps: a process reward model, whose rewards are read where steps end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.base.errors import DataError
from pipelines.data import control, dataset
from pipelines.data.chat import render_answer, with_system_prompt
from pipelines.data.step_records import StepAnswer, steps_of, token_at
from pipelines.engine.fixed_data import HELDOUT, Pass
from pipelines.engine.parallel import with_last
from pipelines.engine.reward_network import Places
from pipelines.reward_model import step_card
from pipelines.reward_model.base import HELDOUT_EXAMPLES, RewardTrainer
from pipelines.reward_model.pack import chunks


@dataclass(frozen=True, slots=True)
class Steps:
    """A conversation that ends with an answer in steps."""

    prompt: str
    """Equal for equal prompts."""
    ids: list[int]
    ends: list[int]
    """Index of the token that each labelled step is read at: of the last one of a whole answer the end token, which a policy samples."""
    labels: list[float]
    places: list[int]
    """Number of each labelled step in the answer, from 0."""
    judged: bool
    """Its last step has a label, which says whether the answer is correct."""

    @property
    def size(self) -> int:
        """Tokens."""
        return len(self.ids)

    @property
    def longest(self) -> int:
        """Tokens."""
        return len(self.ids)


def tokens_of(
    answer: StepAnswer, tokenizer: Any, system: str | None, tools: list[dict[str, Any]] | None, separator: str
) -> Steps | None:
    """Render an answer and find its steps' last tokens.

    Args:
        system: what the model that is started from was trained with.
        tools: that the prompt offers.
        separator: as in `StepAnswer.ends`.

    Returns:
        None where no step has a label, or its steps cannot be found: the chat template changes the answer's text, or two of them end in
        one token.
    """
    text, ends = answer.ends(separator)
    prompt = with_system_prompt(answer.prompt, system)
    ids, start = render_answer(tokenizer, prompt, text, answer.uid, tools, ended=not answer.cut)

    def decode(tokens: Sequence[int]) -> str:
        return control.decode_text(tokenizer, tokens)

    own = ids[start:]
    decoded = decode(own)
    labelled = [(place, label) for place, label in enumerate(answer.labels) if label is not None]
    if not labelled or not decoded.startswith(text):
        return None
    read = [start + token_at(ends[place], decoded, own, decode) for place, _ in labelled]
    judged = labelled[-1][0] == len(answer.steps) - 1
    # What scores answers leaves padding at their end out, which may be the end token.
    if judged and not answer.cut and read[-1] + 1 < len(ids) and ids[read[-1] + 1] != tokenizer.pad_token_id:
        read[-1] += 1
    if len(set(read)) < len(read):
        return None
    labels = [label for _, label in labelled]
    return Steps(json.dumps(answer.prompt), ids, read, labels, [place for place, _ in labelled], judged)


class StepTrainer(RewardTrainer):
    """One run on answers with labelled steps; arguments as in `Loop`."""

    def read(self, data: Path) -> None:
        """Read the answers, and make the network."""
        settings = self.settings
        assert settings.step_labels is not None, "the plan refuses a loss of steps without it"
        self.labels = settings.step_labels
        self.answers = self._answers(data, settings.split)
        self.heldout = self._answers(data, settings.heldout)[:HELDOUT_EXAMPLES] if settings.heldout else []
        self.measures = bool(self.heldout)
        self.load()
        self.plan_steps(len(self.answers))

    def load(self) -> None:
        """The starting model with its heads, and the optimizer."""
        self.load_heads(self.settings.heads, text=False)

    def _answers(self, data: Path, split: str) -> list[Steps]:
        read = dataset.read_split(data, split)
        answers = []
        for number, problem in enumerate(read, 1):
            answer = steps_of(problem)
            answers.append(tokens_of(answer, self.tokenizer, self.system, problem.tools, self.labels.separator))
            self.report.progress(number, len(read), f"tokenising {split}", unit="answer")
        readable = [each for each in answers if each is not None]
        if len(readable) < len(answers):
            dropped = len(answers) - len(readable)
            self.report.event(
                "dropped answers without a label, or whose steps the tokens do not show", split=split, answers=dropped
            )
        if not readable:
            raise DataError(
                "reward_model.data",
                f"none of the {len(answers)} answers of {split} has a labelled step that the chat template leaves as it is",
                "Look at the records' info.steps and info.step_labels, and at the template.",
            )
        return self.fitting(readable, self.settings.max_length, "answers", split)

    def make_step(self, step: int) -> dict[str, float]:
        """One update."""
        began = time.perf_counter()
        batch = [self.answers[i] for i in self.epochs.step(step)]
        labels, count = self._labels(batch), sum(len(each.ends) for each in batch)
        own, total = [], 0.0
        for (micro_batch, counts), last in with_last(self._passes_of(batch)):
            some = [batch[i] for i in micro_batch.items]
            scored = self.model.read_places(micro_batch.rows, micro_batch.layouts)
            loss = self._loss(scored, self._labels(some)).sum() / count * counts
            self.weights.backward(loss, last=last)
            total += float(loss.detach())
            own.append((micro_batch.items, scored.detach()))
        rewards = self._joined(batch, own).mean(1)
        metrics = {
            "loss/train": self.world.total(total),
            "accuracy/train": step_card.accuracy(torch.sigmoid(rewards), labels),
            "reward/mean": float(rewards.mean()),
            **{f"optimizer/{k}": v for k, v in self.stepper.step(step).items()},
        }
        tokens = sum(each.size for each in batch)
        self.tokens_seen += tokens
        seconds = time.perf_counter() - began
        return metrics | {"time/step_s": seconds, "tokens/per_s": tokens / seconds}

    def _labels(self, batch: Sequence[Steps]) -> Tensor:
        """Of all labelled steps, answer by answer, float32 [N]."""
        labels = torch.tensor([label for each in batch for label in each.labels])
        return (labels > 0).float() if self.labels.labels == "any" else labels

    def _passes_of(self, batch: Sequence[Steps]) -> Iterator[tuple[Pass[Places], bool]]:
        """This process's passes over places of the batch."""
        parts = chunks(batch, self.settings.micro_batch_tokens)
        return self.passes(parts, lambda part: self._places([batch[i] for i in part]))

    def _places(self, batch: Sequence[Steps]) -> Places:
        """The ends of all labelled steps."""
        pad = self.tokenizer.pad_token_id
        tokens = torch.full((len(batch), max(each.size for each in batch)), pad, dtype=torch.int64)
        read = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, each in enumerate(batch):
            tokens[row, : each.size] = torch.tensor(each.ids)
            read[row, each.ends] = True
        return Places.of(tokens, read)

    def _joined(self, batch: Sequence[Steps], own: Sequence[tuple[list[int], Tensor]]) -> Tensor:
        """The rewards of all processes' passes, answer by answer, float32 [N, heads]; each with its answers' places in the batch."""
        by_answer: dict[int, Tensor] = {}
        for items, rewards in self.world.gather_all(own):
            by_answer |= zip(items, rewards.split([len(batch[i].ends) for i in items]), strict=True)
        return torch.cat([by_answer[i] for i in range(len(batch))])

    def _loss(self, rewards: Tensor, labels: Tensor) -> Tensor:
        """Loss of each step, mean over the heads, float32 [N]."""
        return torch.stack([self.loss({"step_reward": head, "step_label": labels}) for head in rewards.unbind(1)]).mean(
            0
        )

    @torch.no_grad()
    def _scored(self, answers: Sequence[Steps]) -> Tensor:
        """Rewards of all labelled steps without gradient, answer by answer, float32 [N, heads]."""
        passes = (micro_batch for micro_batch, _ in self._passes_of(answers))
        return self._joined(
            answers,
            [
                (micro_batch.items, self.model.read_places(micro_batch.rows, micro_batch.layouts))
                for micro_batch in passes
            ],
        )

    def measure(self) -> dict[str, float]:
        """Loss, accuracy and the card's other metrics of the held-out answers, by the mean of the heads."""
        rewards = self._scored(self.heldout)
        loss = float(self._loss(rewards, self._labels(self.heldout)).mean())
        measured = self._card(rewards)
        accuracy = measured.pop("accuracy")
        return {HELDOUT: loss, "accuracy/heldout": accuracy} | {f"heldout/{k}": v for k, v in measured.items()}

    def _card(self, rewards: Tensor) -> dict[str, float]:
        p, labels = torch.sigmoid(rewards.mean(1)), self._labels(self.heldout)
        sizes = [len(each.ends) for each in self.heldout]
        # A step without a label may hide the first incorrect one.
        gapless = [each.places == list(range(len(each.places))) for each in self.heldout]
        prompts = [each.prompt for each in self.heldout]
        return step_card.measures(p, labels, sizes, prompts, gapless, [each.judged for each in self.heldout])

    def save(self) -> None:
        """The checkpoint, and its card."""
        scores = self._scored(self.heldout or self.answers[:HELDOUT_EXAMPLES])
        self.final = self._card(scores) if self.heldout else {}
        about = {
            **self.about(), "score_mean": scores.mean(0).tolist(), "score_std": scores.std(0, correction=0).tolist(),
            "steps": {"separator": self.labels.separator},
        }  # fmt: skip
        with self.weights.gathered(first=True) as network:
            if network is None:
                return
            self.write_model(network, about)
        counts = {"answers": len(self.answers), "steps of answers": sum(len(each.ends) for each in self.answers)}
        self.write_card(counts | {"heldout answers": len(self.heldout)}, "steps")
