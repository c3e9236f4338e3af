"""What a remote training engine (`engine`) needs of a recipe, and what it cannot give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipelines.base.errors import RecipeError
from pipelines.contract.catalogue import Bound
from pipelines.recipe.settings import Rlvr
from pipelines.recipe.slots import bind_providers, bind_slots, bound_list
from pipelines.recipe.stage_kind import Node
from pipelines.recipe.training import FixedDataSettings, TrainSettings

NOT_GIVEN = {
    "entropy": "the gradient of entropies",
    "entropy_top_p": "the gradient of entropies",
    "entropy_old": "entropies",
    "logp_top": "the probabilities of tokens that were not sampled",
}
"""Column → what the server does not give."""


def refusals(rl: Rlvr) -> Iterator[tuple[str, str, str]]:
    """(slot, part, what it needs that a remote engine does not give) of the chosen parts and of the providers that join by themselves."""
    chosen = bound_list(bind_slots(rl))
    for part in chosen:
        for column in sorted(set(part.needs) & NOT_GIVEN.keys()):
            yield part.slot, part.name, NOT_GIVEN[column]
        if part.fn.uses("sampling"):
            yield part.slot, part.name, "sampling at other temperatures"
    for part in [*with_parts(chosen), *bind_providers(rl, chosen)]:
        if part.fn.reads_network:
            yield part.slot, part.name, "the policy's weights, hidden states or logits"


def with_parts(methods: Iterable[Bound]) -> Iterator[Bound]:
    """Methods, each followed by those that it is made of."""
    for each in methods:
        yield each
        yield from each.fn.parts()


def check_engine(node: Node) -> None:
    """A stage that a remote engine trains asks nothing of it that it does not give.

    Raises:
        RecipeError: the reason and the fix.
    """
    settings: Rlvr | FixedDataSettings = node.settings
    _check_start(node)
    _check_fields(node)
    if not isinstance(settings, Rlvr):
        return
    if not settings.sampling.unchanged:
        raise RecipeError(
            f"{node.name}.sampling",
            "a remote engine scores under the model's own distribution, which these settings change",
            "Leave temperature, top_p, top_k, min_p and adaptive out.",
        )
    for slot, name, needed in refusals(settings):
        raise RecipeError(
            slot,
            f"{name} needs {needed}, and a remote engine (`engine`) gives log-probabilities of tokens alone",
            "Choose another part, or leave `engine` out.",
        )


def _check_start(node: Node) -> None:
    """The weights that the stage starts from are the server's base, or were trained there."""
    if node.recipe.model.fresh is not None:
        raise RecipeError(
            "model.fresh",
            f"{node.name} is trained by a remote engine, which has a base model of its own",
            "Name that model in model.path.",
        )
    for name in node.named("model"):
        if name == "base":
            continue
        before: TrainSettings = node.recipe.node(name).settings
        engine = getattr(before, "engine", None)
        if engine is None:
            raise RecipeError(
                f"{node.name}.engine",
                f"{name} is trained elsewhere, and the server has the base model alone",
                f"Give {name} the same `engine`, or start {node.name} from the base (`model: base`).",
            )
        if (engine.base_model, engine.rank) != (node.settings.engine.base_model, node.settings.engine.rank):
            raise RecipeError(
                f"{node.name}.engine",
                f"its base_model and rank are not those of {name}, whose adapters it goes on with",
                "Give both stages the same.",
            )


def _check_fields(node: Node) -> None:
    """Settings of training in the stage's own processes are left out."""
    settings = node.settings
    set_fields = {
        "lora": settings.lora is not None,
        "processes": settings.processes > 1,
        "optimizer.kind": settings.optimizer.kind != "adamw",
        "gradient_checkpointing": settings.gradient_checkpointing,
        "activation_offload": settings.activation_offload,
        "sampler": getattr(settings, "sampler", None) is not None,
        "staleness": getattr(settings, "staleness", 0) > 0,
    }
    for field, there in set_fields.items():
        if there:
            raise RecipeError(
                f"{node.name}.{field}",
                "it is for training in the stage's own processes, and `engine` trains and decodes on a server",
                "Leave it out" + (": engine.rank is that of the adapters." if field == "lora" else ", or `engine`."),
            )
