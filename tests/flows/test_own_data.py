"""A folder of the user's: a plain chat for SFT, prompts alone for RLVR, and a reward function in a file beside them."""

from __future__ import annotations

import json

import pytest
import toys
from published import SAMPLES, question, reply

REWARDS = """
def brevity(prompts, completions, topic, stars, **columns):
    assert all(isinstance(each, str) for each in topic)
    assert set(columns) >= {"answer", "info", "uid"} and all(given == "" for given in columns["answer"])
    return [star - len(completion[-1]["content"]) / 100 for completion, star in zip(completions, stars, strict=True)]
"""


@pytest.mark.slow
@pytest.mark.long
def test_plain_chat_and_prompts_alone_are_trained_on(tmp_path, home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    chats = [row for name in ("UltraChat", "Dolly", "ShareGPT") for row in SAMPLES[name].rows()]
    prompts = [{"prompt": f"{question(n % 6)} ({n})", "topic": reply(n % 6), "stars": n % 5} for n in range(24)]
    for name, rows in (("chats", chats), ("prompts", prompts)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = toys.recipe(
        tmp_path,
        model={
            "fresh": {"architecture": "llama", "config": {
                "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
                "max_position_embeddings": 300, "tie_word_embeddings": True,
            }},
            "tokenizer": {"kind": "char", "vocab_size": 300},
        },
        curate={
            "sources": [
                {"kind": "file", "path": "chats.jsonl", "splits": ["chats"]},
                {"kind": "file", "path": "prompts.jsonl", "splits": ["prompts"]},
            ],
            "splits": {"chats": 0.5, "prompts": 0.5}, "near_duplicates": None,
        },
        sft={"split": "chats", "heldout": None, "steps": 2, "max_length": 300, "tokens_per_step": 900, "micro_batch_tokens": 900},
        rlvr={"split": "prompts", "steps": 2, "reward": {"kind": "function", "path": "my_rewards:brevity"}},
        evaluate={"tasks": [{"name": "palindromes", "limit": 2, "samples": 1}]},
    )  # fmt: skip
    refused = toys.whetstone("plan", str(path), "--set", "rlvr.reward=verifier", home=home, check=False)
    assert refused.returncode == 2
    assert "curate.sources.1: prompts.jsonl has no gold answer, and rlvr reads one of every record" in refused.stderr
    toys.whetstone("plan", str(path), home=home)
    toys.whetstone("run", str(path), home=home)
    (card,) = home.glob("runs/curate-*/report/card.md")
    assert (
        "prompts.jsonl: only kept in info" in card.read_text()
        and "stars (24 rows), topic (24 rows)" in card.read_text()
    )
    (rollouts,) = home.glob("runs/rlvr-*/report/rollouts.jsonl")
    rows = [json.loads(line) for line in rollouts.read_text().splitlines()]
    assert len(rows) >= 16 and len({row["score"] for row in rows}) > 2
    (tmp_path / "my_rewards.py").write_text(REWARDS.replace("/ 100", "/ hundred"))
    refused = toys.whetstone("plan", str(path), "--set", "rlvr.steps=3", home=home, check=False)
    assert refused.returncode == 2
    assert f"NameError: name 'hundred' is not defined ({tmp_path}/my_rewards.py:5)" in " ".join(refused.stderr.split())
