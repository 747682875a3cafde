"""Reports: one file, nothing fetched, every figure there, and no file at all when that fails."""

from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.reports.made_records import step_record
from wsync_lab.errors import ConfigError
from wsync_lab.reports.document import document_of
from wsync_lab.reports.from_records import notebook_of
from wsync_lab.reports.html import ReportError, check, external_addresses, render
from wsync_lab.reports.write import write_report
from wsync_lab.tables.published import read_published

ROLL = read_published()["alibaba/ROLL#485"]


@cache
def drawn_notebook():
    return notebook_of([step_record("cpu"), step_record("pinned")], "Made up", ROLL)


def made_notebook(*texts: str):
    """The notebook of made-up records, with another Markdown cell for each of ``texts``."""
    notebook = deepcopy(drawn_notebook())
    notebook.cells.extend(map(new_markdown_cell, texts))
    return notebook


def test_the_report_of_records_needs_nothing_else() -> None:
    html = render(document_of(made_notebook()))
    assert external_addresses(html) == []
    assert "://" not in html
    assert html.count('src="data:image/svg+xml;base64,') == 5


@pytest.mark.parametrize(
    "text",
    [
        '<img src="https://example.org/a.png">',
        '<img src="//example.org/a.png">',
        "<script>alert(1)</script>",
        '<link rel="stylesheet" href="a.css">',
        "<style>@import 'a.css';</style>",
        "<style>p { background: url(a.png) }</style>",
        '<p style="background: url(//example.org/a.png)">x</p>',
        "[a link](https://example.org/)",
        "![a picture](pictures/a.png)",
        '<a href="javascript:alert(1)">x</a>',
        '<b onclick="alert(1)">x</b>',
        "see http://example.org/x",
    ],
)
def test_what_points_outside_stops_the_export(text: str) -> None:
    with pytest.raises(ReportError, match="not self-contained"):
        render(document_of(made_notebook(text)))


def test_a_lost_figure_stops_the_export() -> None:
    html = render(document_of(made_notebook()))
    with pytest.raises(ReportError, match="5 figures instead of 6"):
        check(html, 6)


def test_a_figure_cell_without_its_figure_is_refused() -> None:
    notebook = made_notebook()
    notebook.cells.append(new_code_cell(id="empty", execution_count=1, metadata={"tags": ["figure"]}))
    with pytest.raises(ConfigError, match="figure cell empty shows 0 figures"):
        document_of(notebook)


def test_code_is_hidden_until_asked_for_and_logs_are_folded() -> None:
    notebook = made_notebook()
    log = new_output("stream", name="stdout", text="step 1 <of> 6\n")
    notebook.cells.append(new_code_cell("print('<x>')", execution_count=1, outputs=[log]))
    html = render(document_of(notebook))
    assert "<pre class=\"code\">print('&lt;x&gt;')</pre>" in html.replace("&#x27;", "'").replace("&#39;", "'")
    assert ".code { display: none;" in html
    assert '<details class="log"><summary>log</summary><pre>step 1 &lt;of&gt; 6' in html


def test_an_error_text_cannot_become_markup() -> None:
    error = "RuntimeError: <img src=x onerror=alert(1)> `code`"
    html = render(document_of(notebook_of([step_record("cpu", error=error)], "Made up", ROLL)))
    assert "&lt;img src=x onerror=alert(1)&gt;" in html


def test_the_head_holds_title_verdict_and_provenance_once() -> None:
    html = render(document_of(made_notebook()))
    head, _, body = html.partition("</header>")
    assert "<h1>Made up</h1>" in head
    assert "as fast as cpu" in head
    assert "pidfd_getfd ok" in head
    assert "pidfd_getfd ok" not in body


def test_both_files_are_written_or_none(tmp_path: Path) -> None:
    with pytest.raises(ReportError):
        write_report(document_of(made_notebook("<script></script>")), tmp_path, "x")
    assert list(tmp_path.iterdir()) == []
    html, markdown = write_report(document_of(made_notebook()), tmp_path, "x")
    assert sorted(tmp_path.iterdir()) == [html, markdown]


def test_the_markdown_stands_alone_in_an_issue_thread(tmp_path: Path) -> None:
    _, markdown = write_report(document_of(made_notebook()), tmp_path, "x")
    text = markdown.read_text()
    assert text.startswith("## Made up\n\n**pinned (memfd) syncs ")
    assert "\n| cpu " in text
    assert "<details><summary>Provenance</summary>\n\n| provenance" in text


def test_a_notebook_without_a_title_or_verdict_says_so() -> None:
    with pytest.raises(ConfigError, match="tagged 'verdict'"):
        document_of(new_notebook(cells=[new_markdown_cell("# Title")]))


def test_what_libraries_log_stays_in_the_notebook() -> None:
    notebook = made_notebook()
    log = new_output("stream", name="stderr", text="see https://example.org/install")
    lines = [new_output("stream", name="stdout", text=f"step {step}\n") for step in (1, 2)]
    notebook.cells.append(new_code_cell(outputs=[lines[0], log, lines[1]], execution_count=2))
    html = render(document_of(notebook))
    assert "example.org" not in html
    assert "step 1\nstep 2" in html
