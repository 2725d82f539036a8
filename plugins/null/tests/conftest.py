"""One small engine over ``null``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kvconn.connector import Connector
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, content_key
from kvconn.memory import KVCaches

BLOCKS, PAGE = 16, 512


@pytest.fixture
def geometry() -> Geometry:
    return Geometry(block_tokens=4, block_bytes=PAGE)


@pytest.fixture
def pages() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (BLOCKS, PAGE), generator=generator, dtype=torch.uint8)


@pytest.fixture
def caches(pages: torch.Tensor) -> KVCaches:
    return KVCaches({"layer": pages}, num_blocks=BLOCKS)


@pytest.fixture
def namespace() -> Namespace:
    return Namespace("model")


@pytest.fixture
def keys() -> list[bytes]:
    return [content_key(number) for number in range(8)]


@pytest.fixture
def connector() -> Iterator[Connector]:
    with Connector.load({"backend": "null", "strict": True}) as connector:
        yield connector
