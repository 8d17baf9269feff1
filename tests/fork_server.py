"""Starts processes by forking itself, which has imported MindSpore already; see `tests.forked`.

python fork_server.py FOLDER

Standard input names requests, one a line: NAME stands for FOLDER/NAME.json, and its exit code goes to FOLDER/NAME.code.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import sys
from pathlib import Path

for library in ("mindspore", "mindspore.dataset", "numba", "pyarrow"):
    importlib.import_module(library)


def serve(folder):
    """Start what is asked for, and note how it ends; return the arguments of the process to be, in that process."""
    children, text = {}, b""
    while True:
        ready, _, _ = select.select([0, *children], [], [])
        for descriptor in [one for one in ready if one]:
            pid, name = children.pop(descriptor)
            os.close(descriptor)
            (folder / f"{name}.new").write_text(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
            (folder / f"{name}.new").rename(folder / f"{name}.code")
        if 0 not in ready:
            continue
        read = os.read(0, 1 << 16)
        *names, text = (text + read).split(b"\n")
        for name in map(bytes.decode, names):
            pid = os.fork()
            if pid == 0:
                for descriptor in children:
                    os.close(descriptor)
                return become(**json.loads((folder / f"{name}.json").read_text()))
            (folder / f"{name}.pid.new").write_text(str(pid))
            (folder / f"{name}.pid.new").rename(folder / f"{name}.pid")
            children[os.pidfd_open(pid)] = pid, name
        if not read:
            for pid, _ in children.values():
                os.kill(pid, 9)
            sys.exit()


def become(arguments, cwd, environment, output, errors):
    """Make this process what it is asked to be, as far as that can be told from Python."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    # both are ignored in what `nohup` starts, or a script in its background
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return arguments


kind, *rest = serve(Path(sys.argv[1]))
gc.freeze()
sys.argv[:] = rest if kind == "-m" else [kind, *rest]
sys.path[0] = os.getcwd() if kind in ("-m", "-c") else os.path.dirname(os.path.abspath(kind))
if kind == "-c":
    sys.argv[:] = ["-c"]
    exec(rest[0], {"__name__": "__main__"})
elif kind == "-m":
    runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(kind, run_name="__main__")
