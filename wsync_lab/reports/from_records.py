"""A report of step records alone: the notebook that shows them, made without a kernel."""

from collections.abc import Sequence
from typing import Any

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from wsync_lab.plots import steps as charts
from wsync_lab.records import Record, RecordError
from wsync_lab.reports.document import Notebook
from wsync_lab.reports.provenance import provenance_of
from wsync_lab.reports.verdict import Verdict, step_verdict
from wsync_lab.tables.markdown import step_summary
from wsync_lab.tables.published import Report
from wsync_lab.tables.steps import steps, summary

MAX_LOGPROB_GAP = 1e-4  # nats; float32 on both sides stays far below it


def notebook_of(records: Sequence[Record], title: str, published: Report) -> Notebook:
    """An executed notebook with the verdict, the summary and every chart of ``records``."""
    shown = [record for record in records if record["kind"] == "step"]
    if not shown:
        raise RecordError("no step records: a report is made of records of kind 'step'")
    return new_notebook(
        cells=[
            new_markdown_cell(f"# {title}"),
            _cell("summary", step_summary(summary(shown))),
            *(_cell("figure", chart) for chart in step_charts(shown, published)),
            new_markdown_cell("## Verdict"),
            _cell("verdict", step_verdict(shown, published, MAX_LOGPROB_GAP)),
            _cell("provenance", provenance_of(shown)),
        ]
    )


def step_charts(records: Sequence[Record], published: Report) -> list[charts.Chart]:
    """Every chart of step records, in the order of the notebook."""
    table = steps(records)
    beside = {published.key: published.value("weight_sync_share")}
    return [
        charts.step_time_breakdown(table),
        charts.sync_share(table, beside),
        charts.sync_breakdown(table),
        charts.reward(table),
        charts.logprob_gap(table),
    ]


def _cell(tag: str, shown: Verdict | charts.Chart | str) -> Any:
    bundle = {"text/markdown": shown} if isinstance(shown, str) else shown._repr_mimebundle_()
    data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
    output = new_output("display_data", data=data, metadata=metadata)
    return new_code_cell(outputs=[output], execution_count=1, metadata={"tags": [tag]})
