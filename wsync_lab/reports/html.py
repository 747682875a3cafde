"""An executed notebook as one HTML file: nothing is fetched, nothing runs in the reader's browser."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from nbconvert import HTMLExporter

from wsync_lab.errors import WsyncError
from wsync_lab.reports.document import Document

_TEMPLATES = Path(__file__).parent / "templates"
_ADDRESSES = ("src", "srcset", "href", "xlink:href", "data", "action", "poster", "background")
_FORBIDDEN_TAGS = ("script", "link", "iframe", "object", "embed", "base")
_HANDLER = re.compile(r"on\w+")
_EXTERNAL_CSS = re.compile(r"@import.*|url\(\s*['\"]?(?!data:|#).*", re.IGNORECASE)
_WEB_ADDRESS = re.compile(r"https?://[^\s\"'<>]*", re.IGNORECASE)


class ReportError(WsyncError):
    """A report came out incomplete, or asks the reader's browser for something outside it."""


def render(document: Document) -> str:
    """The report as HTML, checked.

    Raises:
        ReportError: see ``check``.
    """
    exporter = HTMLExporter(template_file=str(_TEMPLATES / "report.html.j2"), exclude_anchor_links=True)
    style = (_TEMPLATES / "report.css").read_text()
    html, _ = exporter.from_notebook_node(document.body, {"document": document, "style": style})
    check(html, document.num_figures)
    return str(html)


def check(html: str, num_figures: int) -> None:
    """Refuse a report that is not self-contained or lacks a figure.

    Raises:
        ReportError: names the first thing that is wrong.
    """
    page = _Page(html)
    for found in page.external:
        raise ReportError(f"the report is not self-contained, it has {found}: take that out of the notebook")
    if page.num_figures != num_figures:
        raise ReportError(f"the report has {page.num_figures} figures instead of {num_figures}")


def external_addresses(html: str) -> list[str]:
    """Everything in ``html`` that a browser might run, fetch or follow, and any web address in it."""
    return _Page(html).external


class _Page(HTMLParser):
    """Counts embedded figures and collects what is not self-contained."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.num_figures = 0
        self.external = [f"the address {address}" for address in _WEB_ADDRESS.findall(html)]
        self._in_style = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_style = tag == "style"
        if tag in _FORBIDDEN_TAGS:
            self.external.append(f"<{tag}>")
        for name, value in attrs:
            self.external.extend(f"<{tag} {problem}>" for problem in _problems(name, (value or "").strip()))
        self.num_figures += tag == "img" and (dict(attrs).get("src") or "").startswith("data:image/")

    def handle_endtag(self, tag: str) -> None:
        self._in_style = self._in_style and tag != "style"

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.external.extend(f"the style {found}" for found in _EXTERNAL_CSS.findall(data))


def _problems(name: str, value: str) -> Iterator[str]:
    """What is wrong with one attribute of a tag."""
    if _HANDLER.fullmatch(name):
        yield name
    if name in _ADDRESSES and value and not value.startswith(("data:", "#")):
        yield f"{name}={value[:60]!r}"
    if name == "style" and _EXTERNAL_CSS.search(value):
        yield f"style={value[:60]!r}"
