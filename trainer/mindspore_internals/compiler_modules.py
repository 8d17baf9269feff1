"""MindSpore's compiler modules; their location depends on the version.

Relied on: `api` holds `_cell_graph_executor`, which compiles and runs the programs of cells, and `parser` reads their
sources. Both are in `mindspore.graph` since 2.9; before, in `mindspore.common` and `mindspore._extends`.
"""

try:
    from mindspore.graph import api
    from mindspore.graph._parse import parser
except ImportError:
    from mindspore._extends.parse import parser
    from mindspore.common import api

__all__ = ["api", "parser"]
