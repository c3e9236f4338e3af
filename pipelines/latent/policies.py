"""The policy that the settings of a stage ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipelines.engine.distribution import generator
from pipelines.latent.gate_files import refuse_gates
from pipelines.latent.hybrid import Hybrid, gates_of
from pipelines.latent.policy import LatentPolicy
from pipelines.latent.settings import LatentRl
from pipelines.latent.superposed import Superposed


def policy_of(
    network: Any, tokenizer: Any, settings: LatentRl, *, origin: str | None, seed: int, dtype: str
) -> LatentPolicy:
    """The policy that trains; gates that stand beside its model are read.

    Args:
        network: a causal language model of transformers, on its device.
        origin: folder or hub name of the model; None for a fresh one.
        seed: of fresh gates.

    Raises:
        ModelError: the model has gates, and the settings would drop them, or gates that do not fit it.
    """
    if not settings.latent:
        refuse_gates(origin, "latent_rl.latent", "latent: false")
        return Hybrid(network, None, dtype)
    if settings.superposed is not None:
        refuse_gates(origin, "latent_rl.superposed", "superposed")
        closing = tokenizer.encode(settings.answer_start, add_special_tokens=False)[0]
        return Superposed(network, settings.superposed, closing, dtype)
    table = network.get_input_embeddings()
    folder = None if origin is None else Path(origin).expanduser()
    gates = gates_of(folder, table.embedding_dim, settings.gates, generator(torch.device("cpu"), seed, "gates"))
    return Hybrid(network, gates.to(table.weight.device), dtype)
