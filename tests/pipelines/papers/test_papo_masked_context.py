"""Log-probabilities given a corrupted prompt: where they go, and which rows have none. With a model: test_scored_columns.py."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from pipelines.papers.papo import masked_context


def test_values_stand_at_the_completion_s_tokens_of_rows_with_the_record_s_own_prompt(monkeypatch):
    provider = masked_context()
    asked = []

    def statistics(passages, _):
        asked.extend(passages)
        return [-torch.arange(1.0, 1 + len(passage.text))[:, None] for passage in passages]

    provider.scorer = SimpleNamespace(statistics=statistics)
    provider.policy, provider.seed = SimpleNamespace(sampling=None), 0
    provider.problems = {7: None, 8: None}
    monkeypatch.setattr(provider, "_prompts", lambda problem, step: ([1, 2], [1, 9]))
    tokens = torch.tensor([[1, 2, 5, 6, 4], [1, 3, 5, 6, 0], [1, 2, 6, 0, 0]])
    mask = torch.tensor([[0, 0, 1, 0, 1], [0, 0, 1, 1, 0], [0, 0, 1, 0, 0]]).bool()
    columns = {"mask": mask, "problem": torch.tensor([7, 7, 8]), "step": 3}
    provider.fill(tokens, columns)
    nan = torch.nan
    expected = torch.tensor([[nan, nan, -1.0, nan, -3.0], [nan] * 5, [nan, nan, -1.0, nan, nan]])
    torch.testing.assert_close(columns["logp_masked"], expected, equal_nan=True)
    assert [(list(p.context), list(p.text)) for p in asked] == [([1, 9], [5, 6, 4]), ([1, 9], [6])]
