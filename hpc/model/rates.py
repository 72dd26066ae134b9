"""What a node hour and a kilowatt hour cost, as a site states it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_RATE = 1e9
"""No node hour costs more, of whatever currency, and no kilowatt hour."""


class RatesError(ValueError):
    """A rate is no amount; the text names it."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """An amount of money."""

    amount: float
    currency: str

    def __str__(self) -> str:
        """`12.40 EUR`, of less than a hundredth two significant digits: `0.00031 EUR`."""
        amount = f"{self.amount:,.2f}" if self.amount >= 0.01 or not self.amount else f"{self.amount:.2g}"
        return f"{amount} {self.currency}"


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The price of a node hour in `currency`, and the carbon of a kilowatt hour in g of CO2; None where nobody states
    it. Raises RatesError on what is no amount, and where only one of price and currency is stated."""

    node_hour_price: float | None = None
    currency: str = ""
    gCO2_per_kWh: float | None = None

    def __post_init__(self) -> None:
        for name in ("node_hour_price", "gCO2_per_kWh"):
            value = getattr(self, name)
            if value is not None and not (type(value) in (int, float) and 0 <= value <= MAX_RATE):
                raise RatesError(f"{name} is {value!r:.40}; it must be a number from 0 to {MAX_RATE:g}")
        if not isinstance(self.currency, str) or not re.fullmatch(r"[^\s\x00-\x1f\x7f]{0,12}", self.currency):
            raise RatesError(f"currency is {self.currency!r:.40}; it must be a word of at most 12 characters, as EUR")
        if (self.node_hour_price is None) != (not self.currency):
            raise RatesError("node_hour_price and currency go together: one is stated without the other")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Rates:
        """Those in a table; unknown members are of a later version."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: values[name] for name in names if name in values})

    def as_json(self) -> dict[str, Any]:
        """The rates that are stated."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in (None, "")}

    def price(self, node_hours: float) -> Price | None:
        """Of so many; None where none is stated."""
        if self.node_hour_price is None:
            return None
        return Price(amount=self.node_hour_price * node_hours, currency=self.currency)


NO_RATES = Rates()
