"""The sections of a recipe as typed objects, to build one in code; docs/settings.md has their fields."""

from pipelines.contract.model_settings import Fresh, Model, Tokenizer
from pipelines.contract.sampling import Sampling
from pipelines.recipe.settings import (
    Curate,
    Decontaminate,
    Difficulty,
    Evaluate,
    NearDuplicates,
    Rlvr,
    Server,
    Sft,
    Source,
    Task,
    Tracking,
)
from pipelines.recipe.training import Optimizer

__all__ = [
    "Curate",
    "Decontaminate",
    "Difficulty",
    "Evaluate",
    "Fresh",
    "Model",
    "NearDuplicates",
    "Optimizer",
    "Rlvr",
    "Sampling",
    "Server",
    "Sft",
    "Source",
    "Task",
    "Tokenizer",
    "Tracking",
]
