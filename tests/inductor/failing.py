"""Workers that do not answer: run as ``python -m tests.inductor.failing IN OUT``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

how = json.loads(Path(sys.argv[1]).read_text())["name"]
if how == "raises":
    raise ValueError("no fusion today")
if how.startswith("leaves a process"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(how.partition(": ")[2]).write_text(str(child.pid))
if how == "hangs":
    time.sleep(600)
if how == "garbles":
    Path(sys.argv[2]).write_text("{")
