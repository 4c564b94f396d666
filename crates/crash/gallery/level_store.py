"""LevelDB (plyvel) or RocksDB (rocksdict): one key per write. Arguments: engine, sync or nosync."""
import os
import sys

engine, how = sys.argv[1:3]
path = os.environ["FIRST_WORK_DIR"] + "/db"
if engine == "leveldb":
    import plyvel

    db = plyvel.DB(path, create_if_missing=True)

    def put(key, value):
        db.put(key, value, sync=how == "sync")

else:
    import rocksdict

    db = rocksdict.Rdict(path, rocksdict.Options(raw_mode=True))
    options = rocksdict.WriteOptions()
    options.sync = how == "sync"

    def put(key, value):
        db.put(key, value, write_opt=options)


for number in range(4):
    put(str(number).encode(), str(number).encode() * 400)
    print("saved", number, flush=True)
# As a process that is killed: closing would write more.
os._exit(0)
