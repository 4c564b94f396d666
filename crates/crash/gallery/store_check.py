"""Argument: leveldb, lmdb or rocksdb. Exits with 1 if an acknowledged key is gone, with 2 if the store does not open."""
import os
import sys

promised = len(open(os.environ["FIRST_ACKS"]).readlines())
engine, path = sys.argv[1], os.environ["FIRST_WORK_DIR"] + "/db"


def contents():
    if engine == "lmdb":
        import lmdb

        # Its two files are in the directory itself.
        with lmdb.open(os.path.dirname(path), map_size=1 << 20).begin() as transaction:
            return {bytes(key): bytes(value) for key, value in transaction.cursor()}
    if promised == 0 and not os.path.exists(path):
        return {}
    if engine == "leveldb":
        import plyvel

        return dict(plyvel.DB(path, create_if_missing=True))
    import rocksdict

    return dict(rocksdict.Rdict(path, rocksdict.Options(raw_mode=True)).items())


try:
    found = contents()
except Exception as error:
    print("corrupt:", type(error).__name__)
    sys.exit(2)
for number in range(promised):
    if found.get(str(number).encode()) != str(number).encode() * 400:
        print("lost: an acknowledged key")
        sys.exit(1)
