"""What the tests on a GPU share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from optfuse.runtime.pace import Pace


@pytest.fixture
def exact_products() -> Iterator[None]:
    """Float32 means float32 here, in eager and in libraries alike."""
    owners = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [owner.allow_tf32 for owner in owners]
    for owner in owners:
        owner.allow_tf32 = False
    yield
    for owner, allowed in zip(owners, before, strict=True):
        owner.allow_tf32 = allowed


@pytest.fixture
def graphs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """``cudagraphs="auto"`` records at the second call, whether or not that saves time."""
    monkeypatch.setattr(Pace, "enter", lambda *_: "graphs")


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Nothing is compiled before, and draws are the same ones; memory is given back."""
    torch._dynamo.reset()  # noqa: SLF001 - its public face
    torch.manual_seed(0)
    yield
    torch.cuda.empty_cache()
