"""The presets that train alone on the toy recipe, and what some of them need there."""

from __future__ import annotations

from pathlib import Path

from pipelines.recipe.read import PRESETS

ELSEWHERE = (
    "for environments",
    "with a judge",
    "for records with a program",
    "for records with images",
    "for a policy that writes programs",
)
"""In the presets that test_rollout.py and the tests of their parts run: they need turns, an endpoint, or what only some records or
policies have."""
ALONE = sorted(p.stem for p in PRESETS.glob("*.yaml") if not any(words in p.read_text() for words in ELSEWHERE))


FITTING = {
    "gkd": ["rlvr.providers=[{kind: teacher_top, path: START/sft/out/base}]"],
    "gold": ["rlvr.providers=[{kind: aligned_teacher_top, path: START/sft/out/base}]"],
    "gold_sampled": ["rlvr.providers=[{kind: aligned_teacher, path: START/sft/out/base}]"],
    "on_policy_distillation": ["rlvr.providers=[{kind: teacher, path: START/sft/out/base}]"],
    "sdpo": ["rlvr.providers=[{kind: self_teacher, weights: average, template: '{prompt} {solution}'}]"],
    "sdft": [
        "rlvr.providers=[{kind: self_teacher_top, solution: record, weights: start, template: '{prompt} {solution}'}]"
    ],
    "minillm": [
        "rlvr.providers=[{kind: teacher, path: START/sft/out/base}, {kind: teacher_top, path: START/sft/out/base}]"
    ],
    "ppe": ["rlvr.prompting={kind: ppe, text: Think.}"],  # the toy reads 64 characters
    "irrl": ["rlvr.shaping=[{kind: irrl, clip: false}]"],  # hundreds of targets, of which the first steps meet few
    "cosine_length": ["rlvr.shaping=[{kind: cosine_length, margin: 1}]"],  # its answers have up to 16 tokens
    "co_reward": [  # enough answers alike for a vote
        "rlvr.prompting={kind: paraphrase, template: '{prompt}'}",
        "rlvr.sampling.temperature=0.5",
        "rlvr.group_size=8",
    ],
    "ttrl": ["rlvr.sampling.temperature=0.5", "rlvr.group_size=8"],
    "verifree": ["rlvr.rollout={kind: verifree, marker: b, before: '', after: ''}"],
    "rlpr": ["rlvr.reward={kind: rlpr, marker: ''}"],  # the toy writes no tags
}
"""What a preset needs to work with the toy model."""


def fitting(preset: str, start: Path) -> list[str]:
    """Settings with which a preset works with the toy model; `start` is what `toys.start` made."""
    return [text.replace("START", str(start)) for text in FITTING.get(preset, [])]
