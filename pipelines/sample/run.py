"""The stage: shard by shard, sample, verify, write; finished shards stay over a restart."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pipelines import verifiers
from pipelines.contract.episode import Episode, play_out
from pipelines.contract.rollout import RolloutContext, RolloutRequest, Sampler
from pipelines.contract.turn_budget import TurnBudget
from pipelines.data import chat, dataset, samples
from pipelines.data.records import UNSCORED, Problem, Stop
from pipelines.engine import distribution, models
from pipelines.engine.chat_model import ChatModel
from pipelines.engine.distribution import generator
from pipelines.engine.guided import with_base
from pipelines.engine.reward_model import RewardScorer
from pipelines.engine.sampler import TorchSampler
from pipelines.engine.server import ServerSampler
from pipelines.errors import ModelError
from pipelines.judges import questions
from pipelines.judges.local import LocalJudge
from pipelines.recipe.settings import Model
from pipelines.sample.reference import Reference
from pipelines.sample.settings import Sample
from pipelines.stage.files import write_atomic
from pipelines.stage.report import Report

REWARD = "reward_model"
"""The component that a reward model gives."""
LOG_RATIO = "log_ratio"
"""The component that a reference gives."""
JUDGE = "judge"
"""The component that the model's own grade gives."""
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
) -> dict[str, float]:
    """Write `out/samples/shard-NNNNN.parquet`, `out/tokenizer` and `out/samples.json`.

    A row's random numbers depend on the seed, its problem and its place among the problem's completions alone, and a shard is
    decoded in the same batches whenever it is decoded: a restart, which keeps the shards that are there, ends in the same bytes.
    Servers get one seed a problem, and batch as they like: there the finished shards stay, and the others may differ.

    While a shard is verified and written, the next one is decoded.

    Args:
        start: folder or hub name of the model.
        data: the curated folder.
        reward_model: folder of a model whose score of each completion becomes the component `reward_model`.
        reference: folder of a model; the component `log_ratio` is then log p(completion) - log p_reference(completion), in nats.
        guide: folder of the base of `settings.guidance`.

    Raises:
        ModelError: the model cannot be loaded, or renders prompts differently from the one that the data was made for.
        DataError: the data has no such split, or it is empty.
    """
    tokenizer = models.load_tokenizer(start, model)
    models.check_template(dataset.about(data).get("template"), tokenizer, "sample")
    problems = dataset.read_split(data, settings.split)[: settings.problems]
    folder = out / samples.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    per_shard = max(1, settings.rows_per_shard // settings.k)
    parts = [problems[first : first + per_shard] for first in range(0, len(problems), per_shard)]
    paths = [folder / samples.shard_name(number) for number in range(len(parts))]
    for path in set(folder.iterdir()) - set(paths):  # what a kill left half written
        path.unlink()
    missing = [number for number, path in enumerate(paths) if not path.exists()]
    if len(missing) < len(parts):
        report.event("resumed", shards=len(parts) - len(missing))
    if missing:
        with (
            _Drawer(settings, model, start, tokenizer, seed, report, reward_model, reference, guide) as drawer,
            ThreadPoolExecutor(1) as writer,
        ):
            writing: tuple[int, Future[dict[str, float]]] | None = None
            for number in missing:
                report.progress(number, len(parts), "sampling", unit="shard", force=True)
                began = time.monotonic()
                rows = drawer.rows(parts[number], number)
                seconds = time.monotonic() - began
                if writing is not None:
                    report.metrics(writing[0], writing[1].result())
                writing = number, writer.submit(_write_shard, rows, parts[number], paths[number], seconds)
            assert writing is not None
            report.metrics(writing[0], writing[1].result())
    report.progress(len(parts), len(parts), "sampling", unit="shard", force=True)
    tokenizer.save_pretrained(out / "tokenizer")
    metrics = summary(out)
    about = {
        "split": settings.split,
        "k": settings.k,
        "problems": len(problems),
        "rows": len(problems) * settings.k,
        "shards": len(parts),
        "template": models.template_identity(tokenizer),
        "metrics": metrics,
    }
    write_atomic(out / samples.ABOUT, json.dumps(about, indent=1, sort_keys=True))
    report.metrics(len(parts), metrics)
    return metrics


def stream_id(seed: int, uid: str, index: int) -> int:
    """RNG stream id of completion `index` of a problem: int64."""
    return distribution.stream_id("sample", seed, uid, index)


class _Drawer:
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
            own_settings = model.model_copy(update={"chat_template": None})
            budget = settings.micro_batch_tokens
            self.rewards = RewardScorer(reward_model, own_settings, budget=budget, field="sample.reward_model")
            if self.rewards.critiques:
                raise ModelError(
                    "sample.reward_model: it writes a critique before it scores, which a sample stage does not ask for. Name a reward "
                    "model without `critique`."
                )
            if not self.rewards.reads(tokenizer):
                raise ModelError(
                    "sample.reward_model: its tokenizer or chat template is another than the sampled model's. Train it from a model of "
                    "the same family."
                )
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

    def __enter__(self) -> _Drawer:
        if self.server is not None:
            self.server.push(self.policy, self.tokenizer)
        return self

    def __exit__(self, *error: object) -> None:
        if self.server is not None:
            self.server.close()

    def rows(self, problems: list[Problem], shard: int) -> list[dict[str, Any]]:
        """Rows of the problems of a shard, those of a problem one after the other; answers are not verified yet."""
        conversations = [chat.with_system_prompt(p.prompt, self.system) for p in problems]
        prompts = chat.render_prompts(self.tokenizer, conversations, [p.tools for p in problems])
        if self.settings.episodes is not None:
            return list(self.play(problems, prompts, shard, self.settings.episodes.max_turns))
        rows = list(self.draw(problems, prompts))
        self.judge(rows)
        self.grade(rows, problems)
        return rows

    def play(
        self, problems: list[Problem], prompts: list[list[int]], shard: int, max_turns: int
    ) -> Iterator[dict[str, Any]]:
        """Rows of the problems' episodes, scored by their environments; their random numbers depend on the seed and the shard."""
        context = RolloutContext(
            sampler=self.sampler, sampling=self.settings.sampling, prompts=len(problems),
            generator=generator(self.device, self.seed, "episodes", shard), entropy=self.server is None, version=0,
            tokenizer=self.tokenizer,
        )  # fmt: skip
        requests = [
            RolloutRequest(p, ids, i, self.settings.k) for i, (p, ids) in enumerate(zip(problems, prompts, strict=True))
        ]
        for place, episode in enumerate(play_out(requests, context, TurnBudget(max_turns))):
            start, row = len(episode.request.prompt), episode.trajectory(context, max_turns)
            yield {
                **dataset.to_row(episode.request.problem),
                "sample": place % self.settings.k,
                "prompt_ids": episode.request.prompt,
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

    def draw(self, problems: list[Problem], prompts: list[list[int]]) -> Iterator[dict[str, Any]]:
        """Rows of the problems' completions, those of a problem one after the other, not scored yet."""
        count = self.settings.k
        completions = self.sampler.extend(
            [ids for ids in prompts for _ in range(count)],
            self.settings.sampling,
            generator(self.device, self.seed),
            entropy=self.server is None,
            streams=[(stream_id(self.seed, p.uid, index), 0) for p in problems for index in range(count)],
        )
        records = [dataset.to_row(problem) for problem in problems]
        for place, completion in enumerate(completions):
            yield {
                **records[place // count],
                "sample": place % count,
                "prompt_ids": prompts[place // count],
                "completion_ids": completion.tokens,
                "logp": completion.logp,
                "entropy": completion.entropy,
                "text": chat.completion_text(self.tokenizer, completion.tokens),
                "stop": completion.stop.name.lower(),
                "score": None,
                "correct": None,
                "status": UNSCORED,
                "components": "{}",
            }

    def judge(self, rows: list[dict[str, Any]]) -> None:
        """Add the reward model's scores as `reward_model`, the mean of its heads, and the `log_ratio` to the reference; None where a
        completion has none."""
        if self.reference is not None:
            drawn = [row for row in rows if row["completion_ids"]]
            logps = self.reference.log_probs([r["prompt_ids"] for r in drawn], [r["completion_ids"] for r in drawn])
            for row, logp in zip(drawn, logps, strict=True):
                row[LOG_RATIO] = sum(row["logp"]) - logp
        if self.rewards is None:
            return
        sequences = [row["prompt_ids"] + row["completion_ids"] for row in rows]
        scores = self.rewards.score(sequences, [len(row["prompt_ids"]) for row in rows]).mean(1).tolist()
        for row, score in zip(rows, scores, strict=True):
            row["reward_model"] = score if score == score else None

    def grade(self, rows: list[dict[str, Any]], problems: list[Problem]) -> None:
        """Add the sampled model's own grades as `judge`, from 0 to 1, where the recipe asks for them; None where one cannot be read."""
        asked = self.settings.self_judge
        if asked is None:
            return
        by_uid = {problem.uid: problem for problem in problems}
        shown = asked.model_dump(include={"low", "high", "instruction", "reference", "template"})
        model = LocalJudge(ChatModel.around(self.sampler, self.tokenizer), temperature=0.0, max_tokens=asked.max_tokens)
        replies = model.ask([questions.grade(by_uid[row["uid"]], row["text"], **shown) for row in rows])
        for row, reply in zip(rows, replies, strict=True):
            row[JUDGE] = questions.read_grade(reply.text, asked.low, asked.high)


def _story(episode: Episode) -> dict[str, Any]:
    """What `samples.EPISODE` holds of an episode."""
    replies = [*episode.replies, {"role": "user", "content": ""}]
    columns = (episode.worlds, episode.texts, replies, episode.rewards, episode.cuts)
    turns = [
        {
            "state": state,
            "message": text,
            "reply": reply["content"],
            "role": reply["role"],
            "reward": reward,
            "cut": cut,
        }
        for state, text, reply, reward, cut in zip(
            *columns, strict=False
        )  # an episode without a turn has a reply too many
    ]
    return {"turns": turns, "end": None if episode.stop == Stop.ENVIRONMENT else episode.world.state_key()}


def _write_shard(rows: list[dict[str, Any]], problems: list[Problem], path: Path, seconds: float) -> dict[str, float]:
    """Verify and write a shard; its metrics.

    Args:
        seconds: what drawing it took.
    """
    began = time.monotonic()
    if samples.EPISODE not in rows[0]:
        _score(rows, problems)
    samples.write(path, rows)
    tokens = sum(len(row["completion_ids"]) for row in rows)
    scored = [row["correct"] for row in rows if row["correct"] is not None]
    return {
        "shard/correct": sum(scored) / len(scored) if scored else float("nan"),
        "shard/length_mean": tokens / len(rows),
        "tokens_per_s": tokens / seconds if seconds > 0 else float("nan"),
        "verify_s": time.monotonic() - began,
    }


def _score(rows: list[dict[str, Any]], problems: list[Problem]) -> None:
    """Fill score, correct, status and components by each record's verifier; what failed to be sampled stays unscored."""
    by_uid = {p.uid: p for p in problems}
    sampled = [row for row in rows if row["stop"] != Stop.ERROR.name.lower()]
    asked = [(p.verifier, row["text"], p.answer, p.info) for row in sampled for p in [by_uid[row["uid"]]]]
    for row, verdict in zip(sampled, verifiers.verify_many(asked), strict=True):
        row["score"], row["correct"], row["status"] = verdict.score, verdict.correct, verdict.status
        own = {name: row[name] for name in (REWARD, LOG_RATIO) if row.get(name) is not None}
        own |= {JUDGE: row[JUDGE]} if JUDGE in row else {}
        row["components"] = _to_json({"verifier": verdict.score or 0.0, **verdict.components, **own})


def summary(out: Path) -> dict[str, float]:
    """Metrics of a finished folder, a shard in memory at a time.

    Returns:
        rows; `pass_at_1`, `pass_at_k`: mean share of correct completions, and share of problems with at least one, over the
        problems that have a scored completion; `score/mean`; `scored`: share of rows; `length/mean` in tokens, `length/max`;
        `cut`: share of rows that ended at the token limit; `entropy/mean` in nats a token, where it was measured; with a
        reward model `reward_model/mean`, and `best_of_k`: share of problems whose completion with the highest such score is correct;
        with a reference `kl/mean`, the mean log-ratio of whole completions, in nats; with `self_judge` `judge/mean`, and `judge/unread`:
        share of the grades that could not be read.
    """
    total = dict.fromkeys(
        ("rows", "scored", "score", "tokens", "entropy", "entropy_tokens", "cut", "problems", "share", "solved", "reward",
         "rewarded", "ratio", "compared", "best", "selected", "judged", "grade", "graded"), 0.0
    )  # fmt: skip
    longest = 0
    columns = ["uid", "completion_ids", "entropy", "score", "correct", "stop", "components"]
    for group in samples.by_problem(out, columns):
        scored = [row for row in group if row["correct"] is not None]
        lengths = [len(row["completion_ids"]) for row in group]
        longest = max(longest, *lengths)
        total["rows"] += len(group)
        total["scored"] += len(scored)
        total["score"] += sum(row["score"] or 0.0 for row in scored)
        total["tokens"] += sum(lengths)
        measured = [row for row in group if row["entropy"] is not None]
        total["entropy"] += sum(sum(row["entropy"]) for row in measured)
        total["entropy_tokens"] += sum(len(row["entropy"]) for row in measured)
        total["cut"] += sum(row["stop"] == "length" for row in group)
        rewarded = [(json.loads(c)[REWARD], row) for row in group if f'"{REWARD}"' in (c := row["components"])]
        ratios = [json.loads(c)[LOG_RATIO] for row in group if f'"{LOG_RATIO}"' in (c := row["components"])]
        grades = [json.loads(c)[JUDGE] for row in group if f'"{JUDGE}"' in (c := row["components"])]
        total["judged"] += len(grades)
        total["graded"] += sum(grade is not None for grade in grades)
        total["grade"] += sum(grade or 0.0 for grade in grades)
        total["ratio"] += sum(ratios)
        total["compared"] += len(ratios)
        total["reward"] += sum(value for value, _ in rewarded)
        total["rewarded"] += len(rewarded)
        best = max(rewarded, key=lambda pair: pair[0], default=None)
        if best is not None and best[1]["correct"] is not None:
            total["best"] += best[1]["correct"]
            total["selected"] += 1
        if scored:
            correct = sum(row["correct"] for row in scored)
            total["problems"] += 1
            total["share"] += correct / len(scored)
            total["solved"] += correct > 0
    rows, problems = total["rows"], total["problems"]
    metrics = {
        "rows": rows,
        "scored": total["scored"] / rows,
        "length/mean": total["tokens"] / rows,
        "length/max": float(longest),
        "cut": total["cut"] / rows,
    }
    if total["entropy_tokens"]:
        metrics["entropy/mean"] = total["entropy"] / total["entropy_tokens"]
    if problems:
        metrics |= {"pass_at_1": total["share"] / problems, "pass_at_k": total["solved"] / problems}
        metrics["score/mean"] = total["score"] / total["scored"]
    if total["judged"]:
        metrics["judge/unread"] = 1 - total["graded"] / total["judged"]
    for name, value, count in (
        ("reward_model/mean", "reward", "rewarded"), ("kl/mean", "ratio", "compared"), ("best_of_k", "best", "selected"),
        ("judge/mean", "grade", "graded"),
    ):  # fmt: skip
        if total[count]:
            metrics[name] = total[value] / total[count]
    return metrics
