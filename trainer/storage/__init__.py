"""Object stores: URLs as folders, mirrors of run folders, verified downloads.

`location` accesses a store; `cached_segments` reads a stream's files from one; `mirror` keeps a copy of a run folder in
one, using the passes of `mirror_pass`; `fetch` downloads such a copy.
"""
