"""Fixtures that every test may use: golden files, and how hypothesis draws; which cases are slow; garbage."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ["OPTFUSE_STRICT"] = "1"  # a defect fails the test that meets it
# Threads that wait for each other spin, the more so beside other tests: about an eighth of all time went there.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_tests = count()
GOLDEN = Path(__file__).parent / "golden"

# Imports and traces of torch and sympy allocate so much that collections took a sixth of the time of tests.
gc.set_threshold(50_000, 10, 20)

settings.register_profile(
    "dev", deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True)
settings.register_profile("nightly", parent=settings.get_profile("dev"), max_examples=100)
settings.load_profile("ci" if "CI" in os.environ else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` rewrites the golden files instead of comparing with them."""
    parser.addoption("--update-golden", action="store_true", help="write what the tests print into tests/golden")


def pytest_configure(config: pytest.Config) -> None:
    """Of what a failed test caught, show what it printed: torch logs every fake tensor, which buries the report."""
    if config.option.showcapture == "all":
        config.option.showcapture = "stdout"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol() -> None:
    """Also where torch is imported by a test."""
    let_torchs_logs_reach_the_root()


def let_torchs_logs_reach_the_root() -> None:
    """Pytest listens to each logger whose records do not reach the root, thrice a test: torch has seventy of them.

    One is its structured trace, for which it prints every graph and stack as long as anything listens.
    """
    if "torch" not in sys.modules or logging.getLogger("torch.__trace").propagate:
        return
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``@pytest.mark.spread(n, first)``: every n-th case of a test is quick, from ``first`` on; the rest is slow."""
    seen: Counter[str] = Counter()
    for item in items:
        spread = item.get_closest_marker("spread")
        if spread is not None and not item.get_closest_marker("slow"):
            test = item.nodeid.partition("[")[0]
            step, first = (*spread.args, 0)[:2]
            if (seen[test] - first) % step:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


def pytest_collection_finish() -> None:
    """Look for garbage no more among what imports have made, which stays; and have no traces made."""
    gc.collect()
    gc.freeze()
    let_torchs_logs_reach_the_root()


@pytest.fixture(autouse=True)
def own_torch_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Torch keeps compiled graphs in a folder of the test's own: what a test compiles is compiled."""
    name = "TORCHINDUCTOR_CACHE_DIR"
    before = os.environ.get(name)
    os.environ[name] = str(tmp_path_factory.getbasetemp() / f"torch-{next(_tests)}")
    yield
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before


@pytest.fixture(autouse=True)
def own_random_numbers() -> None:
    """Weights that a test draws do not depend on what other tests have drawn before."""
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        # Without a GPU, ``torch.manual_seed`` keeps a stack trace for each kind of one that may come.
        (torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed)(0)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``golden(text)`` compares with tests/golden/<test module>/<test name>.txt; ``suffix`` for more than ".txt"."""

    def compare(text: str, suffix: str = ".txt") -> None:
        path = GOLDEN / request.path.stem.removeprefix("test_") / (request.node.name.removeprefix("test_") + suffix)
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden file {path}; run pytest --update-golden and read what it wrote"
        assert text == path.read_text()

    return compare
