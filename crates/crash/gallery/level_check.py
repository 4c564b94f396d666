"""Exits with 1 if an acknowledged key is gone, with 2 if the database does not open."""
import os
import sys

promised = len(open(os.environ["FIRST_ACKS"]).readlines())
path = os.environ["FIRST_WORK_DIR"] + "/db"
if promised == 0 and not os.path.exists(path):
    sys.exit(0)
try:
    if sys.argv[1] == "leveldb":
        import plyvel

        db = plyvel.DB(path, create_if_missing=True)
        found = dict(db)
    else:
        import rocksdict

        db = rocksdict.Rdict(path, rocksdict.Options(raw_mode=True))
        found = dict(db.items())
except Exception as error:
    print("corrupt:", type(error).__name__)
    sys.exit(2)
for number in range(promised):
    if found.get(str(number).encode()) != str(number).encode() * 400:
        print("lost: an acknowledged key")
        sys.exit(1)
