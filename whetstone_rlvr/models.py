"""Models of runs: what they answer, and how they compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from pipelines.base.errors import UserError
from pipelines.recipe.stage_kind import SCORES
from whetstone_rlvr.errors import explained
from whetstone_rlvr.runs import Run

if TYPE_CHECKING:
    import pandas as pd

Model = Run | str | PathLike[str]
"""A run, or what a command takes for one: the beginning of its id, `RUN/STAGE`, an artifact, a folder."""
COLUMNS = (
    "task", "metric", "old", "new", "old_score", "new_score", "difference", "low", "high", "p", "p_holm", "verdict", "n", "detectable",
    "test",
)  # fmt: skip


@explained
def sample(
    model: Model,
    prompts: str | Sequence[Mapping[str, str]] | Sequence[str | Sequence[Mapping[str, str]]],
    *,
    n: int = 1,
    temperature: float = 0.7,
    top_p: float = 1.0,
    max_tokens: int = 512,
    seed: int = 0,
    system: str | None = None,
) -> pd.DataFrame:
    """Ask a model, with the chat template and the system message that it was trained with.

    Args:
        model: a run (its last model), its id or the first characters of it, `RUN/STAGE`, or the folder of any model.
        prompts: a text, a conversation (messages with `role` and `content`), or a list of them.
        n: answers to each prompt.
        temperature: 0 is greedy.
        top_p: share of the probability that is drawn from.
        max_tokens: of an answer.
        seed: of the draws; equal calls give equal answers.
        system: another system message; "" for none.

    Returns:
        prompt, sample, text and tokens, a row for each answer; the text of a prompt that fills the context is None.

    Raises:
        UserError: there is no such model, or a number cannot be.

    >>> whetstone.sample(run, ["palindrome abc", "palindrome aab"], n=2, max_tokens=8)[["prompt", "sample"]]
               prompt  sample
    0  palindrome abc       0
    1  palindrome abc       1
    2  palindrome aab       0
    3  palindrome aab       1
    """
    from tasks.export import conversation

    sampling = conversation.sampling_of("", temperature=temperature, top_p=top_p, max_tokens=max_tokens)
    speaker, trained_with = conversation.load(_folder(model))
    if n < 1:
        raise UserError("n", f"{n} is below 1", "Choose 1 or more.")
    single = isinstance(prompts, str) or (bool(prompts) and isinstance(prompts[0], Mapping))
    asked: list[Any] = [prompts] if single else [*prompts]
    told = trained_with if system is None else system
    conversations = [_conversation(prompt, told) for prompt in asked]
    pairs = [(place, number) for place in range(len(asked)) for number in range(n)]
    drawn = speaker.draw([conversations[i] for i, _ in pairs], sampling, [[seed, number] for _, number in pairs])
    import pandas as pd

    rows = [
        {"prompt": asked[place], "sample": number, "text": text, "tokens": tokens}
        for (place, number), (text, _, tokens) in zip(pairs, drawn, strict=True)
    ]
    return pd.DataFrame(rows, columns=["prompt", "sample", "text", "tokens"])


def _conversation(prompt: str | Sequence[Mapping[str, str]], system: str | None) -> list[Any]:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(each) for each in prompt]
    first = (
        [{"role": "system", "content": system}]
        if system and (not messages or messages[0].get("role") != "system")
        else []
    )
    return [*first, *messages]


@explained
def compare(*models: Model, confidence: float = 0.95) -> pd.DataFrame:
    """Compare evaluated models on the problems that all were asked, with the tests of `whetstone compare`; the first is the reference.

    Args:
        models: runs, their ids, models, or `experiment:NAME`; `:base`, `:sft` or `:rlvr` after an id chooses a checkpoint.
        confidence: level of the intervals and tests.

    Returns:
        a row for each benchmark, metric and further model: both scores, the difference with its interval, p (paired score test), p after
        Holm over the family of tests, verdict, problems, and the difference that would have shown. `attrs["notes"]` has what limits it.

    Raises:
        UserError: a name means nothing, has no evaluation, or all mean one model.

    >>> whetstone.compare(f"{run.run_id}:sft", run)[["task", "metric", "n", "p"]]
              task  metric  n    p
    0  palindromes  pass@1  6  1.0
    1  palindromes  pass@2  6  1.0
    """
    import pandas as pd

    from tasks.lineage import comparing

    body = comparing.compare([_evaluated(model) for model in models], confidence=confidence, option="confidence")
    names = [", ".join(each["name"] for each in arm["runs"]) for arm in body["arms"]]
    rows = []
    for task, benchmark in body["benchmarks"].items():
        for test in benchmark["tests"]:
            old, new = test["old"], test["new"]
            scores = {"old_score": benchmark["scores"][old], "new_score": benchmark["scores"][new]}
            about = {"task": task, "old": names[old], "new": names[new], "difference": test["value"]}
            rows.append(test | about | {side: score[test["metric"]] for side, score in scores.items()})
    frame = pd.DataFrame(rows, columns=[*COLUMNS])
    frame.attrs["notes"] = body["notes"] + [note for each in body["benchmarks"].values() for note in each["notes"]]
    return frame


def _folder(model: Model) -> str:
    if not isinstance(model, Run):
        return fspath(model)
    return str(model.model or model.run_id)


def _evaluated(model: Model) -> str:
    if not isinstance(model, Run):
        return fspath(model)
    evaluations = [stage.folder for stage in model._that_make(SCORES)]
    return model.run_id or str(evaluations[-1] if evaluations else model.recipe)
