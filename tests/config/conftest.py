"""A disk-like and a server-like backend, planted for each test."""

from __future__ import annotations

import inspect

import pytest

from kvconn.backend import Backend

_SOURCE = """
from pathlib import Path
from typing import Annotated
from pydantic import Field, SecretStr, field_validator, model_validator
from kvconn.backend import Backend, PluginConfig
from kvconn.config import Capacity, Per
from kvconn.errors import CapacityTooSmall
from kvconn.policy import Policy


class ShelfConfig(PluginConfig):
    path: Path
    capacity: Annotated[Capacity, Per.TOTAL] = 2**30
    direct: bool = True


class ServerConfig(PluginConfig):
    host: str = "localhost"
    port: int = 6379
    username: str = ""
    password: SecretStr = SecretStr("")
    path: str = "/0"
    token: SecretStr | None = None
    url: str = ""
    timeout: float = Field(default=1.0, gt=0)

    @field_validator("password")
    @classmethod
    def quoting(cls, value):
        if "quote" in value.get_secret_value():
            raise ValueError(f"bad password {value.get_secret_value()}")
        return value

    @model_validator(mode="after")
    def fitting(self):
        if self.timeout == 13:
            raise ValueError(f"unlucky {self.password.get_secret_value()}")
        if self.timeout == 14:
            raise RuntimeError(f"no words for {self.password.get_secret_value()}")
        return self


class Shelf(Backend):
    contract_version = 1
    Config = ShelfConfig
STUBS

class Server(Shelf):
    Config = ServerConfig

    def __init__(self, config):
        super().__init__(config)
        if config.host == "tiny":
            raise CapacityTooSmall("one chunk takes more")
        if config.host == "nowhere":
            raise OSError(f"no route for {config.password.get_secret_value()}")


class Plain(Shelf):
    Config = PluginConfig


class Quota(Policy):
    contract_version = 1

    class Config(PluginConfig):
        tokens: int = 1
"""


@pytest.fixture(autouse=True)
def planted(install) -> str:
    """Backends ``shelf``, ``server`` and ``plain``, and a policy ``quota``; their module."""
    stubs = "".join(
        f"    def {hook}({', '.join(inspect.signature(getattr(Backend, hook)).parameters)}): ...\n"
        for hook in sorted(Backend.__abstractmethods__)
    )
    return install(
        "kvconn-planted",
        _SOURCE.replace("STUBS", stubs),
        backends={"shelf": "Shelf", "server": "Server", "plain": "Plain"},
        policies={"quota": "Quota"},
    )
