"""Exits with 1 if an acknowledged key is gone, with 2 if the database does not open."""
import os
import sys

import lmdb

promised = len(open(os.environ["FIRST_ACKS"]).readlines())
try:
    env = lmdb.open(os.environ["FIRST_WORK_DIR"], map_size=1 << 20)
    with env.begin() as transaction:
        found = {bytes(key): bytes(value) for key, value in transaction.cursor()}
except lmdb.Error as error:
    print("corrupt:", type(error).__name__)
    sys.exit(2)
for number in range(promised):
    if found.get(str(number).encode()) != str(number).encode() * 400:
        print("lost: an acknowledged key")
        sys.exit(1)
