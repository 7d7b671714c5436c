#!/usr/bin/env python3
"""Measure what HTTP costs: see http_cost.py, which this runs.

The name is the standard library's, and this folder comes first in the path of every script in it: to those that import
`http` this file gives them that one.
"""

import sys
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).resolve().parent

if __name__ == "http":
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != HERE]
    del sys.modules["http"]
    import_module("http")
elif __name__ == "__main__":
    sys.path[0] = str(HERE.parents[1])
    import_module("scripts.bench.http_cost").main()
