"""Masked diffusion language models: supervised training, sampling in any order, and group-relative updates.

A room of its own: with the stages that write from left to right it shares records, verifiers, advantages, the loop and its commits. It
reads none of the columns of tokens (`logp`, `logp_old`): a masked model has no log-probability of a token before the next, and its
one-step estimates are tensors of this package. The package is a plug-in of two kinds of stages, which only recipes load that name it
(`plugins: [pipelines.diffusion]`).
"""

PARTS = {
    "stages": {
        "diffusion_sft": "pipelines.diffusion.kinds:SFT",
        "diffusion_rl": "pipelines.diffusion.kinds:RL",
    }
}
