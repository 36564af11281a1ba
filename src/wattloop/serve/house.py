"""What every page needs."""

from collections.abc import Mapping
from datetime import datetime
from importlib import resources
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, select_autoescape

from wattloop.core.units import format_duration, format_energy, format_mass, format_power
from wattloop.serve.options import ServeOptions
from wattloop.store.database import Store
from wattloop.version import __version__

__all__ = ["NAVIGATION", "House", "InHouse"]

NAVIGATION = (
    ("/", "Jobs"),
    ("/compare", "Compare"),
    ("/sweeps", "Sweeps"),
    ("/searches", "Searches"),
    ("/predict", "Predict"),
    ("/simulate", "Simulate"),
    ("/study", "Study"),
)
"""Where -> what it is called, in the order of the verbs."""


class House:
    """Store and templates of one server.

    Args:
        options: what it was told.
        store: open, shared by all threads.
    """

    def __init__(self, options: ServeOptions, store: Store) -> None:
        self.options = options
        self.store = store
        self.templates = Environment(
            loader=PackageLoader("wattloop.serve", "templates"),
            autoescape=select_autoescape(default=True),
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters |= {
            "energy": _or_dash(format_energy),
            "power": _or_dash(format_power),
            "duration": _or_dash(format_duration),
            "mass": _or_dash(format_mass),
            "moment": _moment,
            "short": _short,
        }

    def page(
        self, template: str, request: Request, *, status: int = 200, **data: Any
    ) -> HTMLResponse:
        """A page from a template; `data` is what its JSON has, too."""
        context: Mapping[str, Any] = {
            "navigation": NAVIGATION,
            "here": request.url.path,
            "version": __version__,
            "store_name": self.store.where,
            **data,
        }
        return HTMLResponse(self.templates.get_template(template).render(context), status)


def static_text(name: str) -> str:
    """A file of `static/`."""
    return resources.files("wattloop.serve").joinpath("static", name).read_text("utf-8")


def _house(request: Request) -> House:
    found: House = request.app.state.house
    return found


InHouse = Annotated[House, Depends(_house)]


def _or_dash(shown: Any) -> Any:
    def text(value: float | None) -> str:
        return "–" if value is None else str(shown(value))

    return text


def _short(value: float | None) -> str:
    """Joules without the watt-hours in brackets."""
    return "–" if value is None else format_energy(value).partition(" (")[0]


def _moment(wall_s: float | None) -> str:
    if wall_s is None:
        return "–"
    return f"{datetime.fromtimestamp(wall_s).astimezone():%Y-%m-%d %H:%M:%S}"
