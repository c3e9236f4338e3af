"""The stage: shard by shard, sample, verify, write; finished shards stay over a restart."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipelines import verifiers
from pipelines.base.errors import DataError
from pipelines.base.files import write_atomic
from pipelines.contract.episode import play_out
from pipelines.contract.model_settings import Model
from pipelines.contract.played import Episode
from pipelines.contract.rollout import Completion, RolloutContext, RolloutRequest, Sampler
from pipelines.contract.streams import Streams
from pipelines.contract.streams import stream_ids as ids_of_streams
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data import chat, dataset, samples
from pipelines.data.records import UNSCORED, Problem, Stop
from pipelines.engine import models
from pipelines.engine.chat_model import ChatModel
from pipelines.engine.distribution import generator
from pipelines.engine.guided import with_base
from pipelines.engine.reward_model import RewardScorer
from pipelines.engine.sampler import TorchSampler
from pipelines.engine.server import ServerSampler
from pipelines.judges import questions
from pipelines.judges.local import LocalJudge
from pipelines.sample.new_prompts import requests
from pipelines.sample.reference import Reference
from pipelines.sample.settings import Sample
from pipelines.sample.shards import Shard, Shards, columns_of
from pipelines.sample.summary import (
    COMPLETION_TOKENS,
    DRAWN,
    JUDGE,
    LOG_RATIO,
    PROMPT_TOKENS,
    REWARD,
    SCORED,
    SEARCH_SCORE,
    USAGE,
    summary,
)
from pipelines.search.paths import Question
from pipelines.search.scores import load_score, reward_scorer
from pipelines.search.strategies import Searcher
from pipelines.stage.report import Report

OWN_COMPONENTS = (REWARD, LOG_RATIO, JUDGE, SEARCH_SCORE, DRAWN, SCORED, *USAGE)
"""Columns of a shard that become components of its rows."""
_to_json = json.JSONEncoder(sort_keys=True).encode  # `json.dumps` makes an encoder for each row


def run(
    settings: Sample,
    model: Model,
    *,
    start: str,
    data: Path,
    out: Path,
    report: Report,
    seed: int,
    reward_model: str | None = None,
    reference: str | None = None,
    guide: str | None = None,
    scorer: str | None = None,
) -> dict[str, float]:
    """Write `out/samples/shard-NNNNN.parquet`, `out/tokenizer` and `out/samples.json`.

    A row's random numbers depend on the seed, its problem and its place among the problem's completions alone, and a shard is
    decoded in the same batches whenever it is decoded: a restart, which keeps the shards that are there, ends in the same bytes.
    Servers get one seed a problem, and batch as they like: there the finished shards stay, and the others may differ.

    While a shard is verified and written, the next one is decoded.

    Args:
        start: folder or hub name of the model, or of the tokenizer that counts the answers of an endpoint.
        data: the curated folder.
        reward_model: folder of a model whose score of each completion becomes the component `reward_model`.
        reference: folder of a model; the component `log_ratio` is then log p(completion) - log p_reference(completion), in nats.
        guide: folder of the base of `settings.guidance`.
        scorer: folder or hub name of the reward model of `settings.search`.

    Raises:
        ModelError: the model cannot be loaded, or renders prompts differently from the one that the data was made for.
        DataError: the data has no such split, or it is empty.
    """
    tokenizer = models.load_tokenizer(start, model)
    models.check_template(dataset.about(data).get("template"), tokenizer, "sample")
    problems = dataset.read_split(data, settings.split)[: settings.problems]
    if settings.new_prompts is not None:
        problems = requests(problems, settings.new_prompts, seed)
    per_shard = max(1, settings.rows_per_shard // settings.k)
    parts = [problems[first : first + per_shard] for first in range(0, len(problems), per_shard)]
    shards = Shards(out, len(parts), report, "sampling")
    if shards.own:
        drawer: Any
        if settings.model is not None:
            from pipelines.sample.asked import EndpointDrawer

            drawer = EndpointDrawer(settings, tokenizer, seed, report, len(parts))
        else:
            drawer = Drawer(settings, model, start, tokenizer, seed, report, reward_model, reference, guide, scorer)
        with drawer, ThreadPoolExecutor(1) as writer:
            writing: tuple[int, Future[dict[str, float]]] | None = None
            for number, path in shards.own.items():
                shards.begin(number)
                began = time.monotonic()
                shard = drawer.shard(parts[number], number)
                seconds = time.monotonic() - began
                if writing is not None:
                    shards.written(writing[0], writing[1].result())
                writing = number, writer.submit(_write_shard, shard, parts[number], path, seconds)
            assert writing is not None
            shards.written(writing[0], writing[1].result())
    if not shards.finished():
        return {}
    tokenizer.save_pretrained(out / "tokenizer")
    dataset.copy_images(data, out)
    metrics = summary(out)
    about = {
        "split": settings.split,
        "k": settings.k,
        "max_tokens": settings.sampling.max_tokens * (settings.episodes.max_turns if settings.episodes else 1),
        "problems": len(problems),
        "rows": len(problems) * settings.k,
        "shards": len(parts),
        "template": models.template_identity(tokenizer),
        "metrics": metrics,
    }
    write_atomic(out / samples.ABOUT, json.dumps(about, indent=1, sort_keys=True))
    if settings.model is not None and settings.model.price is not None:  # which is not what the rows depend on
        counts = [metrics.get(name, 0.0) for name in (f"usage/{PROMPT_TOKENS}", f"usage/{COMPLETION_TOKENS}")]
        metrics = metrics | {"usage/cost": settings.model.price.cost(*counts)}
    report.metrics(len(parts), metrics)
    return metrics


def stream_ids(seed: int, uid: str, count: int) -> list[int]:
    """RNG stream ids of the first `count` completions of a problem: int64."""
    return ids_of_streams(count, "sample", seed, uid)


class Drawer:
    """The loaded model or the servers that hold it, and what they are asked with."""

    def __init__(
        self,
        settings: Sample,
        model: Model,
        start: str,
        tokenizer: Any,
        seed: int,
        report: Report,
        reward_model: str | None,
        reference: str | None,
        guide: str | None,
        scorer: str | None,
    ) -> None:
        policy: Any = models.load_model(start, model)
        if settings.guidance is not None:
            assert guide is not None
            policy = with_base(policy, tokenizer, guide, settings.guidance.weight, model, "sample.guidance.base")
        policy.to(models.device())  # type: ignore[arg-type]
        self.settings, self.tokenizer, self.seed = settings, tokenizer, seed
        self.system = models.system_prompt_of(start)
        stop = models.stop_ids(policy, tokenizer)
        self.policy = policy
        own = TorchSampler(policy, stop=stop, pad=tokenizer.pad_token_id, dtype=model.dtype, rows=settings.decode_rows)
        self.device = own.device
        self.server: ServerSampler | None = None
        self.sampler: Sampler = own
        self.rewards: RewardScorer | None = None
        if reward_model is not None:
            budget = settings.micro_batch_tokens
            self.rewards = reward_scorer(reward_model, model, tokenizer, budget=budget, field="sample.reward_model")
        self.searcher: Searcher | None = None
        if settings.search is not None:
            score = load_score(
                settings.search,
                model,
                own,
                tokenizer,
                path=scorer,
                budget=settings.micro_batch_tokens,
                field="sample.search",
            )
            self.searcher = Searcher(settings.search, own, tokenizer, score, entropy=True)
        self.reference: Reference | None = None
        if reference is not None:
            models.check_template(
                models.template_identity(models.load_tokenizer(reference, model)), tokenizer, "sample.reference"
            )
            self.reference = Reference(reference, model, settings.sampling, budget=settings.micro_batch_tokens)
        if settings.sampler is not None:
            self.sampler = self.server = ServerSampler(
                settings.sampler,
                stop=stop,
                context=own.context,
                dtype=model.dtype,
                work=report.folder,
                event=report.event,
            )

    def __enter__(self) -> Drawer:
        if self.server is not None:
            self.server.push(self.policy, self.tokenizer)
        return self

    def __exit__(self, *error: object) -> None:
        if self.server is not None:
            self.server.close()

    def shard(self, problems: list[Problem], number: int) -> Shard:
        """The rows of the problems of a shard; answers are not verified yet."""
        conversations = [chat.with_system_prompt(p.prompt, self.system) for p in problems]
        prompts = chat.render_prompts(self.tokenizer, conversations, [p.tools for p in problems])
        shared = columns_of(problems, prompts)
        if self.settings.episodes is not None:
            played = list(self.play(problems, prompts, number, self.settings.episodes.max_turns))
            return Shard(shared, {name: [row[name] for row in played] for name in played[0]})
        shard = Shard(shared, self.draw(problems, prompts))
        self.judge(shard)
        self.grade(shard, problems)
        return shard

    def play(
        self, problems: list[Problem], prompts: list[list[int]], shard: int, max_turns: int
    ) -> Iterator[dict[str, Any]]:
        """Rows of the problems' episodes, scored by their environments; their random numbers depend on the seed and the shard.

        Raises:
            DataError: a row of a file is a game in which the policy has several seats; `plan` sees those of sources by name.
        """
        context = RolloutContext(
            sampler=self.sampler, sampling=self.settings.sampling, prompts=len(problems),
            streams=Streams(self.seed, "episodes", shard), entropy=self.server is None, version=0,
            tokenizer=self.tokenizer,
        )  # fmt: skip
        requests = [
            RolloutRequest(p, ids, i, self.settings.k) for i, (p, ids) in enumerate(zip(problems, prompts, strict=True))
        ]
        for place, episode in enumerate(play_out(requests, context, TurnBudget(max_turns))):
            if episode.others:
                raise DataError(
                    "sample.episodes",
                    f"problem {episode.request.problem.uid} is a game with two seats of the policy, and a sample has one player",
                    "Put a single seat into its info.seats.",
                )
            start, row = len(episode.request.prompt), episode.trajectory(context, max_turns)
            yield {
                "sample": place % self.settings.k,
                "completion_ids": row.tokens[start:],
                "logp": row.logp_old[start:],
                "entropy": None if row.entropy_old is None else row.entropy_old[start:],
                "text": row.text,
                "stop": row.stop.name.lower(),
                "score": row.score,
                "correct": row.correct,
                "status": row.status,
                "components": _to_json(row.components),
                samples.EPISODE: _to_json(_story(episode)),
            }

    def draw(self, problems: list[Problem], prompts: list[list[int]]) -> dict[str, list[Any]]:
        """Columns of the problems' completions, not scored yet."""
        count = self.settings.k
        streams = [stream for p in problems for stream in stream_ids(self.seed, p.uid, count)]
        prefixes = [ids for ids in prompts for _ in range(count)]
        costs: dict[str, list[Any]] = {}
        if self.searcher is not None:
            completions, costs = self.search(
                self.searcher, [p for p in problems for _ in range(count)], prefixes, streams
            )
        else:
            completions = self.sampler.extend(
                prefixes,
                self.settings.sampling,
                generator(self.device, self.seed),
                entropy=self.server is None,
                streams=[(stream, 0) for stream in streams],
            )
        names = {stop: stop.name.lower() for stop in Stop}
        tokens = [completion.tokens for completion in completions]
        return {
            "sample": list(range(count)) * len(problems),
            "completion_ids": tokens,
            "logp": [completion.logp for completion in completions],
            "entropy": [completion.entropy for completion in completions],
            "text": chat.completion_texts(self.tokenizer, tokens),
            "stop": [names[completion.stop] for completion in completions],
            **costs,
        }

    def search(
        self, searcher: Searcher, problems: list[Problem], prefixes: list[list[int]], streams: list[int]
    ) -> tuple[list[Completion], dict[str, list[Any]]]:
        """A searched completion of each prefix, and columns of what each is worth and cost."""

        def text(tokens: list[int]) -> str:
            return chat.completion_text(self.tokenizer, tokens)

        questions = [
            Question(ids, stream, text, problem)
            for ids, stream, problem in zip(prefixes, streams, problems, strict=True)
        ]
        answers = searcher.answers(questions, self.settings.sampling)
        columns = {SEARCH_SCORE: "score", DRAWN: "drawn", SCORED: "scored"}
        return [each.completion for each in answers], {
            name: [getattr(each, field) for each in answers] for name, field in columns.items()
        }

    def judge(self, shard: Shard) -> None:
        """Add the reward model's scores as `reward_model`, the mean of its heads, and the `log_ratio` to the reference; None where a
        completion has none."""
        if self.reference is None and self.rewards is None:
            return
        rows, count = shard.rows, self.settings.k
        prompts = [ids for ids in shard.problems["prompt_ids"] for _ in range(count)]
        completions = rows["completion_ids"]
        if self.reference is not None:
            drawn = [row for row, ids in enumerate(completions) if ids]
            logps = self.reference.log_probs([prompts[row] for row in drawn], [completions[row] for row in drawn])
            rows[LOG_RATIO] = [None] * len(completions)
            for row, logp in zip(drawn, logps, strict=True):
                rows[LOG_RATIO][row] = sum(rows["logp"][row]) - logp
        if self.rewards is None:
            return
        sequences = [prompt + ids for prompt, ids in zip(prompts, completions, strict=True)]
        scores = self.rewards.score(sequences, [len(prompt) for prompt in prompts]).mean(1).tolist()
        rows[REWARD] = [score if score == score else None for score in scores]

    def grade(self, shard: Shard, problems: list[Problem]) -> None:
        """Add the sampled model's own grades as `judge`, from 0 to 1, where the recipe asks for them; None where none can be read."""
        asked = self.settings.self_judge
        if asked is None:
            return
        shown = asked.model_dump(include={"low", "high", "instruction", "reference", "template"})
        around = ChatModel.around(self.sampler, self.tokenizer)
        model = LocalJudge(around, temperature=asked.temperature, max_tokens=asked.max_tokens)
        of_row = (problem for problem in problems for _ in range(self.settings.k))
        asking = [questions.grade(p, text, **shown) for p, text in zip(of_row, shard.rows["text"], strict=True)]
        grades: list[list[float]] = [[] for _ in asking]
        for sample in range(asked.samples):
            for read, reply in zip(grades, model.ask(asking, sample), strict=True):
                if (grade := questions.read_grade(reply.text, asked.low, asked.high)) is not None:
                    read.append(grade)
        shard.rows[JUDGE] = [sum(read) / len(read) if read else None for read in grades]


def _story(episode: Episode) -> dict[str, Any]:
    """What `samples.EPISODE` holds of an episode."""
    replies = [*episode.replies, {"role": "user", "content": ""}]
    columns = (episode.worlds, episode.texts, replies, episode.rewards, episode.cuts, _spans(episode))
    turns = [
        {
            "state": state,
            "message": text,
            "reply": reply["content"],
            "role": reply["role"],
            "reward": reward,
            "cut": cut,
            "span": span,
        }
        for state, text, reply, reward, cut, span in zip(
            *columns, strict=False
        )  # an episode without a turn has a reply too many
    ]
    last = episode.observations[len(turns) - 1 :]  # none where the environment failed
    return {
        "turns": turns,
        "end": None if episode.stop == Stop.ENVIRONMENT else episode.world.state_key(),
        "last": last[0] if turns and last else "",
    }


def _spans(episode: Episode) -> list[list[int]]:
    """Where the policy's tokens of each turn begin and end in the completion."""
    start, spans = len(episode.request.prompt), [[-1, -1] for _ in episode.states]
    for place, turn in enumerate(episode.turn):
        if turn >= 0:
            begin, _ = spans[turn]
            spans[turn] = [begin if begin >= 0 else place - start, place - start + 1]
    return spans


def _write_shard(shard: Shard, problems: list[Problem], path: Path, seconds: float) -> dict[str, float]:
    """Verify and write a shard; its metrics.

    Args:
        seconds: what drawing it took.
    """
    began = time.monotonic()
    if samples.EPISODE in shard.rows:
        _write_drawn(shard.rows, path)
    else:
        _score(shard.rows, problems)
    samples.write_columns(path, shard.rows, shard.problems)
    tokens = sum(map(len, shard.rows["completion_ids"]))
    scored = [correct for correct in shard.rows["correct"] if correct is not None]
    return {
        "shard/correct": sum(scored) / len(scored) if scored else float("nan"),
        "shard/length_mean": tokens / len(shard),
        "tokens_per_s": tokens / seconds if seconds > 0 else float("nan"),
        "verify_s": time.monotonic() - began,
    }


def _write_drawn(rows: dict[str, list[Any]], path: Path) -> None:
    """Write the images that the episodes of a shard drew beside it."""
    if (images := sys.modules.get("pipelines.data.images")) is not None:
        told = [json.loads(episode) for episode in rows[samples.EPISODE]]
        drawn = images.IMAGES.drawn([rows["completion_ids"], told])
        images.write(path.parent.parent, drawn.items(), f"{path.stem}.arrow")


def _score(rows: dict[str, list[Any]], problems: list[Problem]) -> None:
    """Add score, correct, status and components by each problem's verifier; what failed to be sampled stays unscored."""
    count = len(rows["text"])
    of_row = [problem for problem in problems for _ in range(count // len(problems))]
    sampled = [row for row, stop in enumerate(rows["stop"]) if stop != Stop.ERROR.name.lower()]
    if samples.WRITTEN_FROM in problems[0].info:  # a new prompt has no gold answer to compare it with
        sampled = []
    asked = [(p.verifier, rows["text"][row], p.answer, p.info) for row in sampled for p in [of_row[row]]]
    rows["score"], rows["correct"] = [None] * count, [None] * count
    rows["status"], rows["components"] = [UNSCORED] * count, ["{}"] * count
    own = [(name, rows[name]) for name in OWN_COMPONENTS if name in rows]
    for row in range(count) if PROMPT_TOKENS in rows else ():  # what was paid for and is not scored
        rows["components"][row] = _to_json({n: rows[n][row] for n in USAGE if rows[n][row] is not None})
    for row, verdict in zip(sampled, verifiers.verify_many(asked), strict=True):
        rows["score"][row], rows["correct"][row], rows["status"][row] = verdict.score, verdict.correct, verdict.status
        if own or verdict.components:
            values = {name: column[row] for name, column in own if name == JUDGE or column[row] is not None}
            rows["components"][row] = _to_json({"verifier": verdict.score or 0.0, **verdict.components, **values})
        else:
            rows["components"][row] = _score_to_json(verdict.score or 0.0)


@lru_cache(typed=True)
def _score_to_json(score: float) -> str:
    """The components of a row that has no other."""
    return _to_json({"verifier": score})
