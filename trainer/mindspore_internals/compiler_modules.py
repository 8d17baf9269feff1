"""MindSpore's compiler modules; their location depends on the version.

`api` contains `_cell_graph_executor`, which compiles and runs the programs of cells. `parser` reads the sources of
cells. Both are in `mindspore.graph` since MindSpore 2.9; before, they were in `mindspore.common` and
`mindspore._extends`.
"""

try:
    from mindspore.graph import api
    from mindspore.graph._parse import parser
except ImportError:
    from mindspore._extends.parse import parser
    from mindspore.common import api

__all__ = ["api", "parser"]
