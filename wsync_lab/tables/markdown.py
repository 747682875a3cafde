"""DataFrames as Markdown that also reads well as plain text on a terminal."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

_LONGEST_QUOTE = 200


def step_summary(table: pd.DataFrame) -> str:
    """``tables.steps.summary`` with units in the head of each column."""
    return markdown_table(
        {
            "transport": list(table["transport"]),
            "steps": list(table["steps"]),
            "step (s)": _numbers(table["step_s"]),
            "sync (s)": _numbers(table["sync_s"]),
            "sync share": [percent(value) for value in table["sync_share"]],
            "payload (MB)": _numbers(table["payload_MB"]),
            "sync (GB/s)": _numbers(table["sync_GBps"]),
            "largest log-prob gap": [_scientific(value) for value in table["max_logprob_gap"]],
            "status": list(table["status"]),
        }
    )


def sync_summary(table: pd.DataFrame) -> str:
    """``tables.syncs.summary`` with units in the head of each column."""
    return markdown_table(
        {
            "transport": list(table["transport"]),
            "payload": list(table["model"]),
            "payload (MB)": _numbers(table["payload_bytes"] / 1e6),
            "tensors": [significant(value) for value in table["num_tensors"]],
            "sync (s)": _numbers(table["sync_s"]),
            "spread": [percent(value) for value in table["spread"]],
            "GB/s": _numbers(table["GBps"]),
            "x of limit": _numbers(table["vs_limit"]),
            "x as fast as cpu": _numbers(table["vs_cpu"]),
            "status": list(table["status"]),
        }
    )


def fixed_costs(table: pd.DataFrame) -> str:
    """``tables.syncs.fixed_costs`` with units in the head of each column."""
    return markdown_table(
        {
            "transport": list(table["transport"]),
            "per update (ms)": _numbers(table["update_s"] * 1e3),
            "per tensor (µs)": _numbers(table["tensor_s"] * 1e6),
            "GB/s beyond that": _numbers(table["GBps"]),
            "largest error of the fit": [percent(value) for value in table["residual"]],
            "records": list(table["num_records"]),
        }
    )


def markdown_table(columns: Mapping[str, Sequence[object]]) -> str:
    """A GitHub table with padded cells; columns of numbers are aligned to the right."""
    cells = {name: [_cell(value) for value in values] for name, values in columns.items()}
    widths = {name: max(3, len(name), *map(len, values), 0) for name, values in cells.items()}
    right = {name: all(map(_is_number, values)) for name, values in cells.items()}
    rule = ["-" * (widths[name] - 1) + (":" if right[name] else "-") for name in cells]
    rows = [list(cells), rule, *(list(row) for row in zip(*cells.values(), strict=True))]
    return "\n".join(_line(row, widths.values(), right.values()) for row in rows)


def inline_code(text: str) -> str:
    """Somebody else's words, an error's, as code on one line: no mark in them has an effect."""
    return f"`{textwrap.shorten(text.replace('`', chr(39)), _LONGEST_QUOTE, placeholder=' …')}`"


def significant(value: float) -> str:
    """Three significant digits without an exponent, or a dash where there is no number."""
    if pd.isna(value):
        return "–"
    decimals = 3 - len(f"{abs(value):.0f}") if abs(value) >= 1 else 3
    text = f"{value:.{max(0, decimals)}f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"
    return text if "e" not in text else f"{value:.2e}"


def _line(row: Sequence[str], widths: Iterable[int], right: Iterable[bool]) -> str:
    padded = [
        text.rjust(width) if to_right else text.ljust(width)
        for text, width, to_right in zip(row, widths, right, strict=True)
    ]
    return f"| {' | '.join(padded)} |"


def _numbers(values: "pd.Series[float]") -> list[str]:
    return [significant(value) for value in values]


def percent(value: float) -> str:
    """A share with one decimal, or a dash where there is no number."""
    return "–" if pd.isna(value) else f"{value:.1%}"


def _scientific(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:.1e}"


def _cell(value: object) -> str:
    """One line, with the character that would end the cell escaped."""
    return " ".join(str(value).split()).replace("|", "\\|")


def _is_number(text: str) -> bool:
    return text == "–" or text.rstrip("%").replace(".", "", 1).replace("e-", "", 1).isdigit()
