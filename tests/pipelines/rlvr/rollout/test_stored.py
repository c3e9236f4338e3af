"""Rollouts out of a sample stage: the very rows that were drawn, none of them on-policy, and a run that samples nothing."""

from __future__ import annotations

import pytest
import torch
import toys
import yaml
from scripted import context, ids, request, tokenizer

from pipelines.base.errors import DataError, RecipeError
from pipelines.contract.catalogue import bind
from pipelines.contract.sampling import Sampling
from pipelines.data import dataset, samples
from pipelines.data.records import Role, Stop
from pipelines.recipe.check import check
from pipelines.recipe.read import read_recipe
from pipelines.rlvr import stored
from pipelines.rlvr.train import Trainer
from pipelines.sample.run import run as sample
from pipelines.sample.settings import Sample
from pipelines.stage.report import Report


def row(text, prompt="pp", entropy=True, stop="end"):
    tokens = [*ids(text), tokenizer().eos_token_id]
    return {
        "prompt_ids": ids(prompt),
        "completion_ids": tokens,
        "logp": [-0.5 * (i + 1) for i in range(len(tokens))],
        "entropy": [0.25 * i for i in range(len(tokens))] if entropy else None,
        "text": text,
        "stop": stop,
        "max_tokens": 4,
    }


def drawn(rows, *, order="drawn", rollouts=2, entropy=True, kind="stored"):
    def never(prefix, number):
        raise AssertionError("nothing is sampled")

    made = context(never, entropy=entropy)
    object.__setattr__(made, "stored", lambda uid: rows)
    return bind("rlvr.rollout", {"kind": kind, "order": order}).fn.run([request("pp", rollouts, group=5)], made)


def test_rows_are_those_of_the_samples():
    first, second = drawn([row("abc", stop="length"), row("d"), row("ef")])
    assert (
        first.tokens == [*ids("ppabc"), tokenizer().eos_token_id] and first.text == "abc" and first.stop == Stop.LENGTH
    )
    assert first.role == [0, 0] + [int(Role.POLICY)] * 4 and first.logp_old == [0, 0, -0.5, -1.0, -1.5, -2.0]
    assert first.entropy_old == [0, 0, 0, 0.25, 0.5, 0.75] and first.version == -1 and first.group == 5
    assert first.max_tokens == 4, "the limit that it was drawn under, whatever this stage's is"
    assert second.text == "d" and second.stop == Stop.END and first.score is None
    assert [r.text for r in drawn([row("abc"), row("d"), row("ef")], order="shortest")] == ["d", "ef"]
    assert drawn([row("abc", entropy=False)], entropy=False)[0].entropy_old is None


def test_a_demonstration_follows_them():
    *stored_rows, demonstration = drawn([row("abc"), row("d"), row("ef")], order="shortest", kind="stored_demonstrated")
    assert stored_rows == drawn([row("abc"), row("d"), row("ef")], order="shortest")
    assert demonstration.tokens == [*ids("ppok"), tokenizer().eos_token_id] and demonstration.group == 5
    assert demonstration.role == [0, 0] + [int(Role.TEACHER_FORCED)] * 3 and demonstration.version == 3


def test_another_prompt_and_missing_entropies_are_refused():
    with pytest.raises(DataError, match="has another prompt here"):
        drawn([row("abc", prompt="pq")])
    with pytest.raises(DataError, match="samples that a server drew have none"):
        drawn([row("abc", entropy=False)])


@pytest.fixture(scope="module")
def begun(tmp_path_factory, start):
    """A cold start, and eight samples of it to each of thirty problems."""
    folder = tmp_path_factory.mktemp("stored")
    for name in ("data", "sft"):
        (folder / name).symlink_to(start / name)
    settings = Sample(split="train", problems=30, k=8, sampling=Sampling(max_tokens=8))
    model = read_recipe(toys.recipe(folder)).model
    work = folder / "drafts"
    sample(
        settings,
        model,
        start=str(folder / "sft/out/model"),
        data=folder / "data",
        out=work,
        report=Report(work / "w"),
        seed=0,
    )
    few = folder / "few"
    few.mkdir()
    for path in (folder / "data").iterdir():
        if path.is_dir() or path.suffix != ".parquet":
            (few / path.name).symlink_to(path)
    from pipelines.data.dataset import Writer

    writer = Writer(few / "train.parquet", 100)
    for problem in dataset.read_split(folder / "data", "train")[:30]:
        writer.add(problem)
    writer.close()
    return folder


OFFLINE = (
    "rlvr.rollout=stored", "rlvr.group_size=6", "rlvr.advantage=reason_maxxer", "rlvr.objective=reinforce",
    "rlvr.credit=[{kind: entropy_gate, right: 0.3, wrong: 0.3, others: keep}]", "rlvr.loss_aggregation=reason_maxxer",
    "rlvr.divergence={kind: reason_maxxer, weight: 0.2}", "rlvr.sampling.max_tokens=8", "rlvr.monitors=[]",
)  # fmt: skip


def trainer(tmp_path, begun, *overrides, data="few"):
    recipe = read_recipe(toys.recipe(tmp_path), [*OFFLINE, *overrides])
    work = tmp_path / "work"
    (work / "out").mkdir(parents=True, exist_ok=True)
    return Trainer(
        recipe.rlvr, recipe.model, start=str(begun / "sft/out/model"), data=begun / data, out=work / "out", work=work,
        report=Report(work, committed=True), seed=0, inputs={"samples": begun / "drafts"},
    )  # fmt: skip


def test_a_run_reads_stored_rows_and_samples_nothing(tmp_path, begun, monkeypatch):
    made = trainer(tmp_path, begun)
    monkeypatch.setattr(made.sampler, "extend", None)
    made.run()
    texts = {r["text"] for r in samples.read(begun / "drafts")}
    sampled, _ = made.collect(3)
    assert len(sampled) == 24 and {r.text for r in sampled} <= texts
    columns = made.collector.pack(sampled, 3, 4)
    assert not columns["on_policy"].any() and not columns["replayed"].any() and columns["mask"].any()
    metrics = [values for _, values in toys.history(tmp_path / "work")]
    assert len(metrics) == 4 and any(values["optimizer/grad_norm"] > 0 for values in metrics)


IMITATION = ("rlvr.credit=[]", "rlvr.divergence=null", "rlvr.optimizer.learning_rate=0.0005")
DUAL = {
    "recoil": (
        "rlvr.rollout=stored_demonstrated",
        "rlvr.objective=recoil",
        "rlvr.advantage=grpo",
        "rlvr.loss_aggregation=row_mean",
    ),
    "f_dvl": ("rlvr.advantage=f_dvl", "rlvr.loss_aggregation=fixed_length"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DUAL)
def test_the_duals_learn_offline(tmp_path, begun, monkeypatch, name):
    """A few steps on stored rows make the demonstrations, or the answers that are paid best, more likely."""
    made = trainer(tmp_path, begun, *IMITATION, *DUAL[name], "rlvr.steps=8", "rlvr.prompts=30")
    monkeypatch.setattr(made.sampler, "extend", None)
    rows, _ = made.collect(0)
    columns = made.collector.pack(rows, 0, 8)
    wanted = columns["teacher_forced"] if name == "recoil" else columns["mask"] & (columns["reward"] > 0.5)[:, None]
    assert wanted.any()

    def likelihood():
        with torch.no_grad():
            logp = made.learner.passes.per_token(made.learner.passes.log_probs, columns["token"], columns["mask"])
        return float((logp * wanted).sum() / wanted.sum())

    before = likelihood()
    made.run()
    assert likelihood() > before + 0.02


def test_at_the_start_only_decisions_have_a_gradient_and_far_thresholds_leave_the_anchor_alone(tmp_path, begun):
    """With a threshold that no token reaches the loss is the anchor's, 0 with gradient 0 at the starting weights."""
    (tmp_path / "a").mkdir()
    nothing = trainer(
        tmp_path / "a", begun, "rlvr.credit=[{kind: entropy_gate, right: 99, wrong: 99, others: keep}]", "rlvr.steps=1"
    )
    nothing.run()
    [values] = [v for _, v in toys.history(tmp_path / "a/work")]
    assert values["optimizer/grad_norm"] < 1e-4


def test_problems_that_were_not_drawn_are_refused(tmp_path, begun):
    with pytest.raises(DataError, match="problems have no stored completion"):
        trainer(tmp_path, begun, data="data")
    read = stored.read(
        begun / "drafts",
        {p.uid: p for p in dataset.read_split(begun / "few", "train")},
        trainer(tmp_path, begun).tokenizer,
    )
    assert len(read) == 30 and all(len(rows) == 8 for rows in read.values())


def test_a_killed_run_ends_with_the_same_bytes(tmp_path, begun):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    trainer(tmp_path / "a", begun).run()
    toys.run_stopped(lambda: trainer(tmp_path / "b", begun), 2, "update")
    weights = [(tmp_path / name / "work/out/model/model.safetensors").read_bytes() for name in ("a", "b")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ({"rollout": "stored"}, r"rl\.samples: the rollout stored reads stored completions"),
        ({"samples": "drafts"}, r"rl\.samples: the rollout single_turn draws its own.*stored_demonstrated"),
        ({"samples": "drafts", "rollout": "stored", "window": 4}, r"rl\.window"),
        (
            {"samples": "drafts", "rollout": "stored", "curriculum": "self_curation"},
            r"rl\.curriculum: self_curation asks what the present policy answers",
        ),
        ({"samples": "data", "rollout": "stored"}, r"rl\.samples: data is a stage of kind curate"),
    ],
)
def test_samples_are_named_where_they_are_read(tmp_path, stage, words):
    body = yaml.safe_load(toys.recipe(tmp_path).read_text())
    sections = {name: body.pop(name) for name in ("curate", "sft", "rlvr", "evaluate")}
    body["stages"] = {
        "data": {"kind": "curate", **sections["curate"]},
        "cold": {"kind": "sft", "data": "data", **sections["sft"]},
        "drafts": {"kind": "sample", "model": "cold", "data": "data", "k": 2, "sampling": {"max_tokens": 8}},
        "rl": {"kind": "rlvr", "model": "cold", "data": "data", **sections["rlvr"], **stage},
    }
    path = tmp_path / "graph.yaml"
    path.write_text(yaml.safe_dump(body))
    with pytest.raises(RecipeError, match=words):
        check(read_recipe(path))
