"""The rules, a module for each family."""

from __future__ import annotations

from kvconn.testing.suite.base import Kit
from kvconn.testing.suite.capacity import CapacityRules
from kvconn.testing.suite.configuration import ConfigurationRules
from kvconn.testing.suite.counts import CountRules
from kvconn.testing.suite.failures import FailureRules
from kvconn.testing.suite.identity import IdentityRules
from kvconn.testing.suite.leases import LeaseRules
from kvconn.testing.suite.life import LifeRules
from kvconn.testing.suite.processes import ProcessRules
from kvconn.testing.suite.reads import ReadRules
from kvconn.testing.suite.runs import RandomRuns
from kvconn.testing.suite.stores import StoreRules

__all__ = ["BackendTests", "Kit"]


class BackendTests(
    ReadRules,
    IdentityRules,
    LeaseRules,
    LifeRules,
    CapacityRules,
    FailureRules,
    CountRules,
    ProcessRules,
    StoreRules,
    ConfigurationRules,
    RandomRuns,
):
    """Subclass it, override ``make_backend``, and pytest does the rest."""
