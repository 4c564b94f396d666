"""Runs the unittest suite below the current directory and prints [name, status] lines."""

import json
import sys
import unittest


class Events(unittest.TestResult):
    def __init__(self, file):
        super().__init__()
        self.file = file
        self.worst = None

    def write(self, name, status):
        print(json.dumps([name, status]), file=self.file, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.worst = "passed"

    def stopTest(self, test):
        super().stopTest(test)
        self.write(test.id(), self.worst)

    def addFailure(self, test, error):
        self.worst = "failed"

    def addError(self, test, error):
        if self.worst is None:
            self.write(str(test), "error")
        self.worst = "error"

    def addSkip(self, test, reason):
        self.worst = "skipped"

    def addExpectedFailure(self, test, error):
        self.worst = "skipped"

    def addUnexpectedSuccess(self, test):
        self.worst = "failed"

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.worst = "failed"


with open(sys.argv[1], "w", encoding="utf-8") as out:
    unittest.defaultTestLoader.discover(".", pattern=sys.argv[2]).run(Events(out))
