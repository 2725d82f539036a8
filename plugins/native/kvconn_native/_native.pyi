from collections.abc import Buffer

def read_files(
    paths: list[bytes], buffers: list[Buffer], direct: bool, threads: int
) -> list[int]: ...
def write_files(
    temporaries: list[bytes],
    paths: list[bytes],
    buffers: list[Buffer],
    direct: bool,
    sync: bool,
    threads: int,
) -> list[int]: ...
def xxh3_128(buffers: list[Buffer], threads: int) -> list[bytes]: ...
