"""Episodes as a benchmark: the same questions with and without tools, paired."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import toys

from evaluation import run
from pipelines import environments
from pipelines.contract.compact import Compact
from pipelines.contract.model_settings import Model
from pipelines.engine.models import save_model, train_tokenizer
from pipelines.engine.ranks import Ranks
from pipelines.recipe.settings import Evaluate
from pipelines.stage.report import Report


def test_the_same_questions_with_and_without_tools(tmp_path):
    tokenizer = train_tokenizer("char", 200, ["".join(map(chr, range(32, 127))), "\n"], tools=True)
    save_model(toys.model("llama", len(tokenizer)), tokenizer, tmp_path / "sft", {"stage": "sft"})
    (tmp_path / "report").mkdir()
    about = {"task": "tools", "size": 6, "max_turns": 2, "max_tokens": 5, "remind": True, "extensions": 1}
    tasks = [
        {"name": "without", "samples": 2, "environment": {**about, "config": {"tools": []}}},
        {"name": "with", "samples": 2, "against": "without", "environment": about},
    ]
    flat = run.run(
        Evaluate(tasks=tasks, bootstrap=100), Model(path=str(tmp_path / "sft")), checkpoints={"sft": str(tmp_path / "sft")},
        out=tmp_path, report=Report(tmp_path / "w"), seed=0,
    )  # fmt: skip
    body = json.loads((tmp_path / "results.json").read_text())
    assert body["differences"]["with vs without"]["sft"]["n"] == 6
    assert {"sft/with/mean_turns", "sft/without/mean_turns", "sft/with/pass@1"} <= flat.keys()
    logs = [
        [json.loads(line) for line in (tmp_path / "samples" / "sft" / f"{name}.jsonl").read_text().splitlines()]
        for name in ("without", "with")
    ]
    for without, offered in zip(*logs, strict=True):
        assert without["doc"]["prompt"] == offered["doc"]["prompt"] and without["doc_id"] == offered["doc_id"]
        assert "tools" in offered["doc"]["info"] and "tools" not in without["doc"]["info"]


def test_episodes_may_have_a_system_message_and_a_start_of_the_answer(tmp_path, monkeypatch):
    from evaluation import agent
    from evaluation.model import SamplerLM

    tokenizer = train_tokenizer("char", 200, ["".join(map(chr, range(32, 127))), "\n"], tools=True)
    lm = SamplerLM(toys.model("llama", len(tokenizer)), tokenizer, batch_size=8)
    lm.system_prompt = "Own."
    prompts = []
    play = agent.play

    def noted(requests, *rest, **more):
        prompts.extend(request.prompt for request in requests)
        return play(requests, *rest, **more)

    monkeypatch.setattr(agent, "play", noted)
    about = {"task": "tools", "size": 2, "max_turns": 1, "max_tokens": 2, "config": {"tools": []}}
    task = {"name": "low", "samples": 1, "environment": about, "system": "Effort: low."}
    settings = Evaluate(tasks=[task, {**task, "name": "direct", "prefill": "<think></think>"}], bootstrap=100)
    for asked in settings.tasks:
        _, logs = agent.evaluate(lm, None, asked, settings)
        assert all("<think>" not in text for row in logs[asked.name] for text in row["resps"])
    texts = [tokenizer.decode(ids) for ids in prompts]
    assert len(texts) == 4 and all("Own.\n\nEffort: low." in text for text in texts)
    assert texts[2:] == [text + "<think></think>" for text in texts[:2]]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_solved_task_costs(monkeypatch, asynchronous):
    """Two problems, two episodes each: one walks to the goal in two turns, the others never arrive."""
    import scripted

    from evaluation import agent

    said = {0: "right", 1: "left", 2: "left", 3: "jump"}
    context = scripted.context(lambda prefix, number: said[number % 4])
    lm = SimpleNamespace(
        tokenizer=scripted.tokenizer(),
        decoder=context.sampler,
        system_prompt=None,
        seed=0,
        progress=None,
        ranks=Ranks(),
    )
    rows = [
        {"prompt": [{"role": "user", "content": name}], "answer": "", "verifier": "exact",
         "info": {"environment": "frozen_lake", "map": ["SFG", "FFF"]}}
        for name in ("first", "second")
    ]  # fmt: skip
    monkeypatch.setattr(environments, "problems", lambda *args: rows)
    task = {
        "name": "lake",
        "samples": 2,
        "environment": {
            "task": "frozen_lake",
            "size": 2,
            "max_turns": 3,
            "max_tokens": 9,
            "asynchronous": asynchronous,
        },
    }
    settings = Evaluate(tasks=[task], bootstrap=100)

    def measured():
        return agent.evaluate(lm, None, settings.tasks[0], settings)[0]["lake"]

    sizes = []  # the first episode ends after two turns; three go on

    def script(prefix, number):
        sizes.append(number)
        return said[number] if len(sizes) <= 8 else list(said.values())[1:][number]

    lm.decoder.script = script
    metrics = measured()
    turns, tokens = 2 + 3 + 3 + 3, 2 * 6 + 3 * 5 + 3 * 5 + 3 * 5
    assert metrics["turns_per_solved"]["value"] == turns and metrics["tokens_per_solved"]["value"] == tokens
    assert metrics["mean_turns"]["value"] == turns / 4 and metrics["pass@1"]["value"] == 0.25
    lm.decoder.script = lambda prefix, number: "left"
    assert {"turns_per_solved", "tokens_per_solved"}.isdisjoint(measured()), "there is no such number"
    played = settings.tasks[0].environment.model_copy(update={"compact": Compact(at_tokens=2, max_tokens=3)})
    settings.tasks[0] = settings.tasks[0].model_copy(update={"environment": played})
    metrics = measured()
    assert metrics["mean_turns"]["value"] == 3 and metrics["mean_summaries"]["value"] == 2, "summaries are no turns"


@pytest.mark.parametrize(
    ("asynchronous", "most", "under_way"), [(False, None, 12), (False, 4, 4), (True, None, 12), (True, 5, 5)]
)
def test_no_more_episodes_are_under_way_than_a_task_allows(monkeypatch, asynchronous, most, under_way):
    """Twelve episodes of three turns, in which nobody moves."""
    import scripted

    from evaluation import agent

    context = scripted.context(lambda prefix, number: "stay")
    lm = SimpleNamespace(
        tokenizer=scripted.tokenizer(), decoder=context.sampler, system_prompt=None, seed=0, progress=None, ranks=Ranks(),
    )  # fmt: skip
    playing, peak = set(), []
    made = environments.make

    def watched(name):
        world = made(name)
        step = world.step

        def counted(message):
            playing.add(id(world))
            peak.append(len(playing))
            taken = step(message)
            counted.turns += 1
            if counted.turns == 3:
                playing.discard(id(world))
            return taken

        counted.turns, world.step = 0, counted
        return world

    monkeypatch.setattr(environments, "make", watched)
    about = {
        "task": "frozen_lake",
        "size": 6,
        "max_turns": 3,
        "max_tokens": 9,
        "asynchronous": asynchronous,
        "max_concurrent": most,
    }
    settings = Evaluate(tasks=[{"name": "lake", "samples": 2, "environment": about}], bootstrap=100)
    metrics = agent.evaluate(lm, None, settings.tasks[0], settings)[0]["lake"]
    assert max(peak) == under_way and metrics["mean_turns"]["value"] == 3


def test_training_data_may_not_hold_what_an_environment_asks():
    """The questions of an environment are the benchmark's, as those of an lm-eval task are."""
    from evaluation.documents import questions

    about = {"task": "tools", "size": 4, "seed": 5}
    tasks = [{"name": "agent", "limit": 3, "environment": about}, {"name": "palindromes"}]
    told = list(questions({"tasks": tasks}))
    assert [name for name, _ in told].count("agent") == 3 and {name for name, _ in told} == {"agent", "palindromes"}
    assert all(text.endswith("?") for name, text in told if name == "agent")


def test_a_game_has_a_mean_score_and_kuhn_poker_an_exact_figure():
    """A policy that always takes the careful move, and says so surely: it loses a chip to whoever bets."""
    import scripted

    from evaluation import agent
    from pipelines.papers.spiral import kuhn_poker

    context = scripted.context(lambda prefix, number: "check" if "or bet" in prefix.rsplit("Answer", 1)[-1] else "fold")
    asked = []

    def likelihoods(requests, disable_tqdm):
        asked.extend(scripted.show(context) for _, context, _ in requests)
        return [(-0.1 if scripted.show(move) in ("check", "fold") else -50.0, True) for _, _, move in requests]

    lm = SimpleNamespace(
        tokenizer=scripted.tokenizer(), decoder=context.sampler, system_prompt=None, seed=0, progress=None,
        _loglikelihood_tokens=likelihoods, ranks=Ranks(),
    )  # fmt: skip
    task = {
        "name": "poker",
        "samples": 2,
        "environment": {"task": "kuhn_poker", "size": 40, "config": {"opponent": "perfect"}},
    }
    settings = Evaluate(tasks=[task], bootstrap=100)
    metrics = agent.evaluate(lm, None, settings.tasks[0], settings)[0]["poker"]
    assert round(metrics["exploitability"]["value"], 6) == 1 and len(asked) == 2 * len(kuhn_poker.decisions())
    assert metrics["mean_score"]["low"] <= metrics["mean_score"]["value"] <= metrics["mean_score"]["high"]
    always = dict.fromkeys(kuhn_poker.EQUILIBRIUM, 0.0)
    exact = (
        kuhn_poker.expected(always, kuhn_poker.EQUILIBRIUM) - kuhn_poker.expected(kuhn_poker.EQUILIBRIUM, always)
    ) / 2
    assert abs(metrics["mean_score"]["value"] - exact) < 0.35
