"""Rollouts without a model: the sampler reads its answers from a script, everything else is real."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pipelines.contract.model_settings import Model
from pipelines.contract.rollout import Completion, RolloutContext, RolloutRequest
from pipelines.contract.sampling import Sampling
from pipelines.contract.streams import Streams
from pipelines.data.records import Problem, Stop, Trajectory

Script = Callable[[str, int], str]
"""(text of the prefix, number of the completion in its call, from 0) → what the policy says; "" says nothing."""


@cache
def tokenizer() -> Any:
    """A real tokenizer with a token for every printable character."""
    from pipelines.engine.models import train_tokenizer

    return train_tokenizer("char", 128, [string.printable])


def ids(text: str) -> list[int]:
    """Token ids of a text, nothing added."""
    return tokenizer()(text, add_special_tokens=False)["input_ids"]


def show(tokens: Sequence[int]) -> str:
    """The text of token ids, special tokens left out."""
    return tokenizer().decode(list(tokens), skip_special_tokens=True)


@dataclass
class Call:
    """One call of the sampler."""

    prefixes: list[str]
    max_tokens: int
    entropy: bool


@dataclass
class Sampler:
    """Completions with an end token, cut at the limit; log-prob -(i + 1) / 10 and entropy (i + 1) / 4 of token i."""

    script: Script
    calls: list[Call] = field(default_factory=list)

    def extend(self, prefixes, sampling, generator, *, entropy=False, streams=None):
        assert streams is None or len(streams) == len({*streams}) == len(prefixes)
        self.calls.append(Call([show(p) for p in prefixes], sampling.max_tokens, entropy))
        return [self._completion(self.script(show(p), i), sampling, entropy) for i, p in enumerate(prefixes)]

    def _completion(self, text: str, sampling: Sampling, entropy: bool) -> Completion:
        tokens = [*ids(text), tokenizer().eos_token_id] if text else []
        stop = Stop.LENGTH if len(tokens) > sampling.max_tokens else Stop.END
        tokens = tokens[: sampling.max_tokens]
        logp = [-(i + 1) / 10 for i in range(len(tokens))]
        return Completion(tokens, logp, stop, [(i + 1) / 4 for i in range(len(tokens))] if entropy else None)


def context(script: Script, *, max_tokens: int = 8, entropy: bool = False, seed: int = 0) -> RolloutContext:
    """A context whose sampler follows the script."""
    sampling = Sampling(max_tokens=max_tokens)
    return RolloutContext(Sampler(script), sampling, 2, Streams(seed), entropy, version=3, tokenizer=tokenizer())


def request(name: str, rollouts: int, *, group: int = 0, hint: str = "", answer: str = "ok", **info) -> RolloutRequest:
    """A request whose prompt is the text `name`; its uid begins with the group."""
    problem = Problem(
        uid=f"{group:032x}", prompt=[{"role": "user", "content": name}], answer=answer, verifier="exact", source="toy",
        licence="MIT", info=info,
    )  # fmt: skip
    return RolloutRequest(problem, ids(name), group, rollouts, ids(hint))


def parts(row: Trajectory) -> list[tuple[int, str]]:
    """The row as (role, text) of its stretches of one role; the text of special tokens is empty."""
    out: list[tuple[int, list[int]]] = []
    for token, role in zip(row.tokens, row.role, strict=True):
        if not out or out[-1][0] != role:
            out.append((role, []))
        out[-1][1].append(token)
    return [(role, show(tokens)) for role, tokens in out]


class JudgeScorer:
    """What a reward connects to: the policy's tokenizer, and a judge that answers `{"messages": conversation}` by a rule."""

    def __init__(self, rule: Callable[[dict[str, Any]], str]) -> None:
        self.rule, self.asked = rule, []

    def tokenizer(self, model: str = "policy") -> Any:
        return tokenizer()

    def language_model(self, path: str) -> JudgeScorer:
        return self

    def reply(
        self, conversations: Any, *, temperature: float, max_tokens: int, sample: int = 0
    ) -> list[tuple[str, int]]:
        self.asked += conversations
        return [(self.rule({"messages": conversation}), 1) for conversation in conversations]


def answered(uid: str, text: str, stop: Stop = Stop.END, **more: Any) -> Trajectory:
    """A prompt of two tokens, the text letter by letter, and an end token."""
    tokens = [*ids("??"), *ids(text), tokenizer().eos_token_id]
    count = len(tokens)
    return Trajectory(
        uid=uid, group=0, tokens=tokens, role=[0, 0] + [3] * (count - 2), logp_old=[0.0] * count, max_tokens=99, stop=stop, version=0,
        text=text, **more,
    )  # fmt: skip


def conversation(uid: str, *messages: str, outcome: float = 1.0, earlier: float = 0.0, **more: Any) -> Trajectory:
    """The policy's messages, with what the environment says between them; each earlier turn is paid `earlier`."""
    tokens, role, turn = [1], [0], [-1]
    for place, text in enumerate(messages):
        said = ids(text)
        tokens += said
        role += [4 if place % 2 else 3] * len(said)
        turn += [-1 if place % 2 else place // 2] * len(said)
    turns = (len(messages) + 1) // 2
    return Trajectory(
        uid=uid, group=0, tokens=tokens, role=role, logp_old=[0.0] * len(tokens), turn=turn, max_tokens=9, stop=Stop.ENVIRONMENT,
        version=0, turn_reward=[*[earlier] * (turns - 1), outcome], score=outcome, correct=outcome == 1, status="correct", text="x",
        **more,
    )  # fmt: skip


class RewardModels:
    """What a reward connects to: a tokenizer, and reward models of folders."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def tokenizer(self, model: str = "policy") -> Any:
        return self.own

    def reward_model(self, path: str, field: str) -> Any:
        from pipelines.engine.reward_model import RewardScorer

        return RewardScorer(path, Model(path=path), budget=256, field=field)
