"""Breaker: a policy that makes no sense is refused; `cron/test_decide.py` tests what it does."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.errors import ConfigurationError
from coterie.kernel.retry import Breaker


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"failures": 0}, "failures of Breaker is 0: it must be a whole number from 1 on"),
        ({"reset": "0s"}, 'reset of Breaker is "0s": it must be longer than zero'),
        ({"reset": "60"}, 'reset of Breaker is "60": a duration needs a unit'),
    ],
)
def test_a_breaker_that_makes_no_sense_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Breaker(**options)
    assert caught.value.message == problem
