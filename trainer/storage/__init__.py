"""Object stores: URLs as folders, mirrors of run folders, verified downloads.

`location` accesses a store. `cached_segments` makes local copies of data files. `mirror` keeps a copy of a run folder
in a store, using the passes of `mirror_pass`. `fetch` downloads such a copy.
"""
