"""What counts as a repeat or a leak: runs of words, exact similarity, equal answers."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.curate import similar
from pipelines.curate.run import split_of

QUESTION = "a train leaves the old town at nine and meets another one after seven hours of travel"


@pytest.mark.parametrize(("words", "leaks"), [(8, True), (9, True), (7, False)])
def test_a_run_of_benchmark_words_inside_another_text_is_a_leak(words, leaks):
    run = " ".join(QUESTION.split()[2 : 2 + words])
    contamination = similar.Contamination(8, [("bench", QUESTION)])
    assert (contamination.hit(f"Consider this: {run.upper()}, and then say why!") == "bench") == leaks


def test_boards_with_the_same_letters_are_other_questions():
    contamination = similar.Contamination(8, [("lake", "A..O\n.O..\n....\n...G")])
    assert contamination.hit("A..O\n..O.\n....\n..G.") is None
    assert contamination.hit("A..O\n.O..\n....\n...G\n") == "lake"


def test_boards_under_the_same_instructions_are_other_questions():
    """All puzzles of Sokoban were one question: the same words, the same four goals."""
    about = "You are going to solve a puzzle: push the boxes to the goals. Answer with letters, such as LDURRUDL."
    one, other = "+ + + + +\n+ * @ X +\n+ + + + +", "+ + + + +\n+ X @ * +\n+ + + + +"
    contamination = similar.Contamination(8, [("sokoban", f"{about}\n{one}")] * 20)
    assert contamination.hit(f"{about}\n{one}") == "sokoban"
    assert contamination.hit(f"{about}\n{other}") is None


def test_letters_of_a_large_board_are_no_run_of_words():
    rows = ["A.O..O..", ".O...O.O", "O..O....", "..O..O.O", "O...O..G"]
    contamination = similar.Contamination(8, [("lake", "\n".join(rows))])
    assert contamination.hit("\n".join(rows)) == "lake"
    assert contamination.hit("\n".join(row[:-1] + "." + row[-1] for row in rows)) is None


def test_a_question_of_words_leaks_with_other_punctuation():
    contamination = similar.Contamination(8, [("bench", "What is 7 + 1?")])
    assert contamination.hit("what is 7 + 1") == "bench"


def test_candidates_are_verified_by_their_shingles():
    signatures = np.ones((3, 64), np.uint32)
    sets = {0: np.arange(10), 1: np.arange(10), 2: np.arange(8) + 5}
    repeats = similar.near_duplicates(
        similar.band_keys(signatures, np.zeros(3, np.uint64), 0.8), 0.8, lambda rows: sets
    )
    assert repeats == {1: 0}


def test_rows_with_other_answers_are_no_repeats():
    signatures = np.ones((3, 64), np.uint32)
    sets = dict.fromkeys(range(3), np.arange(10))
    answers = np.array([7, 8, 7], np.uint64)
    assert similar.near_duplicates(similar.band_keys(signatures, answers, 0.8), 0.8, lambda rows: sets) == {2: 0}


def test_nearly_all_pairs_over_the_threshold_are_candidates():
    draw = np.random.default_rng(1)
    minhash = similar.MinHash(64)
    caught = 0
    for _ in range(60):
        first = draw.integers(0, 2**32, 100, dtype=np.uint32)
        second = np.concatenate([first[:93], draw.integers(0, 2**32, 7, dtype=np.uint32)])  # Jaccard 0.87
        pair = np.stack([minhash(first), minhash(second)])
        caught += len(similar.candidate_pairs(similar.band_keys(pair, np.zeros(2, np.uint64), 0.8)))
    assert caught >= 50


def test_a_split_is_a_hash_of_the_uid_in_the_proportion_of_the_shares():
    splits = {"train": 0.7, "heldout": 0.3}
    names = [split_of(f"uid {number}", splits) for number in range(3000)]
    assert abs(names.count("train") / 3000 - 0.7) < 0.03
    assert names == [split_of(f"uid {number}", splits) for number in range(3000)]
