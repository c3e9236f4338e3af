"""Planted bugs of curation: each is put into a copy of the tree, and the tests named beside it must fail there."""

from __future__ import annotations

import pytest
import toys
from test_sabotage import plant_and_test

HOSTILE = "tests/hostile/test_data.py"
STAGE = "tests/pipelines/curate/test_curate.py"
SIMILAR = "tests/pipelines/curate/test_similar.py"
FORMATS = "tests/pipelines/curate/test_formats.py"
PLANTED = {
    "n-gram decontamination is off": ("pipelines/curate/similar.py", "for g in self._grams(found) if g in self.grams), None)", "for g in [] if g in self.grams), None)", [SIMILAR]),
    "whole questions of a benchmark pass": ("pipelines/curate/similar.py", "        if task is not None:\n            return task\n", "", [STAGE, SIMILAR]),
    "a benchmark's wording counts as its content": ("pipelines/curate/similar.py", "if questions[task] >= 20 else questions[task]", "if questions[task] >= 20_000 else questions[task]", [STAGE, SIMILAR]),
    "near repeats are not verified": ("pipelines/curate/similar.py", "if both / (len(a) + len(b) - both) >= threshold:", "if True:", [SIMILAR]),
    "near repeats regardless of the answer": ("pipelines/curate/similar.py", "key = answers.astype(np.uint64).copy()", "key = np.zeros(len(answers), np.uint64)", [SIMILAR]),
    "bands that catch nothing": ("pipelines/curate/similar.py", "cost = 0.1 * caught[x < threshold]", "cost = 1e9 * caught[x < threshold]", [SIMILAR]),
    "splits by place in the file": ("pipelines/curate/run.py", "writers[split_of(problem.uid,", "writers[split_of(str(number),", [STAGE]),
    "exact repeats stay": ("pipelines/curate/run.py", "if key in self.prompts:", "if False:", [STAGE]),
    "repeated uids stay": ("pipelines/curate/run.py", "if key in self.uids:", "if False:", [HOSTILE]),
    "quarantined rows are not counted": ("pipelines/curate/card.py", "        self.quarantined += 1\n", "", [STAGE]),
    "reasons are not counted": ("pipelines/curate/card.py", "len(self.reasons) < REASONS else \"other\"] += 1", "len(self.reasons) < REASONS else \"other\"] += 0", [HOSTILE]),
    "the line number is off by one": ("pipelines/curate/formats.py", "yield Row(name, number, None, error, sample(line))", "yield Row(name, number - 1, None, error, sample(line))", [HOSTILE]),
    "invalid UTF-8 is replaced": ("pipelines/curate/values.py", "        return raw.decode()\n", "        return raw.decode(errors=\"replace\")\n", [HOSTILE]),
    "lone surrogates pass": ("pipelines/curate/values.py", "    if _SURROGATE_ESCAPE.search(text):\n", "    if False:\n", [HOSTILE]),
    "the last of repeated keys wins": ("pipelines/curate/values.py", "if len(members) < len(pairs):", "if False:", [HOSTILE]),
    "nesting is not bounded": ("pipelines/curate/values.py", "> MAX_DEPTH and (levels := depth(text)) > MAX_DEPTH:", "> 10**9 and (levels := depth(text)) > MAX_DEPTH:", [HOSTILE]),
    "content: null is text": ("pipelines/curate/mapping.py", "    if content is None:\n        raise RowError", "    if content is None:\n        return \"None\"\n        raise RowError", [HOSTILE]),
    "gold answers are not checked": ("pipelines/curate/mapping.py", "        if not verdict.correct:\n", "        if False:\n", [STAGE]),
    "a growing file is followed": ("pipelines/data/files.py", "        snapshot.check_unchanged()\n", "", [HOSTILE]),
    "bombs unpack": ("pipelines/data/files.py", "if self.count > self.limit:", "if False:", [HOSTILE]),
    "long rows are read whole": ("pipelines/data/files.py", "handle.readline(limit + 2):\n        number", "handle.readline():\n        number", [FORMATS]),
}  # fmt: skip


@pytest.mark.parametrize("bug", PLANTED)
def test_the_line_to_sabotage_is_still_there(bug):
    path, correct, planted, tests = PLANTED[bug]
    assert (toys.ROOT / path).read_text().count(correct) == 1 and correct != planted
    assert all((toys.ROOT / test.split("::")[0]).exists() for test in tests)


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_caught(bug, tmp_path):
    plant_and_test(bug, *PLANTED[bug], tmp_path)
