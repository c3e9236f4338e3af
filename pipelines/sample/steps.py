"""Monte-Carlo labels of steps: from the end of each step of stored completions continuations are drawn and verified (Math-Shepherd)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipelines import verifiers
from pipelines.base.files import write_atomic
from pipelines.contract.model_settings import Model
from pipelines.contract.streams import stream_ids
from pipelines.data import chat, control, dataset, samples
from pipelines.data.records import Stop
from pipelines.data.step_records import step_ends
from pipelines.engine import models
from pipelines.engine.distribution import generator
from pipelines.sample.run import Drawer
from pipelines.sample.settings import Sample
from pipelines.sample.shards import Shards
from pipelines.sample.summary import summary
from pipelines.stage.report import Report

READ = (*dataset.SCHEMA, "prompt_ids", "completion_ids", "correct", "stop")
Verdicts = tuple[int, int]
"""Of some continuations how many are correct, and how many were drawn and verified."""


def label_steps(
    settings: Sample,
    model: Model,
    *,
    start: str,
    data: Path,
    out: Path,
    report: Report,
    seed: int,
    guide: str | None = None,
) -> dict[str, float]:
    """Write `out/samples/shard-NNNNN.parquet`: the stored rows with the column `samples.STEPS`; the tokenizer and `samples.json` as `run`.

    Steps are divided by the stored tokens, and continuations go on from these. Equal prefixes of a problem's completions are continued
    once. Random numbers depend on the seed, the problem and the prefix alone; a restart keeps the shards that are there.

    Args:
        start: folder or hub name of the model that continues.
        data: the folder of the sample stage that drew the completions.
        guide: folder of the base of `settings.guidance`.

    Returns:
        the metrics of `summary` (of the stored completions), `steps/per_answer`; `steps/label`, `steps/none`, `steps/all`: mean label, and
        share of steps from which no, and every, continuation is correct.

    Raises:
        ModelError: the model cannot be loaded, or is of another tokenizer or template than the completions.
        DataError: there are no samples.
    """
    tokenizer = models.load_tokenizer(start, model)
    stored = samples.about(data)
    models.check_template(stored.get("template"), tokenizer, "sample")
    problems = min(stored["problems"], settings.problems or stored["problems"])
    per_shard = max(1, settings.rows_per_shard // (settings.k * stored["k"]))
    count = -(-problems // per_shard)
    shards = Shards(out, count, report, "labelling")
    if shards.own:
        with Drawer(settings, model, start, tokenizer, seed, report, None, None, guide, None) as drawer:
            for number, table in enumerate(samples.parts(data, per_shard * stored["k"], problems * stored["k"])):
                if number in shards.own:
                    shards.begin(number)
                    labels = _Labeller(drawer).label(table.select(READ).to_pylist())
                    samples.write_table(shards.own[number], samples.with_column(table, samples.STEPS, labels))
                    shards.written(number, _metrics(labels))
    if not shards.finished():
        return {}
    tokenizer.save_pretrained(out / "tokenizer")
    dataset.copy_images(data, out)
    metrics = summary(out) | _metrics(
        [json.loads(row[samples.STEPS] or "[]") for row in samples.read(out, [samples.STEPS])]
    )
    about = {
        **stored, "problems": problems, "rows": problems * stored["k"], "shards": count, "continuations": settings.k, "metrics": metrics,
    }  # fmt: skip
    write_atomic(out / samples.ABOUT, json.dumps(about, indent=1, sort_keys=True))
    report.metrics(count, metrics)
    return metrics


def _metrics(labels: Sequence[list[dict[str, Any]]]) -> dict[str, float]:
    """Of the steps with a label; {} where there is none."""
    shares = [step["correct"] / step["drawn"] for steps in labels for step in steps if step["drawn"]]
    if not shares:
        return {}
    return {
        "steps/per_answer": sum(map(len, labels)) / sum(map(bool, labels)),
        "steps/label": sum(shares) / len(shares),
        "steps/none": sum(share == 0 for share in shares) / len(shares),
        "steps/all": sum(share == 1 for share in shares) / len(shares),
    }


class _Labeller:
    """What continuations are drawn with."""

    def __init__(self, drawer: Drawer) -> None:
        assert drawer.settings.step_labels is not None
        self.drawer, self.settings, self.steps = drawer, drawer.settings, drawer.settings.step_labels

    def label(self, rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """The steps of each row, as `samples.STEPS` holds them; [] where nothing was sampled."""
        divided = [self._divide(row) for row in rows]
        prefixes: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
        for row, (ends, _) in zip(rows, divided, strict=True):
            for end in ends:
                prefixes.setdefault((row["uid"], tuple(row["completion_ids"][: end + 1])), row)
        verdicts = dict(zip(prefixes, self._verdicts(prefixes), strict=True))
        labels = []
        for row, (ends, texts) in zip(rows, divided, strict=True):
            own = [verdicts[row["uid"], tuple(row["completion_ids"][: end + 1])] for end in ends]
            last = (0, 0) if row["correct"] is None else (int(row["correct"]), 1)
            pieces = [text[len(before) :] for before, text in pairwise(["", *texts])]
            labels.append(
                [
                    {"text": piece, "correct": correct, "drawn": drawn}
                    for piece, (correct, drawn) in zip(pieces, [*own, last][: len(pieces)], strict=True)
                ]
            )
        return labels

    def _divide(self, row: dict[str, Any]) -> tuple[list[int], list[str]]:
        """Index of the last token of each step but the last, and the text up to each step's end; nothing of an empty completion."""
        if row["stop"] == Stop.ERROR.name.lower():
            return [], []
        fields = self.steps.model_dump()
        ends, texts = step_ends(row["completion_ids"], self._decode, fields.pop("separator"), **fields)
        return (ends, texts) if texts[-1].strip() else ([], [])

    def _decode(self, tokens: Sequence[int]) -> str:
        return control.decode_text(self.drawer.tokenizer, tokens)

    def _verdicts(self, prefixes: dict[tuple[str, tuple[int, ...]], dict[str, Any]]) -> list[Verdicts]:
        """Of each prefix, with a row that begins with it."""
        if not prefixes:
            return []
        drawer, count = self.drawer, self.settings.k
        completions = drawer.sampler.extend(
            [[*row["prompt_ids"], *ids] for (_, ids), row in prefixes.items() for _ in range(count)],
            self.settings.sampling,
            generator(drawer.device, drawer.seed),
            entropy=False,
            streams=[
                (stream, 0) for uid, ids in prefixes for stream in stream_ids(count, "continue", drawer.seed, uid, ids)
            ],
        )
        problems = [problem for row in prefixes.values() for problem in [dataset.from_row(row)] * count]
        heads = [ids for _, ids in prefixes for _ in range(count)]
        texts = chat.completion_texts(
            drawer.tokenizer, [[*ids, *each.tokens] for ids, each in zip(heads, completions, strict=True)]
        )
        drawn = [number for number, each in enumerate(completions) if each.stop != Stop.ERROR]
        asked = [(p.verifier, texts[n], p.answer, p.info) for n in drawn for p in [problems[n]]]
        correct: list[bool | None] = [None] * len(completions)
        for number, verdict in zip(drawn, verifiers.verify_many(asked), strict=True):
            correct[number] = verdict.correct
        groups = [correct[first : first + count] for first in range(0, len(correct), count)]
        return [(sum(c is True for c in group), sum(c is not None for c in group)) for group in groups]
