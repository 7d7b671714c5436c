"""Lets the tests of this folder import the mutators beside them, which are command lines of their own as well."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
