"""The section `launch`: what is refused before anything runs, and that none of it is in a key."""

from __future__ import annotations

import pytest
import toys

from pipelines.base.errors import RecipeError
from pipelines.recipe.read import read_recipe
from tasks import keys

QUICKSTART = toys.ROOT / "recipes" / "quickstart.yaml"


def read(launch: str, *overrides: str):
    return read_recipe(QUICKSTART, [f"launch={launch}", *overrides])


@pytest.mark.parametrize(
    ("launch", "field", "said"),
    [
        ("{stages: {rlvrr: {}}}", "launch.stages.rlvrr", "no stage of this name"),
        ("{stages: {rlvr: {nodes: 2}}}", "launch.interface", "2 machines"),
        ("{stages: {rlvr: {}}, requeue: 3}", "launch.stages.rlvr.time", "time limit"),
        ("{stages: {curate: {nodes: 2}}, interface: lo}", "launch.stages.curate.nodes", "runs on one machine"),
        ("{stages: {rlvr: {time: 1d}}}", "launch.stages.rlvr.time", ""),
        ("{stages: {rlvr: {memory: 20 GB}}}", "launch.stages.rlvr.memory", ""),
        ("{stages: {}}", "launch.stages", ""),
        ("{stages: {rlvr: {}}, kind: kubernetes}", "launch.kubernetes", "required"),
        ("{stages: {rlvr: {}}, kind: ray, partition: gpu}", "launch.partition", "kind: slurm"),
        ("{stages: {rlvr: {}}, ray: {}}", "launch.ray", "kind: ray"),
        ("{stages: {rlvr: {}}, kind: ray, ray: {address: 'file:///x'}}", "launch.ray.address", ""),
        (
            "{stages: {rlvr: {}}, kind: kubernetes, kubernetes: {image: a, claim: b, mount: c}}",
            "launch.kubernetes.mount",
            "",
        ),
        ("{stages: {rlvr: {}}, skypilot: {gpu: H100}}", "launch.skypilot", "kind: skypilot"),
        ("{stages: {rlvr: {gpus: 8}}, kind: skypilot}", "launch.skypilot.gpu", "by kind"),
        ("{stages: {rlvr: {}}, partition: ''}", "launch.partition", "empty"),
        ("""{stages: {rlvr: {}}, account: "a\\tb"}""", "launch.account", "one line"),
        ("""{stages: {rlvr: {}}, options: ["--comment='x"]}""", "launch.options.0", "quote"),
    ],
)
def test_what_cannot_be_launched_is_refused(launch, field, said):
    with pytest.raises(RecipeError) as caught:
        read(launch)
    assert any(problem.field.startswith(field) and said in str(problem) for problem in caught.value.problems)


def test_more_processes_than_gpus_are_refused():
    with pytest.raises(RecipeError, match=r"launch\.stages\.rlvr\.gpus"):
        read("{stages: {rlvr: {gpus: 2}}}", "rlvr.processes=4")
    assert read("{stages: {rlvr: {gpus: 4}}}", "rlvr.processes=4").launch is not None


@pytest.mark.parametrize("time", ["90", "12:00:00", "2-00", "2-12:30"])
def test_times_are_slurms(time):
    assert read(f"{{stages: {{rlvr: {{time: '{time}'}}}}}}").launch.stages["rlvr"].time == time


def test_where_a_stage_runs_is_in_no_key():
    here, there = read_recipe(QUICKSTART), read("{stages: {curate: {cpus: 2}}}")
    assert keys.key_parts(here, "curate", {}) == keys.key_parts(there, "curate", {})
