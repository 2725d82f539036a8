"""C1 to C3: a backend's class and its options, before anything is opened."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kvconn.backend import Backend
from kvconn.config.options import holds_secret
from kvconn.errors import CapacityTooSmall
from kvconn.registry import BACKENDS, Found, check_class
from kvconn.testing.rig import geometry_of
from kvconn.testing.suite.base import Kit, needs

__all__ = ["ConfigurationRules"]

_SECRETS = ("password", "passwd", "secret", "token", "credential", "api_key", "access_key")
ANY = 1 << 26


class ConfigurationRules(Kit):
    """What an operator writes down, and what an operator reads."""

    def test_C1_the_class_speaks_this_contract_and_its_hooks_have_their_signatures(self) -> None:
        kind = type(self.make_backend(ANY))
        found = Found(BACKENDS, kind.__name__, kind.__module__, "this backend", "0")
        check_class(found, kind, Backend)

    def test_C1_an_unknown_option_is_refused(self) -> None:
        assert ("kvconn_no_such_option", "extra_forbidden") in self._faults(
            kvconn_no_such_option="1"
        )

    def test_C1_options_cannot_change_once_they_were_checked(self) -> None:
        config = self.make_backend(ANY).config
        for name in type(config).model_fields:
            with pytest.raises(ValidationError):
                setattr(config, name, None)

    @needs("keeps", "index")
    def test_C1_a_capacity_below_one_chunk_on_every_rank_is_refused(self) -> None:
        geometry = geometry_of(ranks=2)
        least = self.capacity_for(1, geometry)
        backend = self.make_backend(least - 1)
        with pytest.raises(CapacityTooSmall):
            backend.open_scheduler(geometry, self.namespace)

    def test_C2_a_capacity_is_written_with_its_unit(self) -> None:
        fields = type(self.make_backend(ANY).config).model_fields
        if "capacity" not in fields:
            pytest.skip("it has no option capacity")
        for good in ("8GiB", "8GB", 1 << 20):
            assert "capacity" not in {name for name, _ in self._faults(capacity=good)}
        for bad in ("many", "-1GiB", "8G parsecs", 0):
            assert "capacity" in {name for name, _ in self._faults(capacity=bad)}

    def test_C3_options_that_hold_secrets_are_of_a_secret_type(self) -> None:
        fields = type(self.make_backend(ANY).config).model_fields
        open_ones = [
            name
            for name, field in fields.items()
            if any(word in name.lower() for word in _SECRETS) and not holds_secret(field)
        ]
        assert not open_ones, f"{open_ones}: make them pydantic.SecretStr, or they will be logged"

    def _faults(self, **options: object) -> set[tuple[str, str]]:
        """``(option, kind of mistake)`` for those options alone; missing ones are mistakes too."""
        model = type(self.make_backend(ANY).config)
        try:
            model.model_validate(options)
        except ValidationError as error:
            return {(str(fault["loc"][0]), fault["type"]) for fault in error.errors()}
        return set()
