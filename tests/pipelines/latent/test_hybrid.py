"""The gates against the official formula, at their token end, and their gradient."""

from __future__ import annotations

import pytest
import torch
import toys

from pipelines.base.errors import ModelError
from pipelines.contract.sampling import Sampling
from pipelines.latent.gate_files import FILE, check_gates
from pipelines.latent.hybrid import Gates, Hybrid, gates_of, save_gates
from pipelines.latent.settings import GateSettings

OFFICIAL = {
    "embedding": [0.3, -1.2],
    "mixture": [0.5, 2.0],
    "gate_r": [[0.4, -0.2], [1.0, 0.3]],
    "gate_r_bias": [0.1, -0.5],
    "gate_i": [[-0.7, 0.6], [0.2, -0.9]],
    "gate_i_bias": [0.0, 0.25],
    "Lambda": [5.0, 7.5],
    "output": [0.3259967046534465, -1.1073379795240736],
    "embeds_ratio": 0.982998354236278,
}
"""`thinking_residual` of the official code's Qwen2Model, run in float64."""


def gates_with(values) -> Gates:
    """Gates with the official weights."""
    gates = Gates(2, GateSettings(), torch.Generator()).double()
    with torch.no_grad():
        gates.recurrence.weight.copy_(torch.tensor(values["gate_r"]))
        gates.recurrence.bias.copy_(torch.tensor(values["gate_r_bias"]))
        gates.admission.weight.copy_(torch.tensor(values["gate_i"]))
        gates.admission.bias.copy_(torch.tensor(values["gate_i_bias"]))
        gates.decay.copy_(torch.tensor(values["Lambda"]))
    return gates


def test_official_values():
    embedding, mixture = (torch.tensor(OFFICIAL[n], dtype=torch.float64) for n in ("embedding", "mixture"))
    read, share = gates_with(OFFICIAL)(embedding, mixture)
    assert read.tolist() == pytest.approx(OFFICIAL["output"], abs=1e-9)
    assert share.mean().item() == pytest.approx(OFFICIAL["embeds_ratio"], abs=1e-9)


def test_gates_start_near_the_token():
    """An open gate keeps between r_min and r_max of the token's embedding."""
    settings = GateSettings(r_min=0.9, r_max=0.95)
    gates = Gates(500, settings, torch.Generator().manual_seed(0))
    with torch.no_grad():
        gates.recurrence.bias.fill_(100.0)
        share = gates(torch.zeros(500), torch.zeros(500))[1]
    assert share.min() > 0.9 - 1e-4 and share.max() < 0.95 + 1e-4 and share.max() - share.min() > 0.045


def test_mixture_of_a_distribution():
    """sum p E / |p|; a single token is its own embedding, at any size of the table."""
    network = toys.model("llama")
    policy, table = Hybrid(network, None), network.get_input_embeddings().weight
    certain = torch.full((1, len(table)), -1e4)
    certain[0, 5] = 0.0
    assert torch.allclose(policy.mixture(certain, Sampling()), table[5:6], atol=1e-6)
    both = certain.clone()
    both[0, 7] = 0.0
    assert torch.allclose(policy.mixture(both, Sampling()), (table[5] + table[7])[None] / 2**0.5, atol=1e-6)
    warm = policy.mixture(torch.arange(len(table))[None] / 10, Sampling(temperature=0.5))
    p = (torch.arange(len(table)) / 5).softmax(0)
    assert torch.allclose(warm, (p @ table / p.square().sum().sqrt())[None], atol=1e-6)


def test_gates_are_stored_beside_the_model(tmp_path):
    draw = torch.Generator().manual_seed(1)
    gates = Gates(8, GateSettings(), draw)
    save_gates(gates, tmp_path)
    again = gates_of(tmp_path, 8, GateSettings(), torch.Generator().manual_seed(2))
    fresh = gates_of(None, 8, GateSettings(), torch.Generator().manual_seed(2))
    for name, value in gates.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    assert not torch.equal(fresh.decay, gates.decay)


def test_gates_that_do_not_fit_are_refused(tmp_path):
    save_gates(Gates(8, GateSettings(), torch.Generator()), tmp_path)
    for load in (
        lambda: gates_of(tmp_path, 6, GateSettings(), torch.Generator()),
        lambda: check_gates(tmp_path, {"hidden_size": 6}),
    ):
        with pytest.raises(ModelError, match=r"gates: .* for embeddings of 6 values .*remove latent_gates"):
            load()
    check_gates(tmp_path, {"hidden_size": 8})
    (tmp_path / FILE).write_bytes(b"half a file")
    for load in (
        lambda: gates_of(tmp_path, 8, GateSettings(), torch.Generator()),
        lambda: check_gates(tmp_path, {"hidden_size": 8}),
    ):
        with pytest.raises(ModelError, match=r"gates: .* for embeddings of 8 values"):
            load()


def test_embeddings_that_are_no_table_are_refused():
    """Gemma multiplies embeddings after it has looked them up."""
    with pytest.raises(ModelError, match="ScaledWordEmbedding, of which no mixture is known"):
        Hybrid(toys.model("gemma2"), None)
