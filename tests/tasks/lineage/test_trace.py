"""From scores to rows on a real run: the chain is whole, each kind of tampering is named, rows tell their story."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import homes
import pytest
import toys
from html_pages import check

from pipelines.base.errors import UserError
from tasks.environment import runs_folder
from tasks.lineage import rows
from tasks.lineage import trace as lineage
from tasks.store.artifacts import all_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A home whose run went through curation, SFT and RLVR for real; its evaluation is written, as lm-eval takes long to start."""
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("lineage")
    patch.setenv("WHETSTONE_HOME", str(folder / "home"))
    recipe = toys.recipe(folder)
    patch.chdir(folder)
    yield make(folder, recipe)
    patch.undo()


def make(folder: Path, recipe: Path) -> dict:
    """Stages run in this process and published as the task layer does."""
    from pipelines.curate.run import run as curate
    from pipelines.recipe.read import read_recipe
    from pipelines.rlvr.train import Trainer
    from pipelines.sft.run import Trainer as Sft
    from pipelines.stage.report import Report
    from tasks import keys
    from tasks.store import artifacts, index

    read, run_id, made = read_recipe(recipe, ["sft.steps=6", "rlvr.steps=3"]), "ab" * 16, {}

    def publish(stage: str, out: Path, inputs: dict):
        parts = keys.key_parts(read, stage, {name: a.digest for name, a in inputs.items()})
        about = {"parts": parts, "numbers": {}, "seconds": 3.0, "recipe": "toy", "run_id": None, "pipeline_run": run_id}
        made[stage] = artifacts.put(out, runs_folder(), stage, keys.stage_key(parts), about)

    work = folder / "work"
    runs_folder().mkdir(parents=True)
    for stage in ("curate", "sft", "rlvr"):
        (work / stage / "out").mkdir(parents=True)
    curate(read.curate, read.model, out=work / "curate/out", report=Report(work / "curate"), seed=0)
    publish("curate", work / "curate/out", {})
    data = made["curate"].path
    report = Report(work / "sft", committed=True)
    Sft(read.sft, read.model, data=data, out=work / "sft/out", work=work / "sft", report=report, seed=0).run()
    publish("sft", work / "sft/out", {"data": made["curate"]})
    Trainer(
        read.rlvr, read.model, start=str(made["sft"].path / "model"), data=data, out=work / "rlvr/out", work=work / "rlvr",
        report=Report(work / "rlvr", committed=True), seed=0,
    ).run()  # fmt: skip
    publish("rlvr", work / "rlvr/out", {"data": made["curate"], "sft": made["sft"]})
    scores = [[1.0, 0.0], [1.0, 1.0]]
    cell = {"value": 0.75, "low": 0.5, "high": 1.0, "n": 2}
    answers = work / "evaluate/out"
    (answers / "samples/rlvr").mkdir(parents=True)
    (answers / "samples/rlvr/sums.jsonl").write_text(homes.log_lines(scores))
    (answers / "results.json").write_text(
        json.dumps({"evaluation": {"rlvr": {"sums": {"pass@1": cell}}}, "differences": {}})
    )
    publish("evaluate", answers, {"sft": made["sft"], "rlvr": made["rlvr"]})
    stages = {
        s: {"status": "ran", "kind": a.stage, "key": a.key, "seconds": 3.0, "artifact": str(a.path)}
        for s, a in made.items()
    }
    index.start(run_id, "toy", "toy", {})
    index.end(run_id, "FINISHED", {"stages": stages, "evaluation": {}, "differences": {}, "seconds": 9.0}, {})
    return made


@pytest.fixture
def home_copy(trained, tmp_path, monkeypatch):
    """A copy that a test may damage: stage → folder."""
    shutil.copytree(runs_folder().parent, tmp_path / "home", symlinks=True)
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    return {stage: runs_folder() / a.path.name for stage, a in trained.items()}


def titles(graph: lineage.Graph) -> set[str]:
    return {node.title.partition("-")[0].partition(":")[0] for node in graph.nodes.values()}


def test_a_score_leads_to_its_rows(trained):
    graph = lineage.trace("rlvr/sums/pass@1")
    assert graph.faults == [] and titles(graph) >= {
        "rlvr/sums/pass@1",
        "evaluate",
        "rlvr",
        "sft",
        "curate",
        "reasoning_gym",
        "base",
    }
    score = next(iter(graph.nodes.values()))
    assert "the stored answers give the same value" in score.about
    model, data = (f"{s}-{trained[s].key}" for s in ("rlvr", "curate"))
    assert (model, data) in graph.edges and (f"sft-{trained['sft'].key}", data) in graph.edges
    assert any("drew" in line for line in graph.nodes[model].about)
    assert any("split train" in line for line in graph.nodes[data].about)


def test_a_guided_score_leads_to_both_models_and_a_searched_one_to_what_scored(home_copy):
    folder, names = home_copy["evaluate"], {stage: path.name for stage, path in home_copy.items()}
    body = json.loads((folder / "results.json").read_text())
    body["evaluation"]["rlvr-w2"] = body["evaluation"]["rlvr"]
    body["evaluation"]["rlvr-best8"] = body["evaluation"]["rlvr"]
    body["guided"] = {"rlvr-w2": {"model": "rlvr", "base": "sft", "weight": 2.0}}
    body["searched"] = {"rlvr-best8": {"model": "rlvr", "scorer": "sft", "strategy": 0}}
    (folder / "results.json").unlink()
    (folder / "results.json").write_text(json.dumps(body))
    for column in ("rlvr-w2", "rlvr-best8"):
        shutil.copytree(folder / "samples" / "rlvr", folder / "samples" / column)
    to_base = (names["evaluate"], names["sft"])
    for column in ("rlvr-w2", "rlvr-best8"):
        edges = lineage.trace(f"{column}/sums/pass@1").edges
        assert to_base in edges and (names["evaluate"], names["rlvr"]) in edges
    assert to_base not in lineage.trace("rlvr/sums/pass@1").edges


@pytest.mark.parametrize("name", ["toy", "abab", "abab:rlvr/sums/pass@1", "rlvr/sums/pass_at_1", "model"])
def test_every_kind_of_name(trained, name):
    graph = lineage.trace(str(trained["rlvr"].path / "model") if name == "model" else name)
    assert {"rlvr", "sft", "curate"} <= titles(graph) and graph.faults == []


def test_misspelt_names(trained):
    for name, hint in (
        ("rlvr/sum/pass@1", "rlvr/sums/pass@1"),
        ("tyo", "toy"),
        ("rlvr/sums/pass@9", "rlvr/sums/pass@1"),
    ):
        with pytest.raises(UserError, match="Did you mean") as caught:
            lineage.trace(name)
        assert hint in str(caught.value)


def faults(name: str = "rlvr/sums/pass@1") -> str:
    return "\n".join(lineage.trace(name).faults)


def test_a_changed_file_is_named(home_copy):
    path = next((home_copy["sft"] / "model").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-4] + b"\x00\x01\x02\x03")
    assert f"{home_copy['sft'].name}: model/{path.name} is damaged" in faults()


def test_a_manifest_that_was_rewritten_to_fit_is_named_by_its_reader(home_copy):
    """The forger recomputes every digest of the data: only what its readers recorded still tells."""
    from pipelines.base.files import write_manifest

    manifest = homes.manifest(home_copy["curate"])
    (home_copy["curate"] / "data.json").write_text("{}")
    write_manifest(home_copy["curate"], {k: v for k, v in manifest.items() if k not in ("digest", "files")})
    text = faults()
    assert f"{home_copy['rlvr'].name}: the data that it read" in text and "holds other contents" in text


@pytest.mark.parametrize(
    ("stage", "name"), [("curate", "dropped.jsonl"), ("curate", "card.json"), ("rlvr", "draws.jsonl")]
)
def test_a_changed_record_of_rows_is_named_though_no_stage_reads_it(home_copy, stage, name):
    with (home_copy[stage] / "report" / name).open("a") as file:
        file.write('{"step": 9, "uid": "u", "rewards": {}}\n')
    assert f"{home_copy[stage].name}: report/{name} is damaged" in faults()


def test_a_score_that_its_answers_do_not_give_is_named(home_copy):
    from pipelines.base.files import write_manifest

    folder = home_copy["evaluate"]
    manifest = homes.manifest(folder)
    (folder / "results.json").write_text((folder / "results.json").read_text().replace("0.75", "0.95"))
    write_manifest(folder, {k: v for k, v in manifest.items() if k not in ("digest", "files")})
    assert "the stored answers give 0.7500" in faults()


def test_settings_that_were_rewritten_and_files_that_were_added_are_named(home_copy):
    manifest = homes.manifest(home_copy["rlvr"])
    manifest["parts"]["seed"] = 7
    (home_copy["rlvr"] / "manifest.json").write_text(json.dumps(manifest))
    (home_copy["sft"] / "model" / "extra.py").write_text("print()")
    text = faults()
    assert (
        "what it says it was made of does not give its key" in text and "model/extra.py is not in its manifest" in text
    )


def test_what_is_gone_is_named(home_copy):
    shutil.rmtree(home_copy["sft"])
    assert f"{home_copy['rlvr'].name}: the sft that it read" in faults()
    assert "its sft artifact is not here" in faults("toy")


def test_drawings(trained):
    from evaluation.pages import lineage as pages

    body = lineage.trace("rlvr/sums/pass@1").body()
    tree = check(pages.html(body))
    assert sum(tag == "rect" for tag, _ in tree.tags) == len(body["nodes"]) and sum(
        t == "path" for t, _ in tree.tags
    ) == len(body["edges"])
    diagram = pages.mermaid(body)
    assert diagram.count("-->") == len(body["edges"]) and diagram.startswith("flowchart TD")
    lines = list(pages.tree(body))
    assert lines[-1] == "every file is what its manifest says" and sum("see above" in line for line in lines) >= 1
    body["nodes"][0]["title"] = body["nodes"][0]["faults"] = "<script>alert(1)</script>\x1b[2J"
    body["nodes"][0]["faults"] = [body["nodes"][0]["title"]]
    check(pages.html(body))
    assert "<script>" not in pages.mermaid(body) and "\x1b" not in "".join(pages.tree(body))


def drawn_uid(trained) -> str:
    first = json.loads((trained["rlvr"].path / "report/draws.jsonl").read_text().splitlines()[0])
    return next(iter(first["rewards"]))


def test_a_row_tells_its_story(trained):
    uid = drawn_uid(trained)
    body = rows.describe(uid[:10])
    assert body["uid"] == uid and body["row"]["prompt"][-1]["content"].startswith("palindrome")
    place = body["data"][0]
    assert place["split"] == "train" and any("no exact duplicate" in why for why in place["kept"])
    assert place["source"]["kind"] == "reasoning_gym" and body["trained"] == [f"sft-{trained['sft'].key}"]
    draw = body["draws"][0]
    assert draw["model"] == f"rlvr-{trained['rlvr'].key}" and draw["complete"] and draw["steps"][0]["step"] == 1
    assert len(draw["steps"][0]["rewards"]) == 4, "a group of four"


def test_models_that_saw_a_row(trained):
    uid = drawn_uid(trained)
    how = {m["model"].partition("-")[0]: m["how"] for m in rows.taint(uid)["models"]}
    assert set(how) == {"sft", "rlvr"} and "in its training split" in how["sft"] and "drew it" in how["rlvr"]
    from pipelines.data import dataset

    heldout = dataset.read_split(trained["curate"].path, "heldout")[0].uid
    assert rows.taint(heldout)["models"] == []
    drawn = lineage.rows_drawn(trained["rlvr"].path)
    undrawn = next(p.uid for p in dataset.read_split(trained["curate"].path, "train") if p.uid not in drawn)
    how = {m["model"].partition("-")[0]: m["how"] for m in rows.taint(undrawn)["models"]}
    assert how["rlvr"].startswith("made from sft-")


@pytest.mark.slow
def test_a_row_that_was_dropped_and_one_that_is_not_there(trained, home_copy):
    line = {
        "step": "contaminated",
        "uid": "f" * 32,
        "source": "s",
        "reason": "overlaps with a question of sums",
        "prompt": "p",
    }
    (home_copy["curate"] / "report/dropped.jsonl").write_text(json.dumps(line) + "\n")
    body = rows.describe("ffff")
    assert body["row"] is None and body["data"][0]["reason"] == "overlaps with a question of sums"
    with pytest.raises(UserError, match="none of the 1 curated"):
        rows.describe("zz")
    with pytest.raises(UserError, match="rows start so"):
        rows.describe("")


def test_an_overlap_with_a_benchmark_is_shown(trained, home_copy):
    uid = drawn_uid(trained)
    question = rows.describe(uid)["row"]["prompt"][-1]["content"]
    answers = {"doc_id": 0, "doc": {"question": question}, "scores": [1.0], "resps": [["x"]]}
    (home_copy["evaluate"] / "samples/rlvr/sums.jsonl").write_text(json.dumps(answers) + "\n")
    assert rows.describe(uid)["overlaps"] == [{"benchmark": "sums", "question": question}]


def test_the_commands(trained, tmp_path, capsys):
    from flows.cli import lineage as command
    from flows.cli import main as cli
    from flows.cli import rows as rows_command

    page = tmp_path / "page.html"
    assert command.command(cli.parser().parse_args(["lineage", "toy", "--html", str(page)])) == 0
    assert "every file is what its manifest says" in capsys.readouterr().out
    check(page.read_text())
    assert command.command(cli.parser().parse_args(["lineage", "toy", "--json"])) == 0
    assert json.loads(capsys.readouterr().out)["faults"] == []
    uid = drawn_uid(trained)
    for options, words in (([], "because: no exact duplicate"), (["--taint"], "drew it in"), (["--json"], '"draws"')):
        assert rows_command.command(cli.parser().parse_args(["rows", uid, *options])) == 0
        assert words in capsys.readouterr().out
    assert len(all_of(runs_folder())) == 4
