"""LMDB: one key per transaction. Argument: sync, nosync, nometasync or writemap."""
import os
import sys

import lmdb

how = sys.argv[1]
env = lmdb.open(
    os.environ["FIRST_WORK_DIR"],
    map_size=1 << 20,
    sync=how != "nosync",
    metasync=how != "nometasync",
    writemap=how == "writemap",
)
for number in range(4):
    with env.begin(write=True) as transaction:
        transaction.put(str(number).encode(), str(number).encode() * 400)
    print("saved", number, flush=True)
