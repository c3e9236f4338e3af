"""How a model is sharded over several processes: its blocks one by one with FSDP2, and in which types weights and gradients travel."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from pipelines.engine.masks import keeps_state
from pipelines.engine.policy import Policy


def shard(model: torch.nn.Module, policy: Policy, entry: torch.nn.Module, size: int) -> None:
    """Shard the weights of a model in place.

    Args:
        model, policy, entry: as in `parallel.Weights`.
        size: how many processes share them.
    """
    mesh = init_device_mesh(policy.device.type, (size,))
    reduced, rounded = _precision(model, policy)
    policy.rounded = rounded is not None
    for layer in policy.layers:
        matrices: list[torch.nn.Module] = [part for part in layer.modules() if type(part) is torch.nn.Linear]
        if rounded is not None and matrices:
            fully_shard(matrices, mesh=mesh, mp_policy=rounded)
        fully_shard(layer, mesh=mesh, mp_policy=reduced)
    fully_shard(entry, mesh=mesh, mp_policy=reduced)


def _precision(model: torch.nn.Module, policy: Policy) -> tuple[MixedPrecisionPolicy, MixedPrecisionPolicy | None]:
    """How weights travel and gradients are summed; and how the matrices of a block, where autocast would round them anyway.

    Only these are rounded, to what a pass multiplies by: a norm or an embedding in bfloat16 would be another function than the one
    process computes, and than the sampler. Adapters, experts and recurrent layers, whose code reads matrices otherwise, stay as
    they are stored. Gradients are summed in float32.
    """
    reduced = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
    stored = {weight.dtype for weight in model.parameters()}
    experts = any(isinstance(part, torch.nn.ModuleList) for layer in policy.layers for part in layer.modules())
    plain = policy.model is policy.causal and not experts and not keeps_state(policy.config)
    if policy.dtype != "bfloat16" or stored != {torch.float32} or not plain:
        return reduced, None
    return reduced, MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)


def check_head(entry: Any) -> None:
    """`Policy.check_head` of sharded weights, which are whole in it as in a pass."""
    register_fsdp_forward_method(entry, "check_head")
    entry.check_head()
