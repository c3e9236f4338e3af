"""What our methods make of the inputs of a golden case; see `benchmarks.golden`.

A slot has one way to be asked. Files whose outputs are parts of a method, a sequence of steps or the recipe around it have a
function of their own, named in `SPECIAL`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import golden_assembly, golden_distillation, golden_rewards
from pipelines.contract.card import Bound
from pipelines.contract.catalogue import bind, load_plugins
from pipelines.contract.columns import COLUMNS
from pipelines.rlvr import algorithm, ops

Case = dict[str, Any]


def run(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Our outputs for a case, by the golden names."""
    special = SPECIAL.get((case["slot"], case["method"]))
    if special is not None:
        made = special(case, dtype)
        if made is not None:
            return made
    return GENERAL[case["slot"]](case, dtype)


def tensor(name: str, value: Any, dtype: torch.dtype) -> Tensor:
    """An input as the column it is; null is NaN."""
    load_plugins()
    kind = COLUMNS[name].dtype if name in COLUMNS else "float32"
    if kind in ("bool", "int64"):
        return torch.tensor(value, dtype=getattr(torch, kind))
    return torch.tensor(_with_nan(value), dtype=dtype)


def _with_nan(value: Any) -> Any:
    return [_with_nan(v) for v in value] if isinstance(value, list) else math.nan if value is None else value


def columns_of(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The columns of a case, with the neutral value for those that it leaves out."""
    given: dict[str, Any] = {
        k: v if isinstance(v, int | float) else tensor(k, v, dtype) for k, v in inputs.items() if _is_column(v)
    }
    if "mask" not in given:
        rows = next(len(v) for v in given.values() if isinstance(v, Tensor))
        given["mask"] = torch.ones(rows, 1, dtype=torch.bool)
    mask = given["mask"]
    rows, width = mask.shape
    yes = torch.ones(rows, dtype=torch.bool)
    length = mask.sum(1).to(dtype)
    neutral: dict[str, Any] = {
        "scored": yes, "in_loss": yes, "on_policy": yes, "parsable": yes, "teacher_forced": mask & False, "truncated": ~yes,
        "unfinished": ~yes, "in_window": mask | True, "sampled_now": mask | True,
        "group": torch.zeros(rows, dtype=torch.int64), "problem": torch.zeros(rows, dtype=torch.int64),
        "task": torch.zeros(rows, dtype=torch.int64), "episode": torch.full((rows,), -1),
        "length": length, "max_tokens": torch.full((rows,), width).to(dtype),
        "step": 0, "total_steps": 1, "loss_share": mask.to(dtype),
        "token_penalty": mask.to(dtype) * 0, "token": torch.zeros(rows, width, dtype=torch.int64),
    }  # fmt: skip
    columns = neutral | given
    columns.setdefault("replayed", ~columns["on_policy"])
    if "reward" in columns:
        columns.setdefault("raw_reward", columns["reward"])
    if "logp" in columns:
        columns.setdefault("logp_old", columns["logp"])
    return columns


def _is_column(value: Any) -> bool:
    return isinstance(value, int | float | list) and not (
        isinstance(value, list) and value and isinstance(value[0], dict)
    )


def method(case: Case) -> Bound:
    """The method as the case says it."""
    return bind(f"rlvr.{case['slot']}", case["ours"].get("spec", case["method"]))


def instance(case: Case) -> Any:
    """The method of a case that is a class, with its state."""
    return method(case).fn


def weights(case: Case, columns: dict[str, Any]) -> dict[str, Any]:
    """The columns with the weight of each token's loss."""
    return columns | {
        "weight": bind("rlvr.loss_aggregation", case["ours"]["loss_aggregation"])(columns).to(columns["logp"])
    }


def before_updates(fn: Any, columns: dict[str, Any]) -> None:
    """Tell a method of the step's columns, as the trainer does before the first update."""
    fn.on_batch(columns)


# ---------------------------------------------------------------- slots


def advantage(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The advantage slot; where the case goes on to a loss, the recipe around it too."""
    columns = columns_of(case["inputs"], dtype)
    if "divergence" in case["ours"]:
        columns = algorithm.charge(bind("rlvr.divergence", case["ours"]["divergence"]), columns)
    if "reward" in columns:
        columns["immediate_reward"] = algorithm.immediate_reward(columns)
    columns = algorithm.set_advantage(method(case)(columns), columns)
    made = {"advantage": columns["advantage"]}
    if "advantage_by_turn" in case["outputs"]:
        made["advantage_by_turn"] = _by_turn(columns, case["outputs"]["advantage_by_turn"])
    if "token_reward" in case["outputs"]:
        made["token_reward"] = columns["immediate_reward"]
    return made


def _by_turn(columns: dict[str, Any], golden: list[list[float]]) -> Tensor:
    """The advantage of each turn, read off its tokens; a turn without a trained token has none to compare."""
    out = torch.tensor(golden, dtype=torch.float64)
    for row, turn in (columns["turn_state"] >= 0).nonzero().tolist():
        tokens = columns["mask"][row] & (columns["turn"][row] == turn)
        if tokens.any():
            out[row, turn] = columns["advantage"][row][tokens][0].double()
    return out


def credit(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The credit slot; a weight is what the part makes of advantages of 1, and the loss mask says which tokens it leaves in the loss."""
    columns = columns_of(case["inputs"], dtype)
    credited = algorithm.set_advantage(method(case)(columns), dict(columns))
    one = columns | {"advantage": torch.ones_like(columns["advantage"])}
    weight = algorithm.set_advantage(method(case)(one), one)["advantage"]
    return {"advantage": credited["advantage"], "weight": weight, "loss_mask": credited["loss_share"] > 0}


def shaping(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The shaping slot."""
    columns = columns_of(case["inputs"], dtype)
    columns.setdefault("reward", torch.zeros_like(columns["length"]))
    return {"reward": method(case)(columns)}


def filtering(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The filter slot."""
    return {"filter": method(case)(columns_of(case["inputs"], dtype))}


def differentiated(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Objectives, divergences and auxiliary losses: the value of each token, the loss, and its derivative by the log-probabilities."""
    columns = weights(case, columns_of(case["inputs"], dtype))
    part = method(case)
    logp = columns["logp"].clone().requires_grad_()
    value = part.weight * part(columns | {"logp": logp})
    loss = (value * columns["weight"]).sum()
    (gradient,) = torch.autograd.grad(loss, logp)
    out = {"value": value.detach() * columns["mask"], "loss": loss.detach(), "gradient": gradient}
    return out | {"loss_without_floor": out["loss"]}


def generalised_jsd(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The value of each token over the teacher's `top` best ones, the loss, and its derivative by the policy's logits [B, T, V]."""
    inputs = case["inputs"]
    mask = torch.tensor(inputs["mask"])
    logits, of_teacher = (torch.tensor(inputs[name], dtype=dtype) for name in ("logits", "teacher_logits"))
    best = of_teacher.topk(inputs["top"]).indices
    logits.requires_grad_()
    policy, teacher = (each.log_softmax(-1).gather(-1, best) for each in (logits, of_teacher))
    value = method(case)({"logp_top": policy, "logp_teacher_top": teacher}) * mask
    loss = value.sum() / mask.sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    return {"value": value.detach(), "loss": loss.detach(), "gradient": gradient}


def assembly(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """A whole preset."""
    return golden_assembly.outputs(case["ours"], columns_of(case["inputs"], dtype))


def chi2_rows(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """A divergence that is legal in the reward only: its values."""
    columns = columns_of(case["inputs"], dtype)
    return {"value": method(case)(columns) * columns["mask"]}


def aggregation(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The loss-aggregation slot."""
    columns = columns_of(case["inputs"], dtype)
    weight = method(case)(columns)
    return {"weight": weight, "loss": (weight * columns["per_token"]).sum()}


# ---------------------------------------------------------------- methods with pieces


def spo(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Segments and trees: the advantages, what stays in the loss, whitening over it, and the clipped loss."""
    columns = columns_of(case["inputs"], dtype)
    part = method(case)
    credited = algorithm.set_advantage(part(columns), columns)
    inside = credited["loss_share"] > 0
    white = algorithm.set_advantage(bind("rlvr.credit", "whiten")(credited), credited)
    logp = columns["logp"].clone().requires_grad_()
    final = weights(case, white | {"logp": columns["logp"]})
    clip = bind("rlvr.objective", case["ours"]["objective"])
    loss = (clip(final | {"logp": logp}) * final["weight"]).sum()
    (gradient,) = torch.autograd.grad(loss, logp)
    out: dict[str, Any] = {
        "advantage": credited["advantage"], "loss_mask": inside, "loss": loss.detach(), "gradient": gradient,
        "whitened": _where(inside, white["advantage"], case["outputs"].get("whitened")),
    }  # fmt: skip
    if "node" in columns:
        spec = {**case["ours"]["spec"], "certain": 1.0}
        edges = algorithm.set_advantage(bind("rlvr.advantage", spec)(columns), columns)
        out |= {"edge_advantage": edges["advantage"], "edge_trained": edges["loss_share"] > 0}
        out["gradient_of_edge"] = _over_copies(gradient, columns)
    return out


def _where(inside: Tensor, ours: Tensor, golden: Any) -> Tensor:
    """Ours where a token is in the loss; what stands on the others is never used."""
    return torch.where(inside, ours.double(), torch.tensor(golden, dtype=torch.float64))


def _over_copies(gradient: Tensor, columns: dict[str, Any]) -> Tensor:
    """The gradients of all rows' copies of a token added up, on each copy: rows that share a node start alike."""
    width = gradient.shape[1]
    cell = (columns["node"] * width + torch.arange(width)).flatten()
    index = cell.unique(return_inverse=True)[1]
    used = (gradient * columns["mask"]).flatten()
    total = torch.zeros(int(index.max()) + 1, dtype=gradient.dtype).index_add(0, index, used)
    return total[index].view_as(gradient) * columns["mask"] * (columns["node"] >= 0)


def gtpo(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The shaped rewards too."""
    from pipelines.papers.grpo_s import shaped_reward

    columns = columns_of(case["inputs"], dtype)
    settings = {k: v for k, v in method(case).settings.items() if k in ("base", "share", "eps")}
    names = ("correct", "group", "scored", "mask", "entropy_old")
    return advantage(case, dtype) | {"shaped_reward": shaped_reward(*(columns[n] for n in names), **settings)}


def epo(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The weight of the smoothing, and where the penalty is above 0."""
    from pipelines.papers.epo import epo, phase

    inputs = case["inputs"]
    if "entropy" not in inputs:
        return {"phase": [phase(step, inputs["total_steps"]) for step in inputs["step"]]}
    term = epo()
    term.usual = list(inputs["usual"])
    entropy = torch.tensor(inputs["entropy"], dtype=dtype)
    step, total = inputs.get("step", 0), inputs.get("total_steps", 1)
    return {
        "outside": term(entropy, torch.tensor(inputs["turn"]), step, total) + entropy > 0,
        "phase": phase(step, total),
    }


def adaptive_entropy(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The coefficient after each step's mean entropy, and whether it is applied."""
    part = instance(case)
    moved = []
    for mean in case["inputs"]["entropy"]:
        part.adapt(mean)
        moved.append((part.coefficient, part.applies))
    coefficient, applies = zip(*moved, strict=True)
    return {"coefficient": list(coefficient), "applies": list(applies)}


def siren(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The mean over rows, the anchor, the loss and its derivative by the entropies; or the entropies themselves."""
    inputs = case["inputs"]
    if "logits" in inputs:
        from pipelines.contract.sampling import Sampling
        from pipelines.engine import distribution

        logits = torch.tensor(inputs["logits"], dtype=dtype)
        top = distribution.top_entropy(logits, Sampling(), inputs["nucleus"])
        return {"entropy_top_p": top, "entropy": distribution.entropy(logits, Sampling())}
    columns = columns_of({k: v for k, v in inputs.items() if k != "anchor"}, dtype)
    term = instance(case)
    mean = term.mean(columns["entropy_top_p"], columns["mask"])
    term.anchor = inputs.get("anchor", float(mean))
    columns["weight"] = columns["mask"].to(dtype) / columns["mask"].sum()
    entropy = columns["entropy_top_p"].clone().requires_grad_()
    loss = (method_call(term, columns | {"entropy_top_p": entropy}) * columns["weight"]).sum()
    (gradient,) = torch.autograd.grad(loss, entropy)
    return {"mean": mean, "anchor": term.anchor, "loss": loss.detach(), "gradient": gradient}


def method_call(fn: Any, columns: dict[str, Any]) -> Any:
    """A bound class's call with the columns that it names."""
    from pipelines.contract.catalogue import takes

    method: Any = type(fn)
    return fn(**{name: columns[name] for name in takes(method)})


def pipo_replay(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Progress against the window, and the coefficients of the step before."""
    from pipelines.papers.pipo import shares

    columns = columns_of({k: case["inputs"][k] for k in ("advantage", "mask", "group")}, dtype)
    replay = instance(case)
    replay.means = list(case["inputs"]["window"])
    xi = replay.progress(case["inputs"]["mean_reward"])
    coefficient = (shares(*(columns[n] for n in ("advantage", "mask", "group", "in_loss"))) * xi).clamp(-10, 10)
    return {"xi": xi, "coefficient": coefficient[:, None] * columns["mask"]}


def verl_erank(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The indices of hidden states; or the bonus, from given running means or over a sequence of steps."""
    inputs = case["inputs"]
    part = instance(case)
    if "hidden" in inputs:
        acceleration, velocity, rank = part.hidden_statistics(torch.tensor(inputs["hidden"], dtype=dtype))
        return {"acceleration": acceleration, "velocity": velocity, "rank": rank}
    if "running_means" in inputs:
        part.load_state_dict({key: list(inputs["running_means"]) for key in ("mean", "last")})
        columns = columns_of(inputs, dtype)
        mask = columns["mask"]
        phi = part.phi(columns["hidden_stats"])
        last = mask & (ops.next_index(mask) == mask.shape[1])
        bonus = (
            part(columns["advantage"], mask, columns["scored"], columns["hidden_stats"]) - columns["advantage"]
        ) * last
        return {"phi": phi, "bonus_on_last_token": bonus.sum(1)}
    phis, means = [], []
    for stats in inputs["hidden_stats"]:
        rows = torch.tensor(stats, dtype=dtype)
        mask = torch.ones(len(rows), 1, dtype=torch.bool)
        phis.append(part.phi(rows).tolist())
        part(mask.to(dtype), mask, mask[:, 0], rows)
        means.append(list(part.mean))
    return {"phi": phis, "means_after": means}


def gain_rl(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The window before each step and how far it moves."""
    curriculum = instance(case)
    curriculum.start(case["inputs"]["size"], 0)
    centre, shift, weight = [], [], []
    for step in case["inputs"]["steps"]:
        centre.append(curriculum.mu)
        weight.append(curriculum.weights().tolist())
        reward, angle = (torch.tensor(step[k], dtype=dtype) for k in ("raw_reward", "angle"))
        before_updates(
            curriculum,
            {"scored": torch.ones(len(reward), dtype=torch.bool), "raw_reward": reward, "hidden_stats": angle[:, None]},
        )
        shift.append(curriculum.mu - centre[-1])
    return {"centre": centre, "shift": shift, "weight": weight}


def hapo(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The clip with the case's own statistics."""
    columns = weights(case, columns_of(case["inputs"], dtype))
    part = instance(case)
    before_updates(part, columns)
    logp = columns["logp"].clone().requires_grad_()
    loss = (method_call(part, columns | {"logp": logp}) * columns["weight"]).sum()
    (gradient,) = torch.autograd.grad(loss, logp)
    nature = part.normalised(columns["entropy_old"]) * columns["mask"]
    return {"nature": nature, "loss": loss.detach(), "gradient": gradient}


def hpt_upge(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Demonstrations and rollouts by the trainer's own weights.

    The released script divides the sum over the rollouts' tokens by the response width, ours by their number; the factor
    between the two is put back here, so that what is compared is the loss and the separation of the denominators.
    """
    columns = columns_of(case["inputs"], dtype)
    part = method(case)
    aggregation = bind("rlvr.loss_aggregation", case["ours"]["loss_aggregation"])
    demonstrations, rollouts = algorithm.split_weights(aggregation, columns, columns["teacher_forced"])
    tokens = (columns["mask"] & ~columns["teacher_forced"]).sum()
    parts = {"demonstrations": demonstrations, "rollouts": rollouts * tokens / columns["mask"].shape[1]}
    out: dict[str, Any] = {"loss": 0.0, "gradient": 0.0}
    for name, weight in parts.items():
        logp = columns["logp"].clone().requires_grad_()
        loss = (part(columns | {"logp": logp}) * weight).sum()
        (gradient,) = torch.autograd.grad(loss, logp)
        out |= {f"loss_{name}": loss.detach(), f"gradient_{name}": gradient}
        out = out | {"loss": out["loss"] + loss.detach(), "gradient": out["gradient"] + gradient}
    return out


def adlp(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Rewards and prices of a sequence of steps."""
    part = instance(case)
    rewards, prices = [], [part.price]
    for step in case["inputs"]["steps"]:
        rewards.append(method_call(part, columns_of(step, dtype)).tolist())
        prices.append(part.price)
    return {"reward": rewards, "price": prices}


def laser_d(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Targets from the monitor's rows, then the bonus on the case's."""
    part = method(case)
    columns = columns_of(case["inputs"], dtype)
    monitor = columns_of(case["inputs"]["monitor"], dtype)
    monitor["max_tokens"] = columns["max_tokens"].max().expand(len(monitor["correct"]))
    monitor["reward"] = monitor["correct"]
    part(monitor)
    targets: Any = part.fn
    high, medium, low = targets.targets
    return {"targets": {"low": low, "medium": medium, "high": high}, "reward": part(columns)}


def par(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Rewards against given references."""
    part = instance(case)
    part.load_state_dict({"scores": case["inputs"]["references"]})
    return {"reward": method_call(part, columns_of({k: case["inputs"][k] for k in ("reward", "problem")}, dtype))}


def arena_tournament(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The ranking of a table of points, and the advantages by rank."""
    from pipelines.papers.arena_tournament import advantages, rank_rewards, tournament

    points = case["inputs"]["points"]
    ranked = tournament(len(points), lambda a, b: tuple(points[a][b]))
    return {"ranked": ranked, "advantage": advantages(rank_rewards(ranked))}


def arpo(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """The entropy of two turns and the chance to branch; token entropies are those of the given log-probabilities."""
    strategy = instance(case)
    out = {}
    for turn in ("first", "now"):
        logp = torch.tensor(case["inputs"][f"top_logp_{turn}"], dtype=torch.float64)
        tokens = -(logp.exp() * logp).sum(1)
        out[f"token_entropy_{turn}"] = tokens
        out[f"entropy_{turn}"] = strategy.turn_entropy(tokens.tolist(), case["inputs"]["vocabulary"])
    return out | {"probability": strategy.chance(out["entropy_now"], out["entropy_first"])}


def aligned_teacher(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Of each token of both splits the number of its group."""
    from pipelines.papers.gold import aligned_groups

    groups = aligned_groups(case["inputs"]["own"], case["inputs"]["other"])
    sides = zip(*groups, strict=True)
    own, other = ([number for number, places in enumerate(side) for _ in places] for side in sides)
    return {"own_group": own, "other_group": other}


GENERAL: dict[str, Callable[[Case, torch.dtype], dict[str, Any]]] = {
    "advantage": advantage, "credit": credit, "shaping": shaping, "filter": filtering, "objective": differentiated,
    "divergence": differentiated, "auxiliary_loss": differentiated, "loss_aggregation": aggregation, "assembly": assembly,
}  # fmt: skip
SPECIAL: dict[tuple[str, str], Callable[[Case, torch.dtype], dict[str, Any] | None]] = {
    ("advantage", "spo_chain"): spo, ("advantage", "spo_tree"): spo, ("advantage", "gtpo"): gtpo,
    ("auxiliary_loss", "adaptive_entropy"): adaptive_entropy, ("auxiliary_loss", "generalised_jsd"): generalised_jsd,
    ("auxiliary_loss", "epo"): epo, ("auxiliary_loss", "siren"): siren, ("replay", "pipo"): pipo_replay,
    ("credit", "verl_erank"): verl_erank, ("curriculum", "gain_rl"): gain_rl, ("objective", "hapo"): hapo,
    ("objective", "hpt_upge"): hpt_upge, ("shaping", "adlp"): adlp, ("shaping", "laser_d"): laser_d,
    ("shaping", "par"): par, ("reward", "arena_tournament"): arena_tournament, ("reward", "co_reward"): golden_rewards.co_reward,
    ("reward", "ttrl"): golden_rewards.ttrl, ("reward", "self_certainty"): golden_rewards.of_logits,
    ("reward", "rent"): golden_rewards.of_logits, ("reward", "rlpr"): golden_rewards.rlpr,
    ("rollout", "arpo"): arpo, ("divergence", "chi2"): chi2_rows, ("providers", "aligned_teacher"): aligned_teacher,
    ("auxiliary_loss", "aligned_divergence"): golden_distillation.aligned_divergence,
}  # fmt: skip
