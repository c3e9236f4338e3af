"""An extension of vLLM's worker: a reload that also reaches what was packed at load.

`PYTHONPATH=FOLDER_OF_THIS_FILE vllm serve ... --worker-extension-cls whetstone_worker.Reload`
"""

from __future__ import annotations

from typing import Any


class Reload:
    """Methods that `/collective_rpc` can call on every worker."""

    reload_weights: Any
    """vLLM's own."""
    model_runner: Any

    def whetstone_reload(self) -> None:
        """`reload_weights`, then every embedding and output head is prepared for its kernels again.

        On the CPU, vLLM keeps a packed copy of the output head. A tied head is not in the checkpoint, so `reload_weights`
        leaves that copy as it was (seen in 0.32.0): new weights below, the old head on top.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

        self.reload_weights()
        for layer in self.model_runner.get_model().modules():
            if isinstance(layer, VocabParallelEmbedding):
                layer.quant_method.process_weights_after_loading(layer)
