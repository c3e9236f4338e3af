"""Which of two stored completions or episodes came closer to the goal, by a judge or by their scores (RL-VLM-F, 2402.03681)."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.base import intervals
from pipelines.base.files import write_atomic
from pipelines.contract.model_settings import Model
from pipelines.data import chat, dataset, samples
from pipelines.data.records import Message, Stop
from pipelines.judges.closer import CloserJudge, Pair
from pipelines.judges.endpoint import Reply
from pipelines.judges.local import LocalJudge
from pipelines.sample.settings import Comparisons, Sample
from pipelines.sample.shards import Shards
from pipelines.sample.summary import summary
from pipelines.stage.report import Report

POSITION_BIAS = "position_bias"
"""Code of the event that says that a judge prefers a place."""
READ = (*dataset.SCHEMA, "sample", "text", "score", "stop")
Row = dict[str, Any]
"""Of the samples."""


class Shown(NamedTuple):
    """What a judge is shown of a row."""

    place: int
    """Of the row."""
    turn: int
    """After which it was shown; 0 where it is all of the row."""
    text: str


def compare(
    settings: Sample, model: Model, *, start: str, data: Path, out: Path, report: Report, seed: int
) -> dict[str, float]:
    """Write `out/samples/shard-NNNNN.parquet`: the stored rows with the column `samples.COMPARISONS`; the tokenizer and
    `samples.json` are those of `data`.

    Which pairs are compared, and which of a pair is shown first, depends on the seed and the problem alone; a restart keeps the shards that
    are there.

    Args:
        start: folder or hub name of the judge, with `by: model`.
        data: the folder of the sample stage that drew the completions.

    Returns:
        the metrics of `summary` (of the stored completions); `comparisons/per_problem`; `comparisons/unsure`, share of them;
        `comparisons/agreement`, share of those that the judge decides and whose scores differ in which the higher score is the better
        (not of `states`, which have no score of their own); `comparisons/first_share`, mean over problems of the share of those that
        the judge decides in which what it is shown first is the better: the order is drawn at random, so one without a bias has 0.5.

    Raises:
        ModelError: the judge cannot be loaded.
        DataError: there are no samples.
        UserError: the endpoint cannot be asked.
    """
    asked, stored = settings.comparisons, samples.about(data)
    assert asked is not None
    problems = min(stored["problems"], settings.problems or stored["problems"])
    per_shard = max(1, settings.rows_per_shard // stored["k"])
    count = -(-problems // per_shard)
    shards = Shards(out, count, report, "comparing")
    columns = [*READ, *([samples.EPISODE] if samples.has_column(data, samples.EPISODE) else [])]
    judge = _judge(asked, model, start) if shards.own else None
    for number, table in enumerate(samples.parts(data, per_shard * stored["k"], problems * stored["k"])):
        if number in shards.own:
            shards.begin(number)
            rows = table.select(columns).to_pylist()
            compared = _compared(rows, asked, judge, seed)
            samples.write_table(shards.own[number], samples.with_column(table, samples.COMPARISONS, compared))
            shards.written(number, measures(zip(rows, compared, strict=True)))
    if not shards.finished():
        return {}
    shutil.copytree(data / "tokenizer", out / "tokenizer", dirs_exist_ok=True)
    dataset.copy_images(data, out)
    metrics = summary(out) | measures(_stored(out, "uid", "sample", "score"))
    if asked.by != "score":
        metrics |= _position_bias(first_shares(_stored(out, "uid")), asked, report)
    about = {**stored, "problems": problems, "rows": problems * stored["k"], "shards": count, "metrics": metrics}
    write_atomic(out / samples.ABOUT, json.dumps(about, indent=1, sort_keys=True))
    report.metrics(count, metrics)
    return metrics


def transcript(episode: dict[str, Any]) -> str:
    """An episode as a judge sees it, without reasoning and rewards.

    Args:
        episode: as `samples.EPISODE` holds it.

    >>> turn = {"message": "<think>hm</think>right", "reply": "a wall", "role": "user"}
    >>> print(transcript({"turns": [turn, turn | {"reply": ""}], "end": None}))
    [agent] right
    [user] a wall
    [agent] right
    (The episode ended here.)
    """
    lines = []
    for turn in episode["turns"]:
        lines.append(f"[agent] {chat.after_thinking(turn['message']).strip()}")
        if turn["reply"]:
            lines.append(f"[{turn['role']}] {turn['reply']}")
    lines.append("(The episode ended here.)" if episode["end"] is None else "(The episode was cut off here.)")
    return "\n".join(lines)


def measures(rows: Iterable[tuple[Row, Sequence[dict[str, Any]]]]) -> dict[str, float]:
    """Metrics of rows and the comparisons in which they came first; {} where there are none.

    >>> rows = [({"uid": "a", "sample": i, "score": s}, []) for i, s in enumerate((1.0, 0.0, 0.0))]
    >>> rows[0][1].extend([{"other": 1, "better": True}, {"other": 2, "better": None}])
    >>> rows[1][1].append({"other": 2, "better": True})
    >>> measures(rows)
    {'comparisons/per_problem': 3.0, 'comparisons/unsure': 0.3333333333333333, 'comparisons/agreement': 1.0}
    """
    total = unsure = differing = agreeing = problems = 0
    for _, group in groupby(rows, key=lambda pair: pair[0]["uid"]):
        listed = list(group)
        problems += 1
        scores = {row["sample"]: row["score"] for row, _ in listed}
        for row, compared in listed:
            for each in compared:
                total += 1
                unsure += each["better"] is None
                scored = (row["score"], scores.get(each["other"]))
                if each["better"] is None or "turns" in each or None in scored or scored[0] == scored[1]:
                    continue
                differing += 1
                agreeing += each["better"] == (scored[0] > scored[1])
    if not total:
        return {}
    metrics = {"comparisons/per_problem": total / problems, "comparisons/unsure": unsure / total}
    return metrics | ({"comparisons/agreement": agreeing / differing} if differing else {})


def _stored(out: Path, *columns: str) -> Iterator[tuple[Row, list[dict[str, Any]]]]:
    """Columns of the rows of the stage, and the comparisons in which each came first; a batch in memory at a time."""
    for row in samples.read(out, [*columns, samples.COMPARISONS]):
        yield row, json.loads(row[samples.COMPARISONS] or "[]")


def first_shares(rows: Iterable[tuple[Row, Sequence[dict[str, Any]]]]) -> list[float]:
    """Of each problem with decided comparisons the share of them in which what was shown first is the better.

    The order of showing is drawn at random, whatever is compared, so the mean of a judge without position bias is 0.5: bias estimated by
    randomising positions (Joachims et al. 2017, 1608.04468, section 5.1, on clicks).

    >>> rows = [({"uid": "a"}, [{"better": True}, {"better": None}]), ({"uid": "a"}, [{"better": False}]), ({"uid": "b"}, [])]
    >>> first_shares(rows)
    [0.5]
    """
    shares = []
    for _, group in groupby(rows, key=lambda pair: pair[0]["uid"]):
        verdicts = [each["better"] for _, compared in group for each in compared if each["better"] is not None]
        if verdicts:
            shares.append(sum(verdicts) / len(verdicts))
    return shares


def _position_bias(shares: Sequence[float], asked: Comparisons, report: Report) -> dict[str, float]:
    """The metric of the mean share, and an event where its 95 % interval leaves 0.5 out; {} where nothing was decided."""
    if not shares:
        return {}
    mean, (low, high) = sum(shares) / len(shares), intervals.share_interval(shares)
    if not low <= 0.5 <= high:
        cure = "; comparisons.both_orders: true asks in both orders and takes verdicts that agree"
        report.event(
            f"the judge prefers what it is shown {'first' if low > 0.5 else 'second'}{'' if asked.both_orders else cure}",
            code=POSITION_BIAS, share=mean, low=low, high=high, problems=len(shares),
        )  # fmt: skip
    return {"comparisons/first_share": mean}


def _judge(asked: Comparisons, model: Model, start: str) -> CloserJudge | None:
    """None where the scores decide."""
    if asked.by == "score":
        return None
    ask: Callable[[Sequence[list[Message]]], list[Reply]]
    if asked.by == "endpoint":
        ask = asked.asker("sample.comparisons").ask
    else:
        from pipelines.engine.chat_model import ChatModel  # imports torch, which endpoints do without

        own = LocalJudge(ChatModel(start, model), temperature=asked.temperature, max_tokens=asked.max_tokens)
        ask = own.ask
    shown = asked.model_dump(include={"goal", "analyse", "both_orders", "instruction", "reference", "template"})
    return CloserJudge(ask, **shown)


def _compared(rows: list[Row], asked: Comparisons, judge: CloserJudge | None, seed: int) -> list[list[dict[str, Any]]]:
    """For each row the comparisons in which it comes first, as `samples.COMPARISONS` holds them."""
    couples: list[tuple[Shown, Shown]] = []
    for uid, group in groupby(enumerate(rows), key=lambda numbered: numbered[1]["uid"]):
        shown = [each for place, row in group for each in _shown(row, place, asked)]
        draw = random.Random(f"{seed} {uid} comparisons")
        listed = sorted({each.text: each for each in reversed(shown)}.values())
        total = len(listed) * (len(listed) - 1) // 2
        for number in draw.sample(range(total), min(total, asked.per_problem)):
            first, second = draw.sample([listed[place] for place in pair_at(number, len(listed))], 2)
            couples.append((first, second))
    if judge is None:
        verdicts = [by_score(rows[a.place]["score"], rows[b.place]["score"], asked.margin) for a, b in couples]
    else:
        pairs_shown: list[Pair] = [(dataset.from_row(rows[a.place]), a.text, b.text) for a, b in couples]
        verdicts = judge.verdicts(pairs_shown)
    compared: list[list[dict[str, Any]]] = [[] for _ in rows]
    for (first, second), verdict in zip(couples, verdicts, strict=True):
        told = {"other": rows[second.place]["sample"], "better": verdict}
        compared[first.place].append(told | ({"turns": [first.turn, second.turn]} if asked.states else {}))
    return compared


def pair_at(number: int, count: int) -> tuple[int, int]:
    """The pair of that number among those of `count` things, in order; a problem's pairs are too many to be listed.

    >>> [pair_at(number, 3) for number in range(3)]
    [(0, 1), (0, 2), (1, 2)]
    """
    first = 0
    while number >= count - 1 - first:
        number -= count - 1 - first
        first += 1
    return first, first + 1 + number


def by_score(first: float | None, second: float | None, margin: float) -> bool | None:
    """Whether the first score is higher by more than a margin; None where neither is, or one is missing.

    >>> by_score(1.0, 0.0, 0.0), by_score(0.2, 0.5, 0.1), by_score(0.5, 0.5, 0.0), by_score(None, 0.0, 0.0)
    (True, False, None, None)
    """
    if first is None or second is None or abs(first - second) <= margin:
        return None
    return first > second


def _shown(row: Row, place: int, asked: Comparisons) -> list[Shown]:
    """What a judge sees of a completion or an episode, or with `states` what the environment showed after each turn."""
    if row["stop"] == Stop.ERROR.name.lower():
        return []
    episode = json.loads(row.get(samples.EPISODE) or "null")
    if asked.states:
        texts = samples.observations(episode)
    elif episode is None:
        texts = [chat.after_thinking(row["text"]).strip()]
    else:
        texts = [transcript(episode)] if episode["turns"] else []
    return [Shown(place, turn, text) for turn, text in enumerate(texts) if text]
