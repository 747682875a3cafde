"""``python -m wsync_lab.cli``."""

import sys

from wsync_lab.cli import main

sys.exit(main())
