"""An extension of vLLM's worker: a reload that also reaches what was packed at load, and an engine of weight transfer.

`PYTHONPATH=FOLDER_OF_THIS_FILE vllm serve ... --worker-extension-cls whetstone_worker.Reload`, and for the engine also
`--weight-transfer-config '{"backend": "whetstone"}'`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

ENGINE = "whetstone"
"""Name of the engine, for --weight-transfer-config."""


class Reload:
    """Methods that `/collective_rpc` can call on every worker."""

    reload_weights: Any
    """vLLM's own."""
    model_runner: Any

    def whetstone_reload(self) -> None:
        """`reload_weights`, then every embedding and output head is prepared for its kernels again."""
        self.reload_weights()
        pack_heads(self.model_runner.get_model())


def pack_heads(model: Any) -> None:
    """Prepare every embedding and output head for its kernels.

    On the CPU, vLLM keeps a packed copy of the output head. A tied head is not in the checkpoint, so neither `reload_weights` nor a
    transfer replaces that copy (seen in 0.32.0): new weights below, the old head on top.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for layer in model.modules():
        if isinstance(layer, VocabParallelEmbedding):
            layer.quant_method.process_weights_after_loading(layer)


@dataclass
class Update:
    """What `/update_weights` is sent: the tensors that are broadcast, in order."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


def engine_class() -> Any:
    """The engine: each worker takes one broadcast a tensor from the trainer, and loads it as it would from a checkpoint."""
    import torch
    import whetstone_group
    from vllm.distributed.weight_transfer.base import WeightTransferEngine
    from vllm.model_executor.model_loader import reload

    class Engine(WeightTransferEngine):  # type: ignore[misc]
        init_info_cls = whetstone_group.Meeting
        update_info_cls = Update
        group: Any = None
        through: Any = None

        def init_transfer_engine(self, init_info: Any) -> None:
            self.shutdown()
            parallel = self.parallel_config
            rank = 1 + parallel.data_parallel_index * parallel.world_size + parallel.rank
            self.through = self.device if init_info.kind == "nccl" else torch.device("cpu")
            self.group = whetstone_group.join(init_info, rank)

        def start_weight_update(self) -> None:
            reload.initialize_layerwise_reload(self.model)

        def receive_weights(self, update_info: Any) -> None:
            entries = zip(update_info.names, update_info.dtypes, update_info.shapes, strict=True)
            for name, dtype, shape in entries:
                tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=self.through)
                self.group.broadcast(tensor, 0).wait()
                self.model.load_weights([(name, tensor.to(self.device))])

        def finish_weight_update(self) -> None:
            reload.finalize_layerwise_reload(self.model, self.model_config)
            pack_heads(self.model)

        @staticmethod
        def trainer_send_weights(*args: Any, **named: Any) -> None:
            # abstract in vLLM 0.26, and gone in 0.32: our trainer sends by itself
            raise NotImplementedError

        def shutdown(self) -> None:
            self.group = None

    return Engine


def register() -> None:
    """Tell vLLM of the engine, where it has weight transfer and lets others register theirs."""
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    except ImportError:
        return
    WeightTransferEngineFactory.register_engine(ENGINE, engine_class())


def know_towers() -> None:
    """Let vLLM load towers of SigLIP and CLIP inside other models under the names that transformers 5 writes.

    Without this, a LLaVA that was saved by transformers 5.23 is not loaded (seen in 0.32.0): `vision_tower.vision_model.` was shortened.
    """
    from vllm.model_executor.models.utils import AutoWeightsLoader

    shortened = re.compile(
        r"^((?:model\.)?vision_tower\.)(?=(?:embeddings|encoder|pre_layrnorm|post_layernorm|head)\.)"
    )
    load = AutoWeightsLoader.load_weights

    def load_weights(loader: Any, weights: Any, **settings: Any) -> Any:
        if hasattr(getattr(loader.module, "vision_tower", None), "vision_model"):
            weights = ((shortened.sub(r"\1vision_model.", name), tensor) for name, tensor in weights)
        return load(loader, weights, **settings)

    AutoWeightsLoader.load_weights = load_weights


if __name__ == "whetstone_worker":  # in vLLM's processes; ours import the names alone
    register()
    know_towers()
