"""HumanEval (MIT licence, from the hub): programs against its hidden tests, in the sandbox."""

from evaluation.programs import process_fenced, process_results  # noqa: F401
from evaluation.scoring import every_answer, mean_of_lists  # noqa: F401
