"""Planted bugs: each is put into a copy of the tree, and the tests named beside it must fail there."""

from __future__ import annotations

import hashlib

import pytest
from planted import check_clean, plant_and_test
from planted_bugs import PLANTED

SAMPLE = sorted(PLANTED, key=lambda bug: hashlib.sha256(bug.encode()).hexdigest())[:16]
"""Planted in the slow suite, the same every time; all of them are in the long one."""


@pytest.mark.slow
@pytest.mark.long
def test_without_a_bug_all_tests_pass():
    check_clean(PLANTED)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [b if b in SAMPLE else pytest.param(b, marks=pytest.mark.long) for b in PLANTED])
def test_planted_bug_is_caught(bug):
    plant_and_test(bug, *PLANTED[bug])
