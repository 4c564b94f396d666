"""Turns a tool's own machine report into {passed, failed, skipped, tests: {name: status}}.

Shares nothing with the parsers it is compared with. Usage: oracle.py KIND FILE...
"""

import collections
import glob
import json
import re
import sys
import xml.etree.ElementTree as ElementTree


def lines(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if line.startswith("{"):
                yield json.loads(line)


def libtest(path):
    """cargo test -- -Z unstable-options --format json"""
    words = {"ok": "passed", "failed": "failed", "ignored": "skipped"}
    for event in lines(path):
        if event.get("type") == "test" and event["event"] in words:
            yield event["name"], words[event["event"]]


def as_reported(case, status):
    return status


def junit(path, name=lambda suite, case: case.get("name"), verdict=as_reported):
    for file in sorted(glob.glob(path)):
        root = ElementTree.parse(file).getroot()
        for suite in root.iter("testsuite"):
            for case in suite.findall("testcase"):
                kinds = {child.tag for child in case}
                if "error" in kinds:
                    status = "error"
                elif "failure" in kinds:
                    status = "failed"
                elif "skipped" in kinds or case.get("status") == "disabled":
                    status = "skipped"
                else:
                    status = "passed"
                yield name(suite, case), verdict(case, status)


def nextest(path):
    if path == "list":
        for event in lines(path):
            for suite in event["rust-suites"].values():
                for name, case in suite["testcases"].items():
                    if case["ignored"]:
                        yield f"{suite['binary-id']} {name}", "skipped"
        return
    yield from junit(path, lambda suite, case: f"{suite.get('name')} {case.get('name')}")


def surefire(path):
    return junit(path, lambda suite, case: f"{case.get('classname')}.{case.get('name')}")


def phpunit(path):
    def verdict(case, status):
        error = case.find("error")
        risky = error is not None and error.get("type").endswith("RiskyTestError")
        return "passed" if risky else status

    return junit(path, lambda suite, case: f"{case.get('class')}::{case.get('name')}", verdict)


def ctest(path):
    def verdict(case, status):
        skipped = case.find("skipped")
        missing = skipped is not None and skipped.get("message").startswith("Unable to find")
        return "error" if missing else status

    return junit(path, verdict=verdict)


def reportlog(path):
    """pytest --report-log"""
    phases = collections.OrderedDict()
    for event in lines(path):
        if event.get("$report_type") == "CollectReport" and event["outcome"] == "failed":
            yield event["nodeid"], "error"
        if event.get("$report_type") != "TestReport":
            continue
        phases.setdefault(event["nodeid"], {})[event["when"]] = event
    for name, phase in phases.items():
        call = phase.get("call")
        if call is not None:
            if "wasxfail" in call:
                yield name, "passed" if call["outcome"] == "passed" else "skipped"
            else:
                yield name, call["outcome"]
        elif phase["setup"]["outcome"] == "skipped":
            yield name, "skipped"
        # An error before or after the test is a count of its own, under the same name.
        for when in ("setup", "teardown"):
            if phase.get(when, {}).get("outcome") == "failed":
                yield name, "error"


def jest(path):
    words = {"passed": "passed", "failed": "failed", "pending": "skipped", "todo": "skipped", "skipped": "skipped"}
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    for suite in report["testResults"]:
        for case in suite["assertionResults"]:
            yield " › ".join(case["ancestorTitles"] + [case["title"]]), words[case["status"]]


def vitest(path):
    words = {"passed": "passed", "failed": "failed", "pending": "skipped", "todo": "skipped", "skipped": "skipped"}
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    for suite in report["testResults"]:
        short = suite["name"].rsplit("/", 1)[-1]
        for case in suite["assertionResults"]:
            yield " > ".join([short] + case["ancestorTitles"] + [case["title"]]), words[case["status"]]


def mocha(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    report = json.loads(text[text.index('{\n  "stats"'):])
    for key, status in (("passes", "passed"), ("failures", "failed"), ("pending", "skipped")):
        for case in report[key]:
            yield case["fullTitle"], status


def events(path):
    """Lines of [name, status], by a reporter of our own."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield tuple(json.loads(line))


def go(path):
    words = {"pass": "passed", "fail": "failed", "skip": "skipped"}
    outcomes = {}
    for event in lines(path):
        if "Test" in event and event["Action"] in words:
            outcomes[(event["Package"], event["Test"])] = words[event["Action"]]
    parents = {(package, test.rsplit("/", n)[0]) for package, test in outcomes for n in range(1, test.count("/") + 1)}
    failed = [key for key, status in outcomes.items() if status == "failed"]
    for (package, test), status in outcomes.items():
        below = [key for key in failed if key[0] == package and key[1].startswith(test + "/")]
        if (package, test) not in parents or status == "failed" and not below:
            yield f"{package} {test}", status


def rspec(path):
    words = {"passed": "passed", "failed": "failed", "pending": "skipped"}
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    for case in report["examples"]:
        yield case["full_description"], words[case["status"]]
    for message in report.get("messages", []):
        for file in re.findall(r"An error occurred while loading (.*)\.\n", message):
            yield file, "error"


def main():
    counts = collections.Counter()
    tests = {}
    worst = ["passed", "skipped", "failed", "error"]
    for path in sys.argv[2:]:
        for name, status in globals()[sys.argv[1]](path):
            counts["failed" if status == "error" else status] += 1
            tests[name] = max(tests.get(name, status), status, key=worst.index)
    json.dump(
        {
            "passed": counts["passed"],
            "failed": counts["failed"],
            "skipped": counts["skipped"],
            "tests": tests,
        },
        sys.stdout,
        ensure_ascii=False,
    )


main()
