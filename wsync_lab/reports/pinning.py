"""What the records of a pinning run say."""

from collections.abc import Iterator, Sequence

from wsync_lab.records import Record
from wsync_lab.reports.verdict import Verdict
from wsync_lab.tables.markdown import significant
from wsync_lab.tables.pinning import held
from wsync_lab.tables.published import Report

_RIGHT = "staged"
_A_TENTH = 0.1  # of a bucket a bucket: what counts as rising


def pinning_verdict(records: Sequence[Record], published: Report) -> Verdict:
    """Whether the staged buffer is flat and right, and what the other strategies do."""
    shown = [record for record in records if record["kind"] == "pinning"]
    wrong = [record for record in shown if record["config"]["strategy"] == _RIGHT and not _is_right(record)]
    details = [*_rising(shown), *_stale(shown), _beside(published)]
    if wrong:
        return Verdict("THE STAGED BUFFER PINS MEMORY OR SENDS OTHER BYTES", False, details)
    return Verdict(
        "A persistent buffer keyed by parameter dtype is flat, and its bytes are right", True, details
    )


def _is_right(record: Record) -> bool:
    return not _rises(record) and record["num_stale"] == record["num_nans"] == 0


def _rises(record: Record) -> bool:
    return bool(record["growth_bytes"] > _A_TENTH * record["config"]["bucket_bytes"])


def _rising(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        if _rises(record):
            name, rise = record["config"]["strategy"], significant(record["growth_bytes"] / 1e6)
            size = significant(record["config"]["bucket_bytes"] / 1e6)
            yield f"`{name}` with {held(record)} held rises by {rise} MB a bucket of {size} MB."


def _stale(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        if record["num_stale"]:
            name, stale = record["config"]["strategy"], record["num_stale"]
            yield (
                f"`{name}` with {held(record)} held: {stale} tensors arrived with other bytes, "
                f"{record['num_nans']} values as NaN."
            )


def _beside(published: Report) -> str:
    rise, plateau = published.value("parent_unbounded_growth_GB"), published.value("parent_n4_plateau_GB")
    return (
        f"Published ({published.key}; {published.setup}): fresh buckets pin {plateau:.0f} GB where 4 are "
        f"held, and {rise:.0f} GB over 12 buckets where all are."
    )
