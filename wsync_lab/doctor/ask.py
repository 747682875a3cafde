"""The other side of ``observe``: ``python -m wsync_lab.doctor.ask QUESTION``."""

import json
import sys
from typing import Any

from wsync_lab.doctor.questions import QUESTIONS


def answer(question: str, arguments: list[str]) -> dict[str, Any]:
    try:
        return {"value": QUESTIONS[question](*arguments), "error": ""}
    except Exception as error:  # of any type: it is the answer
        text = str(error).strip().splitlines()
        return {"value": None, "error": f"{type(error).__name__}: {text[0] if text else ''}"}


if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1], sys.argv[2:])), flush=True)
