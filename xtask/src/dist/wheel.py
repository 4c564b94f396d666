"""Packs a program into a wheel: VERSION TAG WHEEL PROGRAM README LICENCES."""

import base64
import hashlib
import sys
import zipfile

version, tag, wheel, program, readme, licences = sys.argv[1:]
information = f"retake-{version}.dist-info"


def read(path):
    with open(path, "rb") as file:
        return file.read()


metadata = f"""Metadata-Version: 2.1
Name: retake
Version: {version}
Summary: Run it again, on the record
License: MIT OR Apache-2.0
Requires-Python: >=3.7
Description-Content-Type: text/markdown

"""
tags = f"""Wheel-Version: 1.0
Generator: retake
Root-Is-Purelib: false
Tag: {tag}
"""
files = [
    (f"retake-{version}.data/scripts/retake", read(program), 0o755),
    (f"{information}/METADATA", metadata.encode() + read(readme), 0o644),
    (f"{information}/WHEEL", tags.encode(), 0o644),
    (f"{information}/licenses/licences.txt", read(licences), 0o644),
]
record = ""
for name, content, _ in files:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record += f"{name},sha256={digest},{len(content)}\n"
record += f"{information}/RECORD,,\n"
files.append((f"{information}/RECORD", record.encode(), 0o644))
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for name, content, mode in files:
        entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100000 | mode) << 16
        archive.writestr(entry, content)
