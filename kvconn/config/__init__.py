"""Configuration: URLs, mappings and files, all resolved to one frozen model."""

from kvconn.config.build import build_backend, build_policies
from kvconn.config.choice import PluginChoice
from kvconn.config.model import ConnectorConfig, load_config
from kvconn.config.report import log_resolved, redact
from kvconn.config.sizes import Capacity, Per, humanise
from kvconn.config.urls import hide_password

__all__ = [
    "Capacity",
    "ConnectorConfig",
    "Per",
    "PluginChoice",
    "build_backend",
    "build_policies",
    "hide_password",
    "humanise",
    "load_config",
    "log_resolved",
    "redact",
]
