"""SQLite: one row per transaction, each acknowledged. Arguments: journal mode, synchronous level."""
import os
import sqlite3
import sys

journal, synchronous = sys.argv[1:3]
db = sqlite3.connect(os.environ["FIRST_WORK_DIR"] + "/db", isolation_level=None)
db.execute(f"pragma journal_mode = {journal}")
db.execute(f"pragma synchronous = {synchronous}")
db.execute("create table t (id integer primary key, text text)")
db.execute("create index i on t (text)")
for number in range(3):
    db.execute("insert into t values (?, ?)", (number, str(number) * 1500))
    print("saved", number, flush=True)
