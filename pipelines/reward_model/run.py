"""The stage: pairs, steps of pairwise losses, held-out accuracy and calibration, exact resume."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.base.errors import DataError
from pipelines.data import dataset, pair_records
from pipelines.data.records import Stop
from pipelines.engine.answers import Answers
from pipelines.engine.critiques import CritiqueSampler
from pipelines.engine.fixed_data import HELDOUT, Pass
from pipelines.engine.parallel import with_last
from pipelines.engine.user_latent import UserLatent
from pipelines.reward_model import card, pair_data
from pipelines.reward_model.base import HELDOUT_EXAMPLES, RewardTrainer
from pipelines.reward_model.kind import ANSWER_TEXT, CRITIQUE_TEXT, LENGTH_HEAD, TRUNCATE
from pipelines.reward_model.pack import Tokens, answers, chunks, critique_tokens, data_columns, owners, tokens_of
from pipelines.reward_model.scores import DISTANCES, Scores, by_place, prior_distance, shares_of
from pipelines.reward_model.users import Context, UserPairs

Read = tuple[pair_records.Pair, list[dict[str, Any]] | None]
"""A pair and the tools that its prompt offers."""


class Trainer(RewardTrainer):
    """One run on pairs; arguments as in `Loop`."""

    def read(self, data: Path) -> None:
        """Read the pairs, and make what the loss needs beside the network."""
        settings = self.settings
        self.two_heads = LENGTH_HEAD in self.loss.needs
        self.text = bool({*ANSWER_TEXT, *CRITIQUE_TEXT} & set(self.loss.needs))
        self.own_critiques = settings.critique is not None and settings.critique.source == "own"
        self.changes: dict[str, int] = {}
        """For the card: how many pairs `reward_model.pairs` dropped and added."""
        self.pairs = self._pairs(data, settings.split, changed=True)
        self.heldout = self._pairs(data, settings.heldout)[:HELDOUT_EXAMPLES] if settings.heldout else []
        self.measures = bool(self.heldout)
        self.load()
        self.compares = "chosen_logp_ref" in self.loss.needs
        self.shares_turns = DISTANCES[0] in self.loss.needs
        self.critiques: dict[str, list[list[list[int]]]] = {}
        """train, heldout → for each pair the token ids of both critiques, where the starting model writes them."""
        self.reference: dict[str, Tensor] = {}
        """train, heldout → log-probabilities of the answers under the starting model, float32 [pairs, 2], where the loss reads them."""
        self.user_pairs: UserPairs | None = None
        if settings.users is not None:
            count = settings.users.context
            self.user_pairs = UserPairs(self.pairs, self.heldout, count=count, seed=self.seed, embed=self._embed)
        self.dynamics = pair_data.Dynamics(len(self.pairs)) if settings.cartography else None
        self.plan_steps(len(self.pairs))

    def _pairs(self, data: Path, split: str, *, changed: bool = False) -> list[Tokens]:
        """Those of a split; with `changed` as `reward_model.pairs` says."""
        read = [(pair_records.pair_of(problem), problem.tools) for problem in dataset.read_split(data, split)]
        if changed:
            read = self._changed(read)
        tokens = []
        for number, (pair, tools) in enumerate(read):
            tokens.append(self._tokens(pair, tools))
            self.report.progress(number + 1, len(read), f"tokenising {split}", unit="pair")
        limit = self.settings.max_length
        critique = self.settings.critique
        if critique is not None and self.own_critiques:
            limit -= critique.sampling.max_tokens
        fitting = self.fitting(tokens, limit, "pairs", split)
        return self._balanced(fitting) if changed and self.settings.pairs.balance is not None else fitting

    def _changed(self, read: list[Read]) -> list[Read]:
        """The pairs without those that are truncated, then the random ones."""
        settings = self.settings.pairs
        count = len(read)
        if settings.truncate is not None:
            kept = pair_data.truncate([pair for pair, _ in read], settings.truncate, self.inputs[TRUNCATE])
            read = [read[place] for place in kept]
            self.changes["truncated pairs"] = count - len(read)
        if settings.random is not None:
            added = pair_data.with_random([pair for pair, _ in read], settings.random, self.seed)
            self.changes["random pairs"] = len(added)
            read = [*read, *((pair, read[place][1]) for pair, place in added)]
        return read

    def _balanced(self, pairs: list[Tokens]) -> list[Tokens]:
        width = self.settings.pairs.balance
        assert width is not None
        kept = pair_data.balanced([pair.lengths for pair in pairs], width, self.seed)
        self.changes["pairs dropped for balance"] = len(pairs) - len(kept)
        return [pairs[place] for place in kept]

    def _tokens(self, pair: pair_records.Pair, tools: list[dict[str, Any]] | None) -> Tokens:
        critique = self.settings.critique
        if pair.part is not None and self.settings.users is not None:
            raise DataError(
                "reward_model.users",
                f"record {pair.uid} is a pair of parts of episodes (info.{pair.part}), and a user's latent is inferred from pairs of "
                "whole answers",
                "Leave it out.",
            )
        if critique is None:
            return tokens_of(pair, self.tokenizer, self.system, tools)
        written = critique.source == "records"
        return critique_tokens(pair, self.tokenizer, self.system, tools, critique.instruction, written=written)

    def load(self) -> None:
        """The starting model with its heads, and the optimizer."""
        users = self.settings.users
        self.load_heads(
            2 if self.two_heads else self.settings.heads, text=self.text,
            users=(users.latent, users.hidden) if users else None,
        )  # fmt: skip

    def begin(self) -> None:
        """Let the starting model write critiques, and score the answers by it where the loss compares with it."""
        if self.own_critiques:
            if not self.critiques:
                self.critiques = {"train": self._write(self.pairs), "heldout": self._write(self.heldout)}
            self.pairs, self.heldout = (
                [pair.with_critiques(*ids) for pair, ids in zip(rows, self.critiques[name], strict=True)]
                for name, rows in (("train", self.pairs), ("heldout", self.heldout))
            )
        if self.compares and not self.reference:
            for name, rows in (("train", self.pairs), ("heldout", self.heldout)):
                columns = self._all_columns(rows, range(len(rows)), with_reference=False)[0] if rows else {}
                if columns:
                    self.reference[name] = torch.stack([columns["chosen_logp"], columns["rejected_logp"]], 1)

    def _embed(self, rows: Sequence[Tokens]) -> Tensor:
        """Hidden states at the ends of the pairs' answers, float32 [P, 2, width]."""
        if not rows:
            return torch.zeros(0, 2, self.model.heads.in_features, device=self.device)
        packed, _ = answers(rows, self.tokenizer.pad_token_id)
        own = list(self.model.ends(packed, (layout for layout, _ in self.world.share_evenly(self.layouts(packed)))))
        ends = torch.zeros(len(packed.tokens), self.model.heads.in_features)
        for row, hidden in self.world.gather_all(own):
            ends[row] = hidden
        return torch.stack(ends.to(self.device).chunk(2), 1)

    def _context(self, batch: Sequence[Tokens], step: int | None) -> Context | None:
        """What the latents of the pairs' users are inferred from; None where rewards depend on no user."""
        if self.user_pairs is None or self.model.users is None:
            return None
        return self.user_pairs.context(batch, self.model.users.size, step=step).to(self.device)

    def _write(self, rows: Sequence[Tokens]) -> list[list[list[int]]]:
        """Token ids of a critique of both answers of each pair, by the model as it is."""
        critique = self.settings.critique
        if critique is None or not rows:
            return []
        prefixes = [ids for pair in rows for ids in (pair.chosen, pair.rejected)]
        shard = self.world.share(prefixes)
        with self.weights.gathered() as full:
            writer = CritiqueSampler(full.policy.causal, self.tokenizer, dtype=self.model_settings.dtype)
            own = writer.write(shard, 1, critique.sampling, seed=self.seed) if shard else []
        drawn = [each[0] for each in self.world.joined(own)]
        cut = sum(each.stop == Stop.LENGTH for each in drawn)
        if cut:
            self.report.event(
                "critiques cut at reward_model.critique.sampling.max_tokens", critiques=cut, of=len(drawn)
            )
        return [[first.tokens, second.tokens] for first, second in zip(drawn[::2], drawn[1::2], strict=True)]

    def make_step(self, step: int) -> dict[str, float]:
        """One update."""
        began = time.perf_counter()
        indices = self.epochs.step(step)
        batch = [self.pairs[i] for i in indices]
        if self.loss.card.batch_coupled:
            loss, rewards = self._coupled(batch, indices)
        else:
            loss, rewards = self._summed(batch, indices, step)
        used = rewards[:, 0] if self.two_heads else rewards.mean(1)
        chosen, rejected = used.chunk(2)
        if self.dynamics is not None:
            self.dynamics.observe(step * self.settings.pairs_per_step, indices, chosen - rejected)
        metrics = {
            "loss/train": loss,
            "accuracy/train": float((0.5 * ((chosen > rejected).float() + (chosen >= rejected).float())).mean()),
            "reward/mean": float(used.mean()),
            "reward/margin": float((chosen - rejected).mean()),
            **{f"optimizer/{k}": v for k, v in self.stepper.step(step).items()},
        }
        tokens = sum(pair.size for pair in batch)
        self.tokens_seen += tokens
        per_step, count = self.settings.pairs_per_step, len(self.pairs)
        if hasattr(self.loss.fn, "on_epoch") and (step + 1) * per_step // count > step * per_step // count:
            self.loss.fn.on_epoch(self._all_columns(self.pairs, range(count)))
        seconds = time.perf_counter() - began
        return metrics | {"time/step_s": seconds, "tokens/per_s": tokens / seconds}

    def _passes_of(self, batch: Sequence[Tokens]) -> Iterator[tuple[Pass[Answers], bool]]:
        """This process's passes over places of the batch."""
        pad = self.tokenizer.pad_token_id
        parts = chunks(batch, self.settings.micro_batch_tokens)
        return self.passes(parts, lambda part: answers([batch[i] for i in part], pad)[0])

    def _scores(self, batch: Sequence[Tokens], micro_batch: Pass[Answers], context: Context | None = None) -> Scores:
        """Of the chosen answers of a pass, then of the rejected ones.

        An answer of several turns has the sum over its turns, each read at its end.

        Args:
            batch: what the pass's items are places in.
            context: what the latents of the batch's users are inferred from.
        """
        some = [batch[i] for i in micro_batch.items]
        owner = owners(some)

        def users(encoder: UserLatent) -> tuple[Tensor, Tensor]:
            assert context is not None
            latents, divergence = context.of(micro_batch.items).latents(encoder)
            return latents.repeat(2, 1)[owner], divergence

        scored = self.model.read_ends(
            micro_batch.rows, micro_batch.layouts, text=self.text, users=None if context is None else users
        )
        rewards, logps, count = scored.rewards, scored.logps, 2 * len(some)
        summed = torch.zeros(count, rewards.shape[1]).index_add(0, owner, rewards)
        distances = prior_distance(rewards, summed, owner, shares_of(some)) if self.shares_turns else None
        answered = None if logps is None else torch.zeros(count).index_add(0, owner, logps)
        return Scores(summed, answered, distances, scored.divergence, scored.cosine)

    def _all_scores(self, batch: Sequence[Tokens], context: Context | None = None) -> Scores:
        """Of the chosen answers of the batch, then of the rejected ones, without gradient, the same on every process."""
        own: list[tuple[list[int], dict[str, Tensor]]] = []
        cosine = None
        with torch.no_grad():
            for micro_batch, _ in self._passes_of(batch):
                scores = self._scores(batch, micro_batch, context)
                own.append((micro_batch.items, scores.columns))
                cosine = scores.cosine
        return Scores.of_columns(by_place(self.world.gather_all(own), len(batch)), cosine)

    def _columns(
        self,
        batch: Sequence[Tokens],
        indices: Sequence[int],
        scores: Scores,
        *,
        step: int,
        with_reference: bool = True,
    ) -> list[dict[str, Any]]:
        """The columns for each head that has a loss.

        Args:
            indices: places in the training split; -1 for held-out pairs.
            step: how far training has come.
        """
        rewards, logps = scores.rewards, scores.logps
        shared: dict[str, Any] = dict(data_columns(batch, indices))
        if logps is not None:
            names = ANSWER_TEXT if self.settings.critique is None else CRITIQUE_TEXT
            shared |= dict(zip(names, logps.chunk(2), strict=True))
        if self.compares and with_reference:
            trained = min(indices) >= 0
            rows = self.reference["train"][list(indices)] if trained else self.reference["heldout"]
            shared["chosen_logp_ref"], shared["rejected_logp_ref"] = rows.unbind(1)
        if self.two_heads:
            shared["head_cosine"] = scores.cosine
            shared["chosen_length_reward"], shared["rejected_length_reward"] = rewards[:, 1].chunk(2)
            rewards = rewards[:, :1]
        if scores.divergence is not None:
            shared |= {"latent_kl": scores.divergence, "progress": torch.tensor(step / self.total)}
        columns = []
        for number, head in enumerate(rewards.unbind(1)):
            chosen, rejected = head.chunk(2)
            own = {"chosen_reward": chosen, "rejected_reward": rejected}
            if scores.distances is not None:
                own |= dict(zip(DISTANCES, scores.distances[:, number].chunk(2), strict=True))
            columns.append(shared | own)
        return columns

    def _loss(self, columns: list[dict[str, Any]]) -> Tensor:
        """Loss of each pair, mean over the heads, float32 [P]."""
        return torch.stack([self.loss(each) for each in columns]).mean(0)

    def _summed(self, batch: Sequence[Tokens], indices: Sequence[int], step: int = 0) -> tuple[float, Tensor]:
        """Gradient of a loss that is a mean over pairs, some pairs at a time; the loss, and the rewards [2P, heads] of the batch."""
        total = 0.0
        context = self._context(batch, step)
        own: list[tuple[list[int], dict[str, Tensor]]] = []
        for (micro_batch, counts), last in with_last(self._passes_of(batch)):
            scores = self._scores(batch, micro_batch, context)
            places = [indices[i] for i in micro_batch.items]
            columns = self._columns([batch[i] for i in micro_batch.items], places, scores, step=step)
            loss = self._loss(columns).sum() / len(batch) * counts
            self.weights.backward(loss, last=last)
            total += float(loss.detach())
            own.append((micro_batch.items, {"rewards": scores.columns["rewards"].detach()}))
        scored = by_place(self.world.gather_all(own), len(batch))
        return self.world.total(total), Scores.of_columns(scored, None).rewards

    def _coupled(self, batch: Sequence[Tokens], indices: Sequence[int]) -> tuple[float, Tensor]:
        """As `_summed`, for a loss that couples pairs: its derivatives by the scores first, then these as factors (2101.06983)."""
        known = self._all_scores(batch)
        free = known.rewards.requires_grad_()
        cosine = None if known.cosine is None else known.cosine.requires_grad_()
        loss = self._loss(self._columns(batch, indices, Scores(free, cosine=cosine), step=0)).mean()
        loss.backward()
        assert free.grad is not None
        for (micro_batch, counts), last in with_last(self._passes_of(batch)):
            scores = self._scores(batch, micro_batch)
            factors = free.grad[[*micro_batch.items, *(len(batch) + i for i in micro_batch.items)]]
            pull = (scores.rewards * factors).sum()
            if cosine is not None and cosine.grad is not None and scores.cosine is not None:
                pull = pull + scores.cosine * cosine.grad * len(micro_batch.items) / len(batch)
            self.weights.backward(pull * counts, last=last)
        return float(loss.detach()), free.detach()

    @torch.no_grad()
    def _all_columns(
        self, batch: Sequence[Tokens], indices: Sequence[int], *, with_reference: bool = True
    ) -> list[dict[str, Any]]:
        """The columns of many pairs, without gradient, for each head."""
        scores = self._all_scores(batch, self._context(batch, None))
        return self._columns(batch, indices, scores, step=self.total, with_reference=with_reference)

    def measure(self) -> dict[str, float]:
        """Loss, accuracy and the card's other metrics of the held-out pairs, by the mean of the heads."""
        columns = self._all_columns(self.heldout, [-1] * len(self.heldout))
        with torch.no_grad():
            loss = float(self._loss(columns).mean())
        measured = self._card(columns)
        accuracy = measured.pop("accuracy")
        return {HELDOUT: loss, "accuracy/heldout": accuracy} | {f"heldout/{k}": v for k, v in measured.items()}

    def _card(self, columns: list[dict[str, Any]]) -> dict[str, float]:
        chosen, rejected = (
            torch.stack([each[f"{side}_reward"] for each in columns]).mean(0) for side in ("chosen", "rejected")
        )
        sides = [pair.pair.sides for pair in self.heldout]
        prompts = [(json.dumps(side.prompt), json.dumps(other.prompt)) for side, other in sides]
        lengths = columns[0]["chosen_length"], columns[0]["rejected_length"]
        return card.measures(chosen, rejected, *lengths, prompts)

    @property
    def commits_start(self) -> bool:
        """Also what the starting model has scored and written."""
        return self.compares or self.own_critiques or super().commits_start

    def extra_state(self, step: int) -> dict[str, Any]:
        """What the starting model has scored and written too."""
        state = super().extra_state(step) | {"reference": self.reference, "critiques": self.critiques}
        return state if self.dynamics is None else state | {"dynamics": self.dynamics.sums.clone()}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take up what `extra_state` gave."""
        super().load_extra_state(state)
        self.reference, self.critiques = state["reference"], state["critiques"]
        if self.dynamics is not None:
            self.dynamics.sums = state["dynamics"].clone()

    def save(self) -> None:
        """The checkpoint, and its card."""
        measured, indices = (self.heldout, [-1] * len(self.heldout)) if self.heldout else (
            self.pairs[:HELDOUT_EXAMPLES], list(range(len(self.pairs[:HELDOUT_EXAMPLES])))
        )  # fmt: skip
        columns = self._all_columns(measured, indices)
        scores = torch.stack([torch.cat([each["chosen_reward"], each["rejected_reward"]]) for each in columns])
        self.final = self._card(columns) if self.heldout else {}
        critique, users = self.settings.critique, self.model.users
        context = None
        if self.user_pairs is not None and users is not None:
            context = self.user_pairs.of_users(users.size).to(self.device)
        with self.weights.gathered(first=True) as network, torch.no_grad():
            if network is None:
                return
            about = {
                **self.about(), "score_mean": scores.mean(1).tolist(), "score_std": scores.std(1, correction=0).tolist(),
                **({"critique": critique.model_dump(exclude={"source"})} if critique else {}),
                **({"users": self.user_pairs.trained} if context is not None and self.user_pairs is not None else {}),
            }  # fmt: skip
            latents = None if context is None else context.latents(network.users)[0]
            self.write_model(
                network, about, only_first=self.two_heads, language_head=critique is not None, latents=latents
            )
        if self.dynamics is not None:
            self.dynamics.write(self.out / pair_data.FILE, [pair.pair.uid for pair in self.pairs])
        described = {"pairs": len(self.pairs), **self.changes, "heldout pairs": len(self.heldout)}
        self.write_card(described, "pairs")
