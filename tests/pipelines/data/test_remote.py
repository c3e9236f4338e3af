"""Files of stores: a version without moving data, one copy, never half a one, and what to do where it cannot be read."""

from __future__ import annotations

import base64
import gzip
import hashlib
import sys

import hub_server
import pytest
import remote_stores

from pipelines.base.errors import DataError
from pipelines.data import remote

ROWS = b'{"question": "1 + 1 =", "answer": "2"}\n'
PACKED = gzip.compress(ROWS)


@pytest.fixture(autouse=True)
def _anew(home):
    remote.forget()


@pytest.fixture
def s3(monkeypatch):
    with remote_stores.s3(monkeypatch) as store:
        store.mkdir("bucket")
        yield store


@pytest.fixture
def web():
    with remote_stores.web() as served:
        yield served


def contents(url):
    return {file.name: copy.read_bytes() for copy, file in remote.fetch(url).items()}


def refusal(url, call=remote.listing):
    with pytest.raises(DataError) as caught:
        call(url)
    (problem,) = caught.value.problems
    assert problem.field == "curate.sources.path" and problem.fix
    return str(problem)


@pytest.mark.slow
def test_objects_of_s3_by_name_and_by_pattern(s3, home):
    s3.pipe({"bucket/a/x.jsonl": ROWS, "bucket/a/deep/y.jsonl.gz": PACKED, "bucket/b.csv": b"q,a\n"})
    assert contents("s3://bucket/a/x.jsonl") == {"x.jsonl": ROWS}
    assert contents("s3://bucket/a/**/*.jsonl*") == {"x.jsonl": ROWS, "deep/y.jsonl.gz": PACKED}
    assert contents("s3://bucket/?.csv") == {"b.csv": b"q,a\n"}
    assert "there is no file s3://bucket/none.jsonl" in refusal("s3://bucket/none.jsonl")
    assert "there is no file s3://nobucket/x.jsonl" in refusal("s3://nobucket/x.jsonl")
    assert "no file at s3://bucket/none/*.jsonl" in refusal("s3://bucket/none/*.jsonl")
    assert "s3://bucket/a is a folder. Name files: s3://bucket/a/*.jsonl" in refusal("s3://bucket/a")


@pytest.mark.slow
def test_s3_says_what_to_set_where_nobody_asks(s3, monkeypatch):
    s3.pipe("bucket/x.jsonl", ROWS)
    type(s3).clear_instance_cache()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    told = refusal("s3://bucket/x.jsonl")
    assert "may not be read with these credentials" in told and "AWS_ACCESS_KEY_ID" in told


@pytest.mark.slow
def test_objects_of_google_by_name_and_by_pattern(monkeypatch):
    with remote_stores.gcs(monkeypatch) as store:
        for name, body in {"a/x.jsonl": ROWS, "a/deep/y.jsonl": ROWS * 2, "b.csv": b"q,a\n"}.items():
            store.pipe_file(f"bucket/{name}", body)
        assert contents("gs://bucket/a/x.jsonl") == contents("gcs://bucket/a/x.jsonl") == {"x.jsonl": ROWS}
        assert contents("gs://bucket/a/**/*.jsonl") == {"x.jsonl": ROWS, "deep/y.jsonl": ROWS * 2}
        assert contents("gs://bucket/?.csv") == {"b.csv": b"q,a\n"}
        (before,) = remote.listing("gs://bucket/a/x.jsonl")
        assert before.version == f"md5Hash:{base64.b64encode(hashlib.md5(ROWS).digest()).decode()}:{len(ROWS)}"
        store.pipe_file("bucket/a/x.jsonl", ROWS.replace(b"2", b"3"))
        remote.forget()
        assert remote.listing("gs://bucket/a/x.jsonl")[0].version != before.version
        assert contents("gs://bucket/a/x.jsonl") == {"x.jsonl": ROWS.replace(b"2", b"3")}
        assert "there is no file gs://bucket/none.jsonl" in refusal("gs://bucket/none.jsonl")
        assert "there is no file gs://nobucket/x.jsonl" in refusal("gs://nobucket/x.jsonl")
        assert "no file at gs://bucket/none/*.jsonl" in refusal("gs://bucket/none/*.jsonl")
        assert "gs://bucket/a is a folder. Name files: gs://bucket/a/*.jsonl" in refusal("gs://bucket/a")


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 403])
def test_google_says_what_to_set_where_the_wrong_one_asks(web, monkeypatch, status, caplog):
    web.refuses = status
    with remote_stores.google_at(monkeypatch, web.url):
        told = refusal("gs://bucket/x.jsonl")
    assert "may not be read with these credentials" in told and "GOOGLE_APPLICATION_CREDENTIALS" in told
    assert "/storage/v1/b/bucket/o/x.jsonl" in {
        path for _, path, _ in web.requests
    }  # gcsfs asks for a folder meanwhile
    assert [record for record in caplog.records if record.name == "gcsfs"] == [], "a traceback would be printed"


def test_a_version_changes_with_the_contents_alone_and_is_told_without_them(web):
    web.files["/x.jsonl"] = ROWS
    (before,) = remote.listing(f"{web.url}/x.jsonl")
    assert {method for method, *_ in web.requests} == {"HEAD"}
    assert before.size == len(ROWS) and before.version.startswith("ETag:")
    remote.forget()
    assert remote.listing(f"{web.url}/x.jsonl") == [before]
    web.files["/x.jsonl"] = ROWS.replace(b"2", b"3")
    assert remote.listing(f"{web.url}/x.jsonl") == [before]  # asked a moment ago
    remote.forget()
    assert remote.listing(f"{web.url}/x.jsonl")[0].version != before.version


@pytest.mark.parametrize("tag", [None, 'W/"same"'])
def test_a_store_without_strong_tags_is_read_to_learn_the_version(tag):
    with remote_stores.web(tag) as web:
        versions = set()
        for body in (ROWS, ROWS.replace(b"2", b"3"), ROWS):
            web.files["/x.jsonl"] = body
            remote.forget()
            assert contents(f"{web.url}/x.jsonl") == {"x.jsonl": body}
            versions |= {remote.listing(f"{web.url}/x.jsonl")[0].version}
        assert len(versions) == 2 and all(version.startswith("sha256:") for version in versions)
        web.files.clear()
        assert contents(f"{web.url}/x.jsonl") == {"x.jsonl": ROWS}  # the copy of the version that was told last


def test_a_file_is_fetched_once_and_goes_on_where_it_stopped(web, monkeypatch):
    monkeypatch.setattr(remote, "CHUNK", 1000)
    url, body = f"{web.url}/x.jsonl", ROWS * 200
    web.files["/x.jsonl"], web.breaks_at = body, 3500
    assert "a fetch continues where it stopped" in refusal(url, remote.fetch)
    (file,) = remote.listing(url)
    assert not file.place.exists()
    (part,) = file.place.parent.glob("*.part")
    have = part.stat().st_size
    assert 0 < have <= 3500 and part.read_bytes() == body[:have]
    web.breaks_at, web.requests = None, []
    told = []
    assert remote.fetch(url, lambda done, total: told.append((done, total))) == {file.place: file}
    assert file.place.read_bytes() == body and not part.exists()
    ranges = [wanted for method, _, wanted in web.requests if method == "GET"]
    assert ranges[0].startswith(f"bytes={have}-")
    assert told[-1] == (len(body), len(body)) and [done for done, _ in told] == sorted(done for done, _ in told)
    web.requests = []
    remote.fetch(url)
    assert web.requests == []


def test_a_file_that_changes_while_it_is_fetched_is_refused(web):
    web.files["/x.jsonl"] = ROWS
    remote.listing(f"{web.url}/x.jsonl")
    web.after = lambda path: web.files.update({path: ROWS.replace(b"2", b"3")})
    assert "changed while it was fetched" in refusal(f"{web.url}/x.jsonl", remote.fetch)
    assert not list(remote.listing(f"{web.url}/x.jsonl")[0].place.parent.glob("*.jsonl*"))


def test_what_a_server_refuses(web):
    web.status["/x.jsonl"] = 403
    assert "may not be read with these credentials" in refusal(f"{web.url}/x.jsonl")
    assert "there is no file" in refusal(f"{web.url}/y.jsonl")
    web.server.server_close()
    assert "Check the network" in refusal("http://127.0.0.1:9/x.jsonl")


def test_what_no_library_reads(monkeypatch):
    assert "ss3:// is no protocol that fsspec knows" in refusal("ss3://bucket/x.jsonl")
    assert "a chain of file systems" in refusal("zip://x::s3://bucket/x.jsonl")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    assert refusal("gs://bucket/x.jsonl").endswith("Run: pip install gcsfs")


def test_another_process_takes_the_version_that_was_told(web):
    url = f"{web.url}/x.jsonl"
    web.files["/x.jsonl"] = ROWS
    told = remote.pinned(url)
    remote.forget()
    web.files["/x.jsonl"] = ROWS.replace(b"2", b"3")
    remote.pin(url, told)
    assert "changed while it was fetched" in refusal(url, remote.fetch)


def test_a_file_of_the_hub(monkeypatch):
    from huggingface_hub import HfFileSystem, constants

    with hub_server.running() as hub:
        hub.datasets["ann/sums"] = {"data/train.jsonl": ROWS, "data/test.jsonl": ROWS * 2, "README.md": b"# sums"}
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        HfFileSystem.clear_instance_cache()
        assert contents("hf://datasets/ann/sums/data/train.jsonl") == {"train.jsonl": ROWS}
        assert contents("hf://datasets/ann/sums/data/*.jsonl") == {"train.jsonl": ROWS, "test.jsonl": ROWS * 2}
        (file,) = remote.listing("hf://datasets/ann/sums/data/train.jsonl")
        assert file.version.startswith("blob_id:")
        assert "there is no file hf://datasets/ann/none" in refusal("hf://datasets/ann/none/x.jsonl")
        assert "Set HF_TOKEN" in refusal("hf://datasets/ann/sums/none.jsonl")
    HfFileSystem.clear_instance_cache()
