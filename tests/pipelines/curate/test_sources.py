"""Rows of sources at an address: from the store to the split, named by their address, never by their copy."""

from __future__ import annotations

import json
import re
import sqlite3

import pytest
import remote_stores
import toys

from pipelines.base.errors import DataError
from pipelines.curate import run as stage
from pipelines.curate import sources
from pipelines.data import dataset, remote
from pipelines.recipe.read import read_recipe
from pipelines.recipe.settings import Source
from pipelines.stage.report import Report
from tasks import keys


@pytest.fixture
def web(home):
    remote.forget()
    with remote_stores.web() as served:
        yield served


def lines(first, last):
    rows = [
        {"prompt": f"what is {i} plus {i}?", "answer": str(2 * i), "verifier": "number"} for i in range(first, last)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def test_records_of_files_at_addresses(web, tmp_path):
    web.files |= {"/a.jsonl": lines(0, 30), "/b.csv": b"prompt,answer\nwhat is one?,1\nwhat is two?,2\n"}
    listed = [{"kind": "file", "path": f"{web.url}/{name}"} for name in ("a.jsonl", "b.csv")]
    recipe = read_recipe(toys.recipe(tmp_path, curate={"sources": listed, "splits": {"train": 1.0}}))
    out = tmp_path / "out"
    out.mkdir()
    stage.run(recipe.curate, recipe.model, out=out, report=Report(tmp_path / "w"), seed=0)
    records = dataset.read_split(out, "train")  # one split: uids hold the server's port, and few rows can miss another
    assert {record.source for record in records} == {f"{web.url}/a.jsonl", f"{web.url}/b.csv"} and len(records) == 32
    assert {path for method, path, _ in web.requests if method == "GET"} == {"/a.jsonl", "/b.csv"}


def test_a_damaged_file_is_named_by_its_address(web):
    web.files["/a.jsonl.gz"] = b"no gzip at all"
    with pytest.raises(DataError, match=re.escape(f"{web.url}/a.jsonl.gz: it is not gzip")):
        list(sources.rows(Source(kind="file", path=f"{web.url}/a.jsonl.gz")))


def test_a_local_address_is_a_path(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(0, 3))
    assert len(list(sources.rows(Source(kind="file", path=f"file://{tmp_path}/*.jsonl")))) == 3


def test_records_of_a_query(home, tmp_path):
    """Bytes that are no text cost their row; the same rows give the same key, another row another one."""
    remote.forget()
    with sqlite3.connect(tmp_path / "rows.db") as store:
        store.execute("CREATE TABLE sums (question TEXT, answer INTEGER, note BLOB)")
        rows = [(f"what is {i} and {i}?", 2 * i, b"\xff" if i == 7 else None) for i in range(30)]
        store.executemany("INSERT INTO sums VALUES (?, ?, ?)", rows)
    store.close()
    source = {"kind": "sql", "path": f"sqlite:///{tmp_path}/rows.db", "verifier": "number"}

    def read(query):
        listed = [{**source, "query": query}]
        return read_recipe(toys.recipe(tmp_path, curate={"sources": listed}))

    recipe = read("SELECT * FROM sums")
    out = tmp_path / "out"
    out.mkdir()
    stage.run(recipe.curate, recipe.model, out=out, report=Report(tmp_path / "w"), seed=0)
    records = [*dataset.read_split(out, "train"), *dataset.read_split(out, "heldout")]
    assert len(records) == 29 and {record.source for record in records} == {source["path"]}
    (bad,) = [json.loads(line) for line in (out / "report/quarantine.jsonl").read_text().splitlines()]
    assert bad["reason"] == "a lone surrogate" and bad["file"] == "rows.jsonl"
    parts = keys.key_parts(recipe, "curate", {})
    assert parts["files"]["sources.0/rows.jsonl"].startswith("sha256:")
    assert source["path"] not in json.dumps(parts["settings"]) and parts["where"]["sources.0/rows.jsonl"]
    with pytest.raises(DataError, match=r"^curate\.sources\.0\.query: the database refuses it"):
        keys.key_parts(read("SELECT * FROM products"), "curate", {})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"query": "SELECT 1"}, "needs `query`, and the database's address"),
        ({"path": "sqlite:///x"}, "needs `query`, and the database's address"),
        ({"path": "sqlite:///x", "url_env": "X", "query": "SELECT 1"}, "needs `query`, and the database's address"),
        ({"path": "sqlite:///x", "query": "SELECT 1", "size": 5}, "write LIMIT in it"),
        ({"kind": "file", "path": "x.jsonl", "query": "SELECT 1"}, "query is read of sources of kind sql"),
    ],
)
def test_a_query_has_one_address(fields, problem):
    with pytest.raises(ValueError, match=re.escape(problem)):
        Source(**{"kind": "sql", **fields})


@pytest.mark.slow
@pytest.mark.server
def test_a_run_reads_from_s3_and_keeps_no_secret(tmp_path, monkeypatch):
    """`plan` moves no contents; a run fetches once; what changed there is read again; nothing that is stored holds the keys."""
    home = tmp_path / "home"
    with remote_stores.s3(monkeypatch) as s3:
        s3.mkdir("bucket")
        s3.pipe({"bucket/sums/a.jsonl": lines(0, 40), "bucket/sums/b.jsonl": lines(40, 80)})
        recipe = toys.recipe(
            tmp_path, curate={"sources": [{"kind": "file", "path": "s3://bucket/sums/*.jsonl"}]}, evaluate=None
        )
        refused = toys.whetstone("plan", str(recipe), "--set", "curate.sources.0.path=s3://bucket/none.jsonl", home=home,
                                 check=False)  # fmt: skip
        assert refused.returncode != 0
        assert "curate.sources.0.path: there is no file s3://bucket/none.jsonl" in refused.stdout + refused.stderr
        toys.whetstone("plan", str(recipe), home=home)
        assert not list((home / "remote").glob("*/*.jsonl"))
        first = toys.whetstone("run", str(recipe), "--only", "curate", home=home)
        assert len(list((home / "remote").glob("*/*.jsonl"))) == 2
        again = toys.whetstone("run", str(recipe), "--only", "curate", home=home)
        assert "reuse  nothing it reads has changed" in again.stdout + again.stderr
        s3.pipe("bucket/sums/b.jsonl", lines(40, 90))
        planned = toys.whetstone("plan", str(recipe), "--only", "curate", home=home)
        assert "s3://bucket/sums/b.jsonl changed" in planned.stdout + planned.stderr
    (artifact,) = (home / "runs").glob("curate-*")
    train, held = dataset.read_split(artifact, "train"), dataset.read_split(artifact, "heldout")
    assert len(train) + len(held) == 80
    for text in [
        first.stdout,
        first.stderr,
        *(path.read_bytes().decode(errors="replace") for path in home.rglob("*") if path.is_file()),
    ]:
        assert remote_stores.SECRET not in text and remote_stores.KEY not in text
