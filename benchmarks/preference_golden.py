"""Losses and gradients of TRL's preference trainers on one batch, for tests/pipelines/preference/trl.json.

    pip install trl && python -m benchmarks.preference_golden tests/pipelines/preference/trl.json

TRL's own trainers tokenise the pairs, run the policy and the reference and compute the loss; nothing of theirs is copied. Both models
are tiny and their weights are sines, so that the file need not hold them. Of each gradient it holds the norm and the products with
four sine vectors, in ten digits, and of the loss the weight of each token. A case of a trainer that the installed TRL has no more (BCO,
which 1.9.0 has) stays as it is.
`tests/pipelines/preference/test_loss_trl.py` reads the file.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines.engine import models

TEXTS = [
    ("sum 1 2=", "3", "12"), ("sum 4 5=", "nine", "6"), ("sort cab=", "abc", "cba!"), ("say=", "yes", "no, never"),
    ("sum 2 2=", "four", "5"), ("x=", "y", "zz"),
]  # fmt: skip
GOLD = ["3, yes", "5", "abc!!", "yes", "four four", "x"]
"""Of each text the solution that TPO reads."""
CONFIG = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
DIRECTIONS = 4
CASES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("dpo", "DPO", {"loss_type": "sigmoid", "beta": 0.3}, {"kind": "dpo", "beta": 0.3}),
    ("dpo_per_token", "DPO", {"loss_type": "sigmoid_norm", "beta": 2.0}, {"kind": "dpo", "beta": 2.0, "length_normalised": True}),
    ("dpo_sft", "DPO", {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.7], "beta": 0.3},
     {"kind": "dpo", "beta": 0.3, "sft_weight": 0.7}),
    ("robust", "DPO", {"loss_type": "robust", "beta": 0.3, "label_smoothing": 0.2},
     {"kind": "robust_dpo", "beta": 0.3, "false_rate": 0.2}),
    ("hinge", "DPO", {"loss_type": "hinge", "beta": 0.3}, {"kind": "hinge", "beta": 0.3}),
    ("ipo", "DPO", {"loss_type": "ipo", "beta": 0.3}, {"kind": "ipo", "beta": 0.3}),
    ("apo_zero", "DPO", {"loss_type": "apo_zero", "beta": 0.3}, {"kind": "apo", "beta": 0.3}),
    ("apo_down", "DPO", {"loss_type": "apo_down", "beta": 0.3}, {"kind": "apo", "beta": 0.3, "anchor": "down"}),
    ("mpo", "DPO", {"loss_type": ["sigmoid", "bco_pair", "sft"], "loss_weights": [0.8, 0.2, 1.0], "beta": 0.3},
     {"kind": "mpo", "beta": 0.3}),
    ("exo", "DPO", {"loss_type": "exo_pair", "beta": 0.3, "label_smoothing": 0.05}, {"kind": "exo", "beta": 0.3, "label_smoothing": 0.05}),
    ("nca", "DPO", {"loss_type": "nca_pair", "beta": 0.3}, {"kind": "nca", "beta": 0.3}),
    ("bco_pair", "DPO", {"loss_type": "bco_pair", "beta": 0.3},
     {"kind": "mpo", "beta": 0.3, "preference": 0, "quality": 1, "generation": 0}),
    ("sppo", "DPO", {"loss_type": "sppo_hard", "beta": 0.3}, {"kind": "sppo", "beta": 0.3}),
    ("discopop", "DPO", {"loss_type": "discopop", "beta": 0.3, "discopop_tau": 0.4}, {"kind": "discopop", "beta": 0.3, "tau": 0.4}),
    ("aot", "DPO", {"loss_type": "aot", "beta": 0.3}, {"kind": "aot", "beta": 0.3}),
    ("aot_unpaired", "DPO", {"loss_type": "aot_unpaired", "beta": 0.3, "label_smoothing": 0.1},
     {"kind": "aot", "beta": 0.3, "paired": False, "label_smoothing": 0.1}),
    ("f_dpo", "DPO", {"loss_type": "sigmoid", "beta": 0.3, "f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.3},
     {"kind": "f_dpo", "beta": 0.3, "alpha": 0.7}),
    ("f_dpo_forward", "DPO", {"loss_type": "sigmoid", "beta": 0.3, "f_divergence_type": "forward_kl"},
     {"kind": "f_dpo", "beta": 0.3, "alpha": 1.0}),
    ("f_dpo_js", "DPO", {"loss_type": "sigmoid", "beta": 0.3, "f_divergence_type": "js_divergence"},
     {"kind": "f_dpo", "beta": 0.3, "divergence": "jensen_shannon"}),
    ("ld_dpo", "DPO", {"loss_type": "sigmoid", "beta": 0.3, "ld_alpha": 0.4}, {"kind": "ld_dpo", "beta": 0.3, "alpha": 0.4}),
    ("wpo", "DPO", {"loss_type": "sigmoid", "beta": 0.3, "use_weighting": True}, {"kind": "wpo", "beta": 0.3}),
    ("kto", "KTO", {"loss_type": "kto", "beta": 0.3, "desirable_weight": 1.5}, {"kind": "kto", "beta": 0.3, "desirable_weight": 1.5}),
    ("bco", "BCO", {"beta": 0.3}, {"kind": "bco", "beta": 0.3}),
    ("orpo", "ORPO", {"beta": 0.4}, {"kind": "orpo", "weight": 0.4}),
    ("cpo", "CPO", {"loss_type": "sigmoid", "beta": 0.3, "cpo_alpha": 0.0}, {"kind": "cpo", "beta": 0.3, "generation": 0.0}),
    ("cpo_smoothed_sft", "CPO", {"loss_type": "sigmoid", "beta": 0.3, "cpo_alpha": 0.6, "label_smoothing": 0.1},
     {"kind": "cpo", "beta": 0.3, "generation": 0.6, "label_smoothing": 0.1}),
    ("simpo", "CPO", {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.5, "cpo_alpha": 0.0},
     {"kind": "simpo", "beta": 2.0, "gamma": 0.5}),
    ("simpo_smoothed_sft", "CPO", {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.5, "cpo_alpha": 0.3, "label_smoothing": 0.1},
     {"kind": "simpo", "beta": 2.0, "gamma": 0.5, "label_smoothing": 0.1, "sft_weight": 0.3}),
    ("tpo", "TPO", {"loss_type": "sigmoid", "beta": 0.3, "tpo_alpha": 0.6, "label_smoothing": 0.1},
     {"kind": "tpo", "beta": 0.3, "alpha": 0.6, "label_smoothing": 0.1}),
    ("tpo_l", "TPO", {"loss_type": "tpo-l", "beta": 2.0, "tpo_l_gamma": 0.5},
     {"kind": "tpo", "beta": 2.0, "gamma": 0.5, "length_normalised": True}),
    ("alphapo", "CPO", {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.5, "cpo_alpha": 0.0, "alpha": 0.25},
     {"kind": "alphapo", "beta": 2.0, "gamma": 0.5, "alpha": 0.25}),
    ("alphapo_below", "CPO", {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.5, "cpo_alpha": 0.0, "alpha": -0.3},
     {"kind": "alphapo", "beta": 2.0, "gamma": 0.5, "alpha": -0.3}),
]  # fmt: skip
"""Name, TRL's trainer, its settings, ours (`sft_weight` is the stage's)."""


def wave(count: int, frequency: float) -> torch.Tensor:
    """float64 [count], without a random generator."""
    return torch.sin(frequency * torch.arange(1, count + 1, dtype=torch.float64))


def direction(count: int, number: int) -> torch.Tensor:
    """float64 [count], of length 1."""
    sines = wave(count, 0.9 + 0.31 * number)
    return sines / sines.norm()


def set_weights(model: Any, policy: bool) -> None:
    """Sines; the policy's differ from the reference's by a fifth of them."""
    with torch.no_grad():
        for number, (name, weight) in enumerate(sorted(model.named_parameters())):
            values = (1.0 if "norm" in name else 0.0) + 0.5 * wave(weight.numel(), 0.7 + 0.11 * number)
            if policy:
                values += 0.1 * wave(weight.numel(), 1.3 + 0.07 * number)
            weight.copy_(values.view(weight.shape))


def network(tokenizer: Any, policy: bool) -> Any:
    """The policy, or the reference."""
    from transformers import AutoConfig, AutoModelForCausalLM

    special = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.bos_token_id}
    config = AutoConfig.for_model(
        "llama", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, **CONFIG, **special
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    set_weights(model, policy)
    return model


def tokenizer_of_texts() -> Any:
    """One token a character."""
    return models.train_tokenizer("char", 64, [text for row in TEXTS for text in row])


def projections(model: Any) -> dict[str, list[float]]:
    """Weight → products of its gradient with `DIRECTIONS` sine vectors of length 1, and the gradient's norm."""
    out = {}
    for name, weight in model.named_parameters():
        gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
        flat = gradient.double().flatten()
        out[name] = [*(float(flat @ direction(len(flat), k)) for k in range(DIRECTIONS)), float(flat.norm())]
    return out


def rows_of(batch: dict[str, Any], trainer: str) -> dict[str, Any]:
    """The batch's answers as [token ids, place of the answer's first token], for pairs the chosen ones first."""
    if trainer in ("CPO", "ORPO"):
        sorts = [
            [batch[f"{sort}_{what}"] for what in ("input_ids", "attention_mask", "labels")]
            for sort in ("chosen", "rejected")
        ]
        return {"rows": [row for ids, there, labels in sorts for row in _rows(ids, there, labels != -100)]}
    if trainer == "BCO":
        ids, there, labels = (batch[f"completion_{what}"] for what in ("input_ids", "attention_mask", "labels"))
        return {"rows": _rows(ids, there, labels != -100), "desirable": [bool(label) for label in batch["label"]]}
    out: dict[str, Any] = {"rows": _rows(batch["input_ids"], batch["attention_mask"], batch["completion_mask"])}
    if trainer == "KTO":
        out["desirable"] = [bool(label) for label in batch["label"]]
        out["unrelated"] = _rows(batch["KL_input_ids"], batch["KL_attention_mask"], batch["KL_completion_mask"])
    return out


def _rows(ids: torch.Tensor, there: torch.Tensor, answer: torch.Tensor) -> list[list[Any]]:
    lines = zip(ids, there.bool(), answer, strict=True)
    return [[row[real].tolist(), int(real.sum()) - int(own.sum())] for row, real, own in lines]


def run(trainer: str, settings: dict[str, Any], texts: list[tuple[str, str, str]]) -> dict[str, Any]:
    """Loss and gradient of one batch, by TRL."""
    import trl
    from datasets import Dataset
    from trl.experimental.cpo import CPOConfig, CPOTrainer
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    kinds = {
        "DPO": (trl.DPOConfig, trl.DPOTrainer), "KTO": (trl.KTOConfig, trl.KTOTrainer), "CPO": (CPOConfig, CPOTrainer),
        "ORPO": (ORPOConfig, ORPOTrainer),
    }  # fmt: skip
    if trainer == "TPO":
        from trl.experimental.tpo import TPOConfig, TPOTrainer

        kinds["TPO"] = (TPOConfig, TPOTrainer)
    if trainer == "BCO":
        from trl.experimental.bco import BCOConfig, BCOTrainer

        kinds["BCO"] = (BCOConfig, BCOTrainer)
    config, kind = kinds[trainer]
    tokenizer = tokenizer_of_texts()
    tokenizer.add_bos_token = False
    policy = network(tokenizer, True)
    data = {"prompt": [p for p, *_ in texts], "chosen": [c for _, c, _ in texts], "rejected": [r for *_, r in texts]}
    data |= {"reference": GOLD} if trainer == "TPO" else {}
    with tempfile.TemporaryDirectory() as folder:
        args = config(
            output_dir=folder, use_cpu=True, report_to=[], bf16=False, per_device_train_batch_size=2 * len(texts),
            max_length=64, gradient_checkpointing=False, **settings,
        )  # fmt: skip
        more = {"ref_model": network(tokenizer, False)} if trainer in ("DPO", "KTO", "BCO") else {}
        made = kind(model=policy, args=args, train_dataset=Dataset.from_dict(data), processing_class=tokenizer, **more)
        batch = next(iter(made.get_train_dataloader()))
        made.model.eval()
        heard: list[torch.Tensor] = []

        def listen(module: Any, inputs: Any, output: Any) -> None:
            heard.append(output.logits if hasattr(output, "logits") else output.log_probs)

        made.model.register_forward_hook(listen)
        loss = made.compute_loss(made.model, batch)
        (put_out,) = [each for each in heard if each.requires_grad]
        put_out.retain_grad()
        loss.backward()
    rows = rows_of(batch, trainer)
    return {
        "loss": float(loss.detach()),
        "gradient": projections(policy),
        "weights": weights(put_out, rows["rows"]),
        **rows,
    }


def weights(put_out: torch.Tensor, rows: list[list[Any]]) -> list[list[float]]:
    """Of each answer's tokens minus the loss's derivative by their log-probability.

    Args:
        put_out: what the trainer computed them from, with its gradient: log-probabilities [B, T], or logits [B, T, V]. A loss that reads
            the log-probability of the token alone has that derivative times 1 - p by the token's logit.
    """
    assert put_out.grad is not None
    out = []
    for row, (tokens, start) in enumerate(rows):
        at, chosen = torch.arange(start, len(tokens)) - 1, torch.tensor(tokens[start:])
        if put_out.ndim == 2:
            out.append((-put_out.grad[row, at]).tolist())
            continue
        probability = put_out[row, at].double().softmax(-1)[torch.arange(len(at)), chosen]
        out.append((-put_out.grad[row, at, chosen].double() / (1 - probability)).tolist())
    return out


def main(path: Path) -> None:
    """Run every case and write the file; a case whose trainer the installed TRL has no more stays as it is."""
    import trl

    cases = []
    before = {case["name"]: case for case in json.loads(path.read_text())["cases"]} if path.exists() else {}
    for name, trainer, settings, ours in CASES:
        # ORPO's NLL in TRL runs over the prompt too: where that is the start token alone, it is the answer's.
        texts = [("", chosen, rejected) for _, chosen, rejected in TEXTS] if trainer == "ORPO" else TEXTS
        try:
            result = run(trainer, settings, texts)
        except ModuleNotFoundError:
            cases.append(before[name])
            continue
        made_by = {"name": name, "trainer": trainer, "version": trl.__version__, "settings": settings, "ours": ours}
        cases.append(made_by | result)
        print(f"{name:20} {result['loss']:.6f}")
    source = {"repository": "huggingface/trl", "script": "benchmarks/preference_golden.py"}
    body = {"source": source, "cases": _rounded(cases)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body) + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return 0.0 if abs(value) < 1e-13 else float(f"{value:.9e}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    main(Path(sys.argv[1]))
