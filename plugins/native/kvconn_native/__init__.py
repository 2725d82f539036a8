"""Batched file I/O and checksums that do not wait for Python.

Each call takes lists of equal length, releases the interpreter lock once, and spreads its batch
over up to ``threads`` threads of a pool that all callers share.  Arguments of another type or
length raise ``TypeError``, ``ValueError`` or ``BufferError`` before anything is done.

``read_files(paths, buffers, direct, threads)``
    Fill each buffer with its file and mark the file as used; 0 or an ``errno`` per file.
    ``EBADMSG`` when a file is not as long as its buffer, ``ENOENT`` also when it keeps changing
    while it is read.  ``direct`` passes the page cache by where alignment allows.
``write_files(temporaries, paths, buffers, direct, sync, threads)``
    Write each buffer to its temporary file, new or not, and rename that to its path; 0 or an
    ``errno`` per file.  A new file is its owner's alone.  ``sync`` waits for the medium before the
    rename.  On failure the temporary file is gone.
``xxh3_128(buffers, threads)``
    XXH3-128 of each buffer, seed 0, big-endian; at least 241 bytes each.
"""

from kvconn_native._native import read_files, write_files, xxh3_128

__all__ = ["read_files", "write_files", "xxh3_128"]
