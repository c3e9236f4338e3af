"""One thread, no telemetry, a project folder of its own for every test that asks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import in_ci  # noqa: E402
import pytest  # noqa: E402
from filelock import FileLock  # noqa: E402
from hostile.counting import (  # noqa: E402, F401  hooks: they count hostile tests
    mark_hostile,
    pytest_runtest_makereport,
    pytest_terminal_summary,
)
from hypothesis import Phase, settings  # noqa: E402

settings.register_profile("quick", max_examples=40, deadline=None)
settings.register_profile("ci", max_examples=40, deadline=None, derandomize=True)  # the same examples for every commit
settings.register_profile("search", max_examples=2000, deadline=None)
settings.register_profile(  # a failure is all that is wanted: nothing is shrunk or stored
    "mutants", max_examples=25, deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
for signum in (signal.SIGINT, signal.SIGHUP):  # a script's background job, or nohup: ignored in all that tests start
    if signal.getsignal(signum) is signal.SIG_IGN:
        signal.signal(signum, lambda *_: None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Before any is left out for its marks."""
    mark_hostile(items)
    in_ci.mark_long(items)


@pytest.fixture(autouse=True)
def _one_thread():
    import torch

    torch.set_num_threads(1)
    # Not torch.manual_seed: before CUDA has started it queues the seed, with a stack trace, for every test.
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _search_path():
    """What a test searches for modules is forgotten after it: its working folder holds modules that the next test names as well."""
    before = [*sys.path]
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True)
def _named_plugins():
    """Plug-ins that a test names by a file of its own are forgotten after it."""
    plugins = sys.modules.get("pipelines.base.plugins")
    before = dict(plugins._named) if plugins else {}
    yield
    plugins = sys.modules.get("pipelines.base.plugins")
    if plugins is not None and plugins._named != before:
        plugins._named.clear()
        plugins._named.update(before)
        plugins.origins.cache_clear()


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty project folder; no server is named."""
    for name in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.setenv(name, "")  # so that what the test leaves there is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first worker of a run makes and all of them read."""
    beside = factory.getbasetemp()
    beside = beside.parent if "PYTEST_XDIST_WORKER" in os.environ else beside
    folder = beside / name
    with FileLock(beside / f"{name}.lock"):
        if not folder.exists():
            half = factory.mktemp(name)
            make(half)
            half.rename(folder)
    return folder


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """Curated data and a model that has seen a little SFT; read only."""
    import toys

    if (made := Path(os.environ.get("WHETSTONE_TESTS_START", ""))).is_absolute() and made.exists():
        return made  # planted bugs: made once, without the bug
    return made_once(tmp_path_factory, "start", toys.start)


@pytest.fixture(scope="session")
def lake(tmp_path_factory):
    """FrozenLake data and a little model that has seen some moves; read only."""
    import toys

    return made_once(tmp_path_factory, "lake", toys.start_lake)
