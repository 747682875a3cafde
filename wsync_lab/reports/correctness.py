"""What correctness records say."""

from collections.abc import Sequence

from wsync_lab.records import Record
from wsync_lab.reports.verdict import Verdict
from wsync_lab.tables.correctness import DIFFERENT, EQUAL, FAILED, outcome, outcomes, reasons
from wsync_lab.tables.markdown import inline_code, markdown_table


def outcome_table(records: Sequence[Record]) -> str:
    """Markdown: layouts by transports."""
    table = outcomes(records).T
    return markdown_table({"layout": list(table.index)} | {str(name): list(table[name]) for name in table})


def correctness_verdict(records: Sequence[Record]) -> Verdict:
    """Whether every transport that runs here delivered every byte."""
    words = [outcome(record) for record in records]
    wrong = [record for record, word in zip(records, words, strict=True) if word in {DIFFERENT, FAILED}]
    updates = sum(record.get("num_updates", 0) for record in records)
    if wrong:
        named = ", ".join(f"{each['config']['transport']} with {each['config']['layout']}" for each in wrong)
        return Verdict(
            f"WRONG BYTES OR FAILURE: {named}", False, [inline_code(each) for each in reasons(records)]
        )
    headline = f"Every transport that runs here delivered every byte: {words.count(EQUAL)} combinations"
    details = [f"{updates} updates between two processes, all tensors compared byte for byte after each."]
    return Verdict(headline, True, details + [inline_code(each) for each in reasons(records)])
