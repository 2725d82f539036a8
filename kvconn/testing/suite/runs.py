"""Everything at once, at random, beside a model."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from kvconn.backend import Settings
from kvconn.testing.machine import EngineMachine, runs_of
from kvconn.testing.profiles import Profile
from kvconn.testing.suite.base import Kit, Open, needs

if TYPE_CHECKING:
    from kvconn.testing.rig import Rig

__all__ = ["RandomRuns"]


class RandomRuns(Kit):
    """Hypothesis chooses what an engine does; ``full`` and ``soak`` shorten bad runs."""

    @needs("keeps")
    def test_L2_random_runs_agree_with_the_model_and_leave_nothing_held(
        self, open_rig: Open
    ) -> None:
        home, space, able = self.place, self.namespace, self.capabilities()
        numbers = itertools.count()

        def machine() -> EngineMachine:
            number = next(numbers)
            place = home / f"run-{number}"
            place.mkdir()
            namespace = replace(space, extra=(("run", number),))

            def opened() -> Rig:
                self.place, self.namespace = place, namespace
                return open_rig(chunks=6, settings=Settings(events=True))

            return EngineMachine(opened, able)

        runs_of(
            machine,
            shrink=self.profile > Profile.QUICK,
            max_examples=self.profile.examples,
            derandomize=self.profile is Profile.QUICK,
        )
