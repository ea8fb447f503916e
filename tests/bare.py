"""An interpreter that forks for every program, so that each program starts without repeating imports.

Each program runs in its own process, as with `python -c`, and ends as an interpreter does, or immediately.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.reliability.processes import Ended

# The child leaves the loop, so that its stack has no frames of the server, and ends with its program.
_SERVER = """
import gc, json, os, sys
exec(sys.argv[1])
gc.freeze()  # what is never collected is never copied
for line in sys.stdin:
    job = json.loads(line)
    if (child := os.fork()) == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
for number, (path, flags) in enumerate(job["streams"]):
    os.dup2(handle := os.open(path, flags, 0o600), number)
    os.close(handle)
os.chdir(job["cwd"])
os.environ.update(job["environment"])
sys.argv[1:] = job["args"]
program, at_once = job["program"], job["at_once"]
for name in ("gc", "json", "line", "job", "child", "number", "path", "flags", "handle", "name"):
    globals().pop(name, None)
try:
    exec(compile(program, "<string>", "exec"))
except SystemExit as end:
    if not at_once or not isinstance(end.code, int | None):
        raise
    code = end.code or 0
else:
    code = 0
if at_once:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""


class Bare:
    """The interpreter, which has run `first` and has the environment variables `environment`.

    With `at_once`, programs exit without the interpreter's cleanup, which is slow if many modules are imported.
    """

    def __init__(self, environment: Mapping[str, str], first: str = "", *, at_once: bool = False) -> None:
        self._at_once = at_once
        command = [sys.executable, "-c", _SERVER, first]
        self._process = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self, program: str, *args: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> Ended:
        """Run `python -c program args…` in `cwd`, with additional environment variables."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            streams = {os.devnull: os.O_RDONLY}
            streams |= {f"{folder}/{name}": os.O_WRONLY | os.O_CREAT | os.O_APPEND for name in ("out", "err")}
            job = {
                "program": program,
                "args": args,
                "cwd": str(cwd or folder),
                "environment": dict(environment or {}),
                "at_once": self._at_once,
                "streams": list(streams.items()),
            }
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            return Ended(code, *(Path(folder, name).read_text() for name in ("out", "err")))

    def close(self) -> None:
        self._process.communicate()
