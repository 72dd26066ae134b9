"""Forecasts on the page: the curves continued beyond what was measured, each with its band, a table, and the words."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from hpc.system.sanitize import plain
from hpc.system.text import capitalized
from parse.command_options import MILLION, add_devices_per_node, nodes_and_devices
from parse.extrapolation.outlook import ForecastBasis, Outlook, RequestError, SizeForecast, SizeRequest, outlooks
from parse.extrapolation.rule import NOMINAL, series_of_results
from parse.extrapolation.text import notes, table
from parse.page.figures import Line, LineStyle, Listing, PageBlock, Section, Table
from parse.page.scaling import factor
from parse.report.summary import Summary
from parse.runs.result import Result, by_setting

COVERAGE = f"{100 * NOMINAL:.0f} %"
FORECAST = "forecast, not measured"
DRAWN = (
    f"dashed in a colour, with open marks: {FORECAST}; the band is its {COVERAGE} interval, and where there is none no "
    "interval is known"
)

FORECAST_HELP = (
    "speed, efficiency and node hours at sizes that were not measured, each with its interval or why it cannot be told "
    "(docs/forecast.md); 64 are nodes, 256g devices"
)


@dataclass(frozen=True, kw_only=True)
class Forecasts:
    """The requested sizes of each setting, by its key."""

    drawn: ClassVar[str] = DRAWN
    request: SizeRequest
    outlooks: Mapping[str, Outlook]

    def cases(self, setting: Sequence[Result]) -> list[tuple[int, str]]:
        """Devices and case of the sizes beyond the largest measured one: `16n2g`, or `32g` where nobody knows nodes."""
        known = [(size.nodes, size.devices or 0) for size in self.beyond(setting)]
        return [(n, f"{nodes}n{n // nodes}g" if nodes and n % nodes == 0 else f"{n}g") for nodes, n in known]

    def continued(self, measured: Line, setting: Sequence[Result], quantity: str) -> Line | None:
        """The forecasts that follow the line of a setting, from its last point on, as `speed`, `speedup` or
        `efficiency` (in %). None where there is none, or no base to scale them by."""
        sizes = self.beyond(setting)
        scaled = next((result for result in setting if result.speedup and result.median_speed and result.base), None)
        known = [(x, y) for x, y in zip(measured.x, measured.y, strict=True) if x and y]
        if not known or not sizes or (scaled is None and quantity != "speed"):
            return None
        spans = [
            (size.devices, size.speed.times(factor(scaled or setting[0], quantity, size.devices)))
            for size in sizes
            if size.devices and size.speed
        ]
        x, y = known[-1]
        return Line(
            name=f"{measured.name}, {FORECAST}", number=measured.number, style=LineStyle.FORECAST,
            x=[x, *(devices for devices, _ in spans)], y=[y, *(span.value for _, span in spans)],
            intervals=[(y, y), *((span.low, span.high) if span.low and span.high else None for _, span in spans)],
        )  # fmt: skip

    def beyond(self, setting: Sequence[Result]) -> list[SizeForecast]:
        """The sizes with a forecast beyond the largest measured one, few devices first."""
        of_setting = self.outlooks[setting[0].requested.setting]
        largest = max((point.devices for point in of_setting.series.points), default=0)
        sizes = {
            size.devices: size
            for size in of_setting.sizes
            if size.speed and size.devices and size.devices > largest and size.basis is not ForecastBasis.MEASURED
        }
        return [sizes[devices] for devices in sorted(sizes)]

    def section(self) -> Section:
        """A table of the requested sizes of each setting, and below it what it rests on."""
        blocks: list[PageBlock] = []
        for number, each in enumerate(self.outlooks.values()):
            suffix = f"-{number}" if number else ""
            caption = f"Forecast of {each.series.name}; the last column says what was measured"
            rows = table(each)
            marked = frozenset(at for at, size in enumerate(each.sizes) if size.basis is not ForecastBasis.MEASURED)
            blocks.append(
                Table(**{**vars(rows), "id": f"forecast-sizes{suffix}", "caption": caption, "marked": marked})
            )
            blocks.append(
                Listing(title="What it rests on", lines=[capitalized(text) for text in notes(each, self.request)])
            )
        return Section(id="forecast", title="What sizes that were not measured will give", blocks=blocks)


def forecasts_of(summary: Summary, request: SizeRequest) -> Forecasts:
    """The requested sizes of all settings. Raises RequestError as `outlooks`."""
    settings = by_setting(result for result in summary.results if not result.run.diagnostic)
    series = series_of_results(summary.results)
    forecasts = dict(zip(settings, outlooks(series, request), strict=True))
    return Forecasts(request=request, outlooks=forecasts)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of forecasts to those of the report."""
    forecasts = parser.add_argument_group("forecasts")
    forecasts.add_argument("--forecast", type=nodes_and_devices, metavar="SIZE,…", help=FORECAST_HELP)
    add_devices_per_node(forecasts)


def check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Ends the command where these options act on nothing."""
    if options.devices_per_node and not options.forecast and options.samples is None:
        parser.error("--devices-per-node: of a forecast, and none is requested: --forecast 8,16 does")


def requested(summary: Summary, options: argparse.Namespace, parser: argparse.ArgumentParser) -> Forecasts | None:
    """The forecasts that are requested; ends the command where an option contradicts what was read."""
    if not options.forecast:
        return None
    nodes, devices = options.forecast
    work, per_node = options.samples or MILLION, options.devices_per_node
    try:
        return forecasts_of(summary, SizeRequest(nodes=nodes, devices=devices, work=work, devices_per_node=per_node))
    except RequestError as error:
        parser.error(plain(str(error)))
