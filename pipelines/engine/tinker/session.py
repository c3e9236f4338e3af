"""A training session on a server of the Tinker protocol, over the protocol's own client.

Protocol and client: https://github.com/thinking-machines-lab/tinker. Two primitives suffice for any loss over log-probabilities:
`forward` gives them, and `forward_backward` adds the gradient of a sum over tokens, weighted with the derivatives of the loss.
"""

from __future__ import annotations

import concurrent.futures
import io
import os
import tarfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipelines.base.distribution import install_hint
from pipelines.base.errors import Interrupted, ModelError, Problem, UserError

if TYPE_CHECKING:
    from pipelines.recipe.server import RemoteEngine
    from pipelines.recipe.stage_kind import Node

Form = Literal["cross_entropy", "importance_sampling"]
"""The loss by which the server is given derivatives; see `probe.py`."""
ARCHIVE_BYTES = 1 << 36
"""Most bytes of downloaded adapters (64 GiB)."""


@dataclass(frozen=True)
class Row:
    """A row as the server sees it."""

    tokens: list[int]
    """What goes in, [L]."""
    targets: list[int]
    """The token after each, [L]."""
    places: list[int]
    """Which of them are scored, ascending."""


def client_library() -> Any:
    """The protocol's client.

    Raises:
        ModelError: it is not installed.
    """
    try:
        import tinker
    except ImportError as error:
        raise ModelError(
            "engine.kind", f"the protocol's client cannot be imported ({error})", f"Run: {install_hint('tinker')}."
        ) from error
    return tinker


@contextmanager
def _unreported() -> Iterator[None]:
    """A client that is made inside does not report to its makers, unless the environment says that it may."""
    name = "TINKER_TELEMETRY"
    if name in os.environ:
        yield
        return
    os.environ[name] = "0"
    try:
        yield
    finally:
        del os.environ[name]


def check_server(settings: RemoteEngine, base_model: str) -> None:
    """Ask the server once, without patience: the client would wait for one that is not there.

    Raises:
        ModelError: nobody answers, or it does not have the base model.
    """
    import httpx

    key = os.environ.get(settings.api_key_env)
    try:
        answer = httpx.get(
            f"{settings.url.rstrip('/')}/api/v1/get_server_capabilities", headers={"X-API-Key": key} if key else {},
            timeout=60, trust_env=False,
        )  # fmt: skip
        answer.raise_for_status()
        known = [str(model["model_name"]) for model in answer.json()["supported_models"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ModelError(
            "engine.url",
            f"{settings.url} does not answer as a server of the Tinker protocol: {type(error).__name__}: {error}",
            f"Start the server, or mend the address; a key comes from the environment variable {settings.api_key_env}.",
        ) from None
    if base_model not in known:
        listed = ", ".join(sorted(known)[:8]) or "no model"
        raise ModelError(
            "engine.base_model", f"the server has no {base_model}; it has {listed}", "Name one of its models."
        )


def problems(node: Node) -> Iterator[Problem]:
    """What stands against a stage that a remote engine trains: no client, no server, or another model there."""
    engine = node.settings.engine
    try:
        client_library()
        check_server(engine, engine.base_model or node.recipe.model.path or "")
    except ModelError as error:
        yield from (problem.inside(node.name) for problem in error.problems)


class Session:
    """Adapters of a base model that are trained on a server.

    Args:
        settings: of the engine.
        base_model: as the server calls it.
        seed: of fresh adapters.

    Raises:
        ModelError: the server does not answer, does not know the base model, or refuses the rank or the key.
    """

    def __init__(self, settings: RemoteEngine, base_model: str, *, seed: int) -> None:
        self.settings, self.base_model = settings, base_model
        self.form: Form = "cross_entropy"
        """How derivatives are sent."""
        self.averages = False
        """Whether the server divides the gradient of a step by its number of rows."""
        self.rows_sent = 0
        """Rows whose gradients the next optimizer step uses."""
        self._waiting: list[Any] = []
        self._sampler: Any = None
        self._references: dict[str | None, Any] = {}
        self._tinker = client_library()
        check_server(settings, base_model)
        with self._errors(ModelError), _unreported():
            self._service = self._tinker.ServiceClient(
                base_url=settings.url, api_key=os.environ.get(settings.api_key_env) or "tml-none"
            )
            try:
                self._training = self._service.create_lora_training_client(
                    base_model, rank=settings.rank, seed=seed % 2**31
                )
            except BaseException:
                self.close()
                raise

    @contextmanager
    def _errors(self, kind: type[ModelError] | type[Interrupted] = Interrupted) -> Iterator[None]:
        """Say what the server says, as an error that a person can do something about."""
        try:
            yield
        except UserError:  # said already
            raise
        except (concurrent.futures.TimeoutError, TimeoutError):
            raise Interrupted(
                "engine",
                f"{self.settings.url} did not answer within {self.settings.timeout_s:g} seconds",
                "The last commit is good: look at the server, raise engine.timeout_s if it is only slow, and run again.",
            ) from None
        except (self._tinker.TinkerError, ValueError) as error:
            fix = "The last commit is good: look at the server, and run again." if kind is Interrupted else ""
            raise kind("engine", f"{self.settings.url} refuses: {str(error)[:500]}", fix) from error

    def _result(self, future: Any) -> Any:
        with self._errors():
            return future.result(self.settings.timeout_s)

    def _call(self, function: Callable[..., Any], **arguments: Any) -> Any:
        """What a call of the client gives that waits by itself, and for a server that is gone without end."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            try:
                future.set_result(function(**arguments))
            except BaseException as error:  # raised where it is waited for
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return self._result(future)

    def _data(self, rows: Sequence[Row], inputs: Callable[[int, Row], dict[str, list[float]]]) -> list[Any]:
        """Rows with their targets and further values [L] as the client takes them."""
        types = self._tinker.types
        return [
            types.Datum(
                model_input=types.ModelInput.from_ints(row.tokens),
                loss_fn_inputs={
                    "target_tokens": types.TensorData(data=row.targets, dtype="int64", shape=[len(row.targets)]),
                    **{
                        name: types.TensorData(data=values, dtype="float32", shape=[len(values)])
                        for name, values in inputs(number, row).items()
                    },
                },
            )
            for number, row in enumerate(rows)
        ]

    def log_probs(self, rows: Sequence[Row]) -> list[list[float]]:
        """Log-probability in nats of each scored token, a list per row."""
        data = self._data(rows, lambda _, row: {"weights": [0.0] * len(row.targets)})
        with self._errors():
            outputs = self._result(self._training.forward(data, "cross_entropy")).loss_fn_outputs
        every = [output["logprobs"].data for output in outputs]
        if [len(values) for values in every] != [len(row.targets) for row in rows]:
            raise Interrupted("engine", f"{self.settings.url} gives no log-probability for some tokens.")
        return [[float(values[place]) for place in row.places] for values, row in zip(every, rows, strict=True)]

    def add_gradient(
        self, rows: Sequence[Row], derivatives: Sequence[Sequence[float]], log_probs: Sequence[Sequence[float]]
    ) -> None:
        """Add the gradient of the sum over scored tokens of derivative times log-probability to that of the coming step.

        Args:
            derivatives: of the loss by each scored token's log-probability, in the order of `places`.
            log_probs: of these tokens now.
        """
        if self.form == "cross_entropy":

            def inputs(number: int, row: Row) -> dict[str, list[float]]:
                return {"weights": _spread(row, [-value for value in derivatives[number]])}

        else:  # the ratio to the present log-probabilities is 1, and so is its derivative; weights that sum to 1 divide by 1

            def inputs(number: int, row: Row) -> dict[str, list[float]]:
                count = len(row.places)
                return {
                    "weights": _spread(row, [1 / count] * count),
                    "advantages": _spread(row, [-value * count for value in derivatives[number]]),
                    "logprobs": _spread(row, log_probs[number]),
                }

        with self._errors():
            self._waiting.append(self._training.forward_backward(self._data(rows, inputs), self.form))
        self.rows_sent += len(rows)

    def step(self, **adam: float) -> dict[str, float]:
        """One AdamW step of the gradients that were added.

        Args:
            adam: `learning_rate`, `beta1`, `beta2`, `eps`, `weight_decay`, `grad_clip_norm` (0: none).

        Returns:
            What the server measured, by its own names.
        """
        if self.averages and self.rows_sent:  # of a gradient that is divided, eps and the bound would be as much larger
            adam |= {name: adam[name] / self.rows_sent for name in ("eps", "grad_clip_norm")}
        with self._errors():
            stepped = self._training.optim_step(self._tinker.types.AdamParams(**adam))
        for future in self._waiting:
            self._result(future)
        self._waiting, self.rows_sent, self._sampler = [], 0, None
        return dict(self._result(stepped).metrics or {})

    def save(self) -> str:
        """Keep weights and optimizer on the server; where they are."""
        with self._errors():
            return str(self._result(self._training.save_state(_name(), ttl_seconds=self._ttl())).path)

    def load(self, path: str, *, optimizer: bool) -> None:
        """Take up what `save` kept, of this session or of another with adapters of the same rank."""
        load = self._training.load_state_with_optimizer if optimizer else self._training.load_state
        with self._errors():
            self._result(load(path))
        self._waiting, self.rows_sent, self._sampler = [], 0, None

    def save_for_sampler(self) -> str:
        """Keep the weights alone, to decode with, score with or download; where they are."""
        with self._errors():
            return str(self._result(self._training.save_weights_for_sampler(_name(), ttl_seconds=self._ttl())).path)

    def sampler(self) -> Any:
        """The protocol's sampling client with the present weights."""
        if self._sampler is None:
            self._sampler = self._call(self._training.save_weights_and_get_sampling_client)
        return self._sampler

    def sample(self, requests: Sequence[tuple[list[int], int, dict[str, Any]]]) -> list[list[Any]]:
        """Sampled sequences of each request: prompt, number, and fields of the client's `SamplingParams`."""
        types, client = self._tinker.types, self.sampler()
        with self._errors():
            futures = [
                client.sample(types.ModelInput.from_ints(prompt), count, types.SamplingParams(**fields))
                for prompt, count, fields in requests
            ]
        return [list(self._result(future).sequences) for future in futures]

    def reference_log_probs(self, rows: Sequence[Row], path: str | None) -> list[list[float]]:
        """As `log_probs`, of kept weights, or of the base model.

        Args:
            path: from `save_for_sampler`; None for the base model without adapters.
        """
        if path not in self._references:
            weights = {"base_model": self.base_model} if path is None else {"model_path": path}
            self._references[path] = self._call(self._service.create_sampling_client, **weights)
        client, types = self._references[path], self._tinker.types
        with self._errors():
            futures = [
                client.compute_logprobs(types.ModelInput.from_ints([*row.tokens, row.targets[-1]])) for row in rows
            ]
        every = [self._result(future) for future in futures]
        # The hosted service gives a first value too, None; SkyRL's JAX server leaves it out.
        if any(len(values) - len(row.tokens) not in (0, 1) for values, row in zip(every, rows, strict=True)):
            raise Interrupted("engine", f"{self.settings.url} gives no log-probability for some tokens.")
        return [
            [float(values[place + len(values) - len(row.tokens)]) for place in row.places]
            for values, row in zip(every, rows, strict=True)
        ]

    def download(self, path: str, folder: Path) -> None:
        """Unpack adapters from `save_for_sampler` in peft's format.

        Raises:
            Interrupted: the server sends something else.
        """
        import httpx

        url = self._archive(path)
        try:
            with httpx.stream("GET", url, timeout=self.settings.timeout_s, follow_redirects=True) as answer:
                answer.raise_for_status()
                packed = io.BytesIO(answer.read())
            with tarfile.open(fileobj=packed) as archive:
                if sum(member.size for member in archive.getmembers()) > ARCHIVE_BYTES:
                    raise tarfile.TarError("it is larger than any adapters")
                archive.extractall(folder, filter="data")
        except (httpx.HTTPError, tarfile.TarError) as error:
            raise Interrupted("engine", f"the adapters at {path} cannot be fetched: {error}") from error
        if not (folder / "adapter_config.json").exists():
            raise Interrupted("engine", f"the server's archive of {path} holds no adapter_config.json.")

    def _archive(self, path: str) -> str:
        """Where the adapters at a path can be downloaded. Servers differ in how they call a checkpoint: `sampler_weights/NAME`, or NAME.

        SkyRL's paths are `tinker://MODEL/NAME`, others have `sampler_weights` between the two.
        """
        model, checkpoint = path.removeprefix("tinker://").split("/", 1)
        client = self._service.create_rest_client()
        try:
            return str(client.get_checkpoint_archive_url(model, checkpoint).result(self.settings.timeout_s).url)
        except self._tinker.APIStatusError:
            name = checkpoint.rpartition("/")[2]
            with self._errors():
                return str(self._result(client.get_checkpoint_archive_url(model, name)).url)

    def _ttl(self) -> int | None:
        days = self.settings.checkpoint_days
        return None if days is None else round(days * 86_400)

    def close(self) -> None:
        """Hang up."""
        self._service.holder.close()


def _name() -> str:
    return f"whetstone-{uuid.uuid4().hex[:16]}"


def _spread(row: Row, values: Sequence[float]) -> list[float]:
    """Values of the scored tokens among zeros, [L]."""
    out = [0.0] * len(row.targets)
    for place, value in zip(row.places, values, strict=True):
        out[place] = float(value)
    return out
