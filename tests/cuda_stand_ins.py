"""Stand-ins for NVIDIA's libraries, which let MindSpore's real GPU plugin load on a machine without a card.

Each has the names that the plugin asks for, and nothing behind them; the driver's tells of one card of a new kind.
"""

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

from trainer.mindspore_internals import gpu_libraries

TOOLS = ("gcc", "nm")
CARD = "Stand-in 9000"
DRIVER_CODE = f"""
#include <string.h>
int cuInit() {{ return 0; }}
int cuDriverGetVersion(int *version) {{ *version = 12040; return 0; }}
int cuDeviceGetCount(int *count) {{ *count = 1; return 0; }}
int cuDeviceGet(int *device) {{ *device = 0; return 0; }}
int cuDeviceGetName(char *name) {{ strcpy(name, "{CARD}"); return 0; }}
int cuDeviceGetAttribute(int *value, int attribute) {{ *value = attribute == 75 ? 9 : 0; return 0; }}
"""


def can_be_built():
    """Return whether the compiler and MindSpore's plugin are there."""
    return all(map(shutil.which, TOOLS)) and gpu_libraries.plugin() is not None


def build(folder, without=()):
    """Build all but `without`; return (the folder for PYTHONPATH, the folder of the driver)."""
    plugin = gpu_libraries.plugin()
    wanted = defaultdict(set)
    for library in (plugin, *plugin.parent.glob("gpu/*.so*"), *plugin.parent.glob("gpu11.6/*.so*")):
        listed = subprocess.run(
            ["nm", "-D", "--undefined-only", "--with-symbol-versions", library], capture_output=True, text=True
        ).stdout
        for name, version in re.findall(r" U (\w+)@?(lib[\w.]+)?$", listed, re.MULTILINE):
            if version or name.startswith("cu"):
                wanted[version or gpu_libraries.DRIVER].add(name)
    for library in gpu_libraries.LIBRARIES:
        package = folder / "site" / "nvidia" / gpu_libraries.LIBRARIES[library][1] / "lib"
        if library not in without:
            _compile(package / library, wanted[library], "")
    _compile(folder / "driver" / gpu_libraries.DRIVER, wanted[gpu_libraries.DRIVER], DRIVER_CODE)
    return folder / "site", folder / "driver"


def _compile(path: Path, names, code):
    path.parent.mkdir(parents=True, exist_ok=True)
    source, versions = path.with_name("source.c"), path.with_name("versions.map")
    # 100 is "no device"; a text where one is expected
    bodies = [
        f"void *{name}() {{ return {chr(34) + 'no card' + chr(34) if 'Error' in name else '(void *)100'}; }}"
        for name in sorted(names)
        if f" {name}(" not in code
    ]
    source.write_text(code + "\n".join(bodies))
    versions.write_text(f"{path.name} {{ global: *; }};\n")
    options = [] if path.name == gpu_libraries.DRIVER else [f"-Wl,--version-script={versions}"]
    subprocess.run(
        ["gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", *options, "-o", path, source], check=True
    )
