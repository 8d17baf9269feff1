"""Implement `trainer doctor --device NAME`: a table of what MindSpore can do."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from ...checks import choice
from ...errors import ConfigurationError
from ...mindspore_internals.device import CHOICES, DEVICES, UNSAFE
from .device_probes import PROBES

_SECONDS = 600  # timeout of a probe; long, because the driver may have to compile the operators for a new chip
_FAILED = "failed: "


def run(name: str | None, path: Path | None) -> int:
    """Probe a device, and write or print the table; return the exit code.

    Args:
        name: "cpu", "gpu" or "ascend".
        path: the file to write; None: the table is printed.

    Raises:
        ConfigurationError: `name` is missing or unknown, or this machine has no such device.
    """
    if name is None:
        raise ConfigurationError("trainer doctor --report FILE takes --device too: cpu, gpu or ascend")
    device: str = choice("--device", name, [item for item in CHOICES if item != "auto"])
    results = run_probes(device)
    lines = table(device, results, asdict(DEVICES[str(CHOICES[device])]))
    text = "\n".join(lines) + "\n"
    if path is None:
        print(text, end="")
    else:
        path.write_text(text, "utf-8")
        print(f"written to {path}")
    return 1 if results["losses_are_right"] is not True else 0


def run_probes(name: str) -> dict[str, Any]:
    """Run each probe in a separate process; return results or errors by probe.

    Raises:
        ConfigurationError: this machine has no such device.
    """
    versions = _run_probe(name, "versions")
    if isinstance(versions, str):
        raise ConfigurationError(versions.removeprefix(_FAILED))
    with ThreadPoolExecutor(2) as pool:
        probes = [probe for probe in PROBES if probe not in ("versions", "microseconds_per_step")]
        results = dict(zip(probes, pool.map(lambda probe: _run_probe(name, probe), probes), strict=True))
    return {"versions": versions, **results, "microseconds_per_step": _run_probe(name, "microseconds_per_step")}


def _run_probe(name: str, probe: str) -> Any:
    spec = importlib.util.find_spec(".device_probes", __package__)
    assert spec is not None
    command = [sys.executable, "-m", spec.name, name, probe]
    try:
        process = subprocess.run(
            command, env={**os.environ, UNSAFE: "1"}, capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        answer = json.loads(process.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return f"{_FAILED}no answer after {_SECONDS} s"
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        return f"{_FAILED}the process ended without an answer ({type(error).__name__}: {error})"
    return f"{_FAILED}{answer['failed']}" if isinstance(answer, dict) and "failed" in answer else answer


def table(name: str, results: dict[str, Any], assumed: dict[str, Any]) -> list[str]:
    """Return Markdown lines that compare observed with assumed behaviour."""
    versions = results["versions"]
    lines = [
        f"# {versions['device']}, {date.today()}",
        "",
        f"MindSpore {versions['mindspore']}, Python {platform.python_version()}, {platform.platform()}",
        "",
        "| | seen | assumed |",
        "| --- | --- | --- |",
    ]
    for probe, answer in results.items():
        if probe != "versions":
            expected = assumed.get(probe)
            lines.append(
                f"| {probe.replace('_', ' ')} | {_text(answer)} | {'' if expected is None else _text(expected)} |"
            )
    return lines


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    text = ("yes" if value else "no") if isinstance(value, bool) else str(value)
    return text.replace("|", "/")
