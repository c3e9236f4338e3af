"""MBPP (CC BY 4.0, from the hub): programs against its asserts, in the sandbox."""

from evaluation.programs import process_fenced, process_results  # noqa: F401
from evaluation.scoring import every_answer, mean_of_lists  # noqa: F401

SHOWN = (2, 3, 4)
"""Ids of the paper's three examples (2108.07732)."""


def examples():
    """The paper's examples, which every question begins with."""
    from datasets import load_dataset

    prompts = load_dataset("google-research-datasets/mbpp", "full", split="prompt")
    return [row for row in prompts if row["task_id"] in SHOWN]
