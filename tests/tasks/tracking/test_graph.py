"""The graph that MLflow holds of a chain, read back from a real store: inputs, outputs, scores, versions, a model that loads."""

from __future__ import annotations

from pathlib import Path

import chain
import databases
import pytest
import toys

from tasks.pipeline import Pipeline
from tasks.tracking import links, outbox
from tasks.tracking.time_budget import TimeBudget


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Two pipeline runs that differ in one setting, in a store of their own."""
    folder = tmp_path_factory.mktemp("graph")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("WHETSTONE_HOME", str(folder / "home"))
        databases.store()
        from tasks.tracking import api as tracking

        recipe = toys.recipe(folder, name="toy-0.5b")  # a dot: LoggedModels may have none in their names
        first = chain.run(recipe)
        second = chain.run(recipe, "rlvr.advantage=rloo", mark="b")
        yield tracking.client(), first, second


def uploaded(pipeline, stage):
    return outbox.uploaded(pipeline.results[stage].artifact.path)


@pytest.mark.slow
def test_the_parent_run_says_what_it_was_and_what_it_did(told):
    client, first, second = told
    run = client.get_run(second.parent)
    assert run.info.status == "FINISHED" and run.info.run_name == "rlvr.advantage rloo"
    metrics = run.data.metrics
    for name in ("base/palindromes/pass_at_1", "sft/palindromes/pass_at_1", "rlvr/palindromes/pass_at_1_low"):
        assert name in metrics
    assert metrics["rlvr/palindromes/pass_at_1"] == 0.5 and metrics["gain/palindromes/sft_to_rlvr"] == 0.25
    assert metrics["seconds/rlvr"] == 1.0 and metrics["seconds/total"] > 0
    other = client.get_run(first.parent).data.params
    assert {k for k in run.data.params if run.data.params[k] != other.get(k)} == {"rlvr.advantage.kind"}
    tags = run.data.tags
    assert tags["mlflow.source.name"] == "recipes/toy.yaml" and tags["mlflow.source.type"] == "LOCAL"
    assert len(tags["mlflow.source.git.commit"]) == 40 and tags["mlflow.source.git.dirty"] in ("true", "false")
    assert "| rlvr | 0.500 [0.250, 0.500] |" in tags["mlflow.note.content"]
    assert f"viewStateShareKey={links.CURVES_VIEW}&" in tags["mlflow.note.content"]
    assert f"runs/{uploaded(second, 'rlvr').run_id}?" in tags["mlflow.note.content"]
    contexts = {d.dataset.name: d.tags[0].value for d in run.inputs.dataset_inputs}
    assert contexts == {"toy-0.5b": "training", "palindromes": "evaluation"}
    assert {o.step for o in run.outputs.model_outputs} == {12, 4}


def test_checkpoints_are_outputs_with_their_step_and_inputs_of_what_reads_them(told):
    client, first, _ = told
    sft, rlvr, evaluated = (uploaded(first, stage) for stage in ("sft", "rlvr", "evaluate"))
    outputs = {o.model_id: o.step for o in client.get_run(sft.run_id).outputs.model_outputs}
    assert outputs == {sft.models["base"]: 0, sft.models["sft"]: 12}
    run = client.get_run(rlvr.run_id)
    assert [i.model_id for i in run.inputs.model_inputs] == [sft.models["sft"]]
    assert {o.model_id: o.step for o in run.outputs.model_outputs} == {rlvr.models["rlvr"]: 4}
    assert run.data.tags["mlflow.parentRunId"] == first.parent
    assert (
        run.data.tags["whetstone.reward_sources"] == "rule"
        and "whetstone.rewards" not in client.get_run(sft.run_id).data.tags
    )
    assert (
        first.summary()["stages"]["rlvr"]["rewards"]
        == [run.data.tags["whetstone.rewards"]]
        == ["reward: verifier: rule"]
    )
    inputs = {i.model_id for i in client.get_run(evaluated.run_id).inputs.model_inputs}
    assert inputs == {sft.models["base"], sft.models["sft"], rlvr.models["rlvr"]}


def test_scores_have_one_name_linked_to_model_and_benchmark(told):
    client, first, second = told
    evaluated, rlvr = uploaded(first, "evaluate"), uploaded(first, "rlvr")
    data = client.get_run(evaluated.run_id).inputs.dataset_inputs
    model = client.get_logged_model(rlvr.models["rlvr"])
    assert [(m.key, m.value, m.dataset_name) for m in model.metrics] == [("palindromes/pass_at_1", 0.5, "palindromes")]
    assert (
        model.metrics[0].dataset_digest == data[0].dataset.digest and model.metrics[0].run_id == evaluated.runs["rlvr"]
    )
    again = client.get_run(uploaded(second, "evaluate").run_id).inputs.dataset_inputs
    assert again[0].dataset.digest == data[0].dataset.digest, "the same questions, the same digest"
    assert model.params["rlvr.steps"] == "4" and "sft.steps" not in model.params and model.model_type == "rlvr"
    run = client.get_run(evaluated.runs["rlvr"])
    assert run.info.status == "FINISHED" and run.data.tags["mlflow.parentRunId"] == evaluated.run_id
    assert run.data.metrics == {"palindromes/pass_at_1": 0.5}
    assert [i.model_id for i in run.inputs.model_inputs] == [rlvr.models["rlvr"]]


def test_versions_have_aliases(told):
    client, first, second = told
    from tasks.tracking import models as tracking_models
    from tasks.tracking import registry as tracking_registry

    versions = client.search_model_versions("name='toy-0.5b'")
    assert {v.version: v.tags["whetstone.parent_run"] for v in versions} == {1: first.parent, 2: second.parent}
    assert str(client.get_registered_model("toy-0.5b").aliases[tracking_models.CANDIDATE]) == "2"
    assert tracking_registry.champion("toy-0.5b") is None
    tracking_registry.set_champion("toy-0.5b", "1", {})
    champion = tracking_registry.champion("toy-0.5b")
    assert champion is not None and champion[0] == "1" and champion[1]["whetstone.parent_run"] == first.parent


def test_a_registered_model_loads_with_mlflow(told):
    import mlflow

    del told
    pipe = mlflow.transformers.load_model("models:/toy-0.5b/1", device="cpu")
    text = pipe("palindrome ab", max_new_tokens=3, do_sample=False)[0]["generated_text"]
    assert text.startswith("palindrome ab") and type(pipe.model).__name__ == "LlamaForCausalLM"
    assert pipe.tokenizer.chat_template
    assert mlflow.models.get_model_info("models:/toy-0.5b/1").signature is not None


def test_another_machine_gets_the_artifact_without_what_mlflow_added(told, tmp_path):
    from pipelines.base.files import contents
    from tasks.tracking import api as tracking

    _, first, _ = told
    artifact = first.results["rlvr"].artifact
    run_id, experiment = tracking.find_remote("rlvr", artifact.key, "toy-0.5b")
    assert tracking.fetch(run_id, experiment, tmp_path / "x")
    assert contents(tmp_path / "x") == contents(artifact.path)


def test_answers_and_rollouts_are_shown_where_they_belong(told):
    client, first, _ = told
    runs = [*uploaded(first, "evaluate").runs.values(), uploaded(first, "rlvr").run_id]
    counts = [len(client.search_traces(locations=[first.experiment_id], run_id=run)) for run in runs]
    assert counts == [2, 2, 2, 1]
    answer = client.search_traces(locations=[first.experiment_id], run_id=uploaded(first, "evaluate").runs["rlvr"])[0]
    assert answer.info.trace_metadata["mlflow.modelId"] == uploaded(first, "rlvr").models["rlvr"]


def test_a_part_of_the_chain_knows_what_was_made_before(told):
    """`--only evaluate` links the checkpoints that earlier runs made."""
    _, first, _ = told
    part = Pipeline(first.recipe, first.parent, first.state)
    part.results = {"evaluate": first.results["evaluate"]}
    part.before = {stage: first.results[stage].artifact for stage in ("sft", "rlvr")}
    body = part._told("FINISHED", part.summary(), {})
    assert list(body["checkpoints"]) == ["base", "sft", "rlvr"] and next(iter(body["evaluated"])).startswith(
        "evaluate-"
    )


def test_telling_it_again_changes_nothing(told):
    client, _, second = told
    from tasks.tracking import api as tracking

    before = everything(client, second)
    evaluated = second.results["evaluate"].artifact
    models = {"sft": uploaded(second, "sft").models["sft"], "rlvr": uploaded(second, "rlvr").models["rlvr"]}
    tracking.record_evaluation(uploaded(second, "evaluate").run_id, evaluated.path, models, 1_700_000_000_000)
    body = second._told("FINISHED", second.summary(), client.get_run(second.parent).data.metrics)
    outbox.add_run(second.parent, body | {"time": 1})
    assert outbox.flush_all(None).sent == 1
    assert everything(client, second) == before


def everything(client, pipeline):
    """Counts of what a second telling could double."""
    runs = client.search_runs([pipeline.experiment_id])
    return (
        len(runs), len(client.search_logged_models([pipeline.experiment_id])), len(client.search_model_versions()),
        [len(client.get_metric_history(r.info.run_id, name)) for r in runs for name in sorted(r.data.metrics)],
        [(len(r.inputs.dataset_inputs), len(r.inputs.model_inputs), len(r.outputs.model_outputs)) for r in runs],
    )  # fmt: skip


def test_views_show_what_differs_and_links_open_them(told):
    client, first, _ = told
    from tasks.tracking import views as tracking_views

    tags = client.get_experiment(first.experiment_id).tags
    name, state = tracking_views.decode(tags[tracking_views.TAG + links.VIEW])
    assert "pipeline" in name and state["searchFilter"] == "tags.`whetstone.kind` = 'pipeline'"
    assert (
        "params.`rlvr.advantage.kind`" in state["selectedColumns"] and "params.`seed`" not in state["selectedColumns"]
    )
    assert "metrics.`gain/palindromes/sft_to_rlvr`" in state["selectedColumns"]
    assert {"BAR", "PARALLEL", "SCATTER", "DIFFERENCE"} == {c["type"] for c in state["compareRunCharts"]}
    _, seeds = tracking_views.decode(tags[tracking_views.TAG + links.SEEDS_VIEW])
    assert [k["groupByData"] for k in seeds["groupBy"]["groupByKeys"]] == ["rlvr.advantage.kind"]
    assert all(len(tags[tracking_views.TAG + key]) < 20_000 for key in (links.VIEW, links.SEEDS_VIEW))
    address = links.runs(first.experiment_id)
    assert "workflowType=machine_learning" in address and f"viewStateShareKey={links.VIEW}" in address


@pytest.mark.slow
def test_a_store_that_is_away_gets_the_same_graph_later(home, tmp_path):
    databases.store()
    waiting = []
    pipeline = chain.run(toys.recipe(tmp_path), send=lambda stage, path: waiting.append((stage, path)))
    from tasks.tracking import api as tracking

    last = waiting[-1][1]
    assert outbox.flush(last, TimeBudget(None)), "what evaluation reads is sent before it"
    assert outbox.flush_all(None).sent == 1, "only curation is left"
    client = tracking.client()
    evaluated = uploaded(pipeline, "evaluate")
    assert len(client.get_run(evaluated.run_id).inputs.model_inputs) == 3
    assert client.get_logged_model(uploaded(pipeline, "rlvr").models["rlvr"]).metrics


@pytest.mark.slow
def test_a_failed_stage_is_told_at_the_top_with_its_log(home, tmp_path):
    """A real stage that ends with an error: the pipeline's run has it, the last lines and the way to the log."""
    from pipelines.recipe.read import read_recipe
    from tasks import stages
    from tasks.process import StageFailed
    from tasks.tracking import api as tracking

    databases.store()
    (tmp_path / "rows.jsonl").write_text("no JSON\n")
    source = {"kind": "file", "path": str(tmp_path / "rows.jsonl")}
    recipe = read_recipe(toys.recipe(tmp_path, curate={"sources": [source]}))
    pipeline = Pipeline.open(
        recipe, origin={"whetstone.trigger": "schedule", "whetstone.prefect.deployment": "f/nightly"}
    )
    with pytest.raises(StageFailed) as failed:
        stages.run_stage(recipe, "curate", {}, parent=pipeline.parent)
    body = pipeline.close("FAILED", failed.value)
    client = tracking.client()
    (parent,) = client.search_runs([pipeline.experiment_id], "tags.`whetstone.prefect.deployment` = 'f/nightly'")
    tags = parent.data.tags
    assert (parent.info.run_id, parent.info.status) == (pipeline.parent, "FAILED")
    assert body["failed"]["stage"] == "curate" and tags["whetstone.error"].startswith("curate: ")
    (stage,) = client.search_runs([pipeline.experiment_id], "tags.`whetstone.kind` = 'stage'")
    log = client.download_artifacts(stage.info.run_id, "artifact/report/stage.log")
    note, (last, *_) = tags["mlflow.note.content"], body["failed"]["log"][::-1]
    assert note.startswith("**curate failed**: ") and last[:200] in note and last in Path(log).read_text()
    assert f"runs/{stage.info.run_id}/artifacts/artifact/report/stage.log?" in note
