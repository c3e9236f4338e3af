"""Model families through every stage (benchmarks/families.py): the sampler's log-probs are the trainer's in each."""

from __future__ import annotations

import pytest

from benchmarks import families

NATS = 1e-4


def check(name, folder, lora):
    base = families.checkpoint(families.FAMILIES[name], folder / "base")
    done = families.run(families.FAMILIES[name], base, folder, lora)
    assert done["trained"] > 0, "rewards differ, so there is something to train and to compare"
    assert done["mismatch"] < NATS
    assert done["differences"].keys() == {"sampler", "rows", "trees", "packed", "prefixes"}
    assert max(done["differences"].values()) < NATS, done["differences"]
    assert done["packed"] and done["evaluation_reads"]
    return done


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lora"), [("gemma2", False), ("qwen3 (not thinking)", True)])
def test_a_family_through_every_stage(tmp_path, name, lora):
    check(name, tmp_path, lora)


@pytest.mark.slow
@pytest.mark.parametrize("name", families.FAMILIES)
@pytest.mark.few(6, always=["llama", "gemma3", "mixtral", "gpt_oss"])
def test_every_family_through_every_stage(tmp_path, name):
    for lora in (False, True):
        folder = tmp_path / str(lora)
        folder.mkdir()
        check(name, folder, lora)


def test_the_page_has_every_family():
    page = families.DOCS.read_text()
    listed = page.split(families.START, 1)[1].split(families.END, 1)[0]
    names = [line.split("|")[1].strip() for line in listed.splitlines() if line.startswith("| ")][1:]
    assert names == list(families.FAMILIES)
