"""The raw samples of updates, as records hold them."""

from collections.abc import Sequence
from typing import Any

from wsync_lab.protocol.phases import SYNC_PHASES, SyncReport


def samples(reports: Sequence[SyncReport]) -> dict[str, Any]:
    """Of each update its time, the parts of that, and the engine's pause and resume, in seconds."""
    return {
        "sync_times_s": [report.sync_time_s for report in reports],
        "phase_times_s": {name: [report.phase_times_s[name] for report in reports] for name in SYNC_PHASES},
        "pause_s": [report.pause_s for report in reports],
        "resume_s": [report.resume_s for report in reports],
    }
