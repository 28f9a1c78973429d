"""Counts the tests of a ctest JUnit report; says why tests were skipped; exit code 1 if the run is no proof.

usage: test_summary.py REPORT CTEST_STATUS
"""
import collections
import os
import re
import sys
import xml.etree.ElementTree


def skip_reason(case):
    """What GTEST_SKIP() was given (the line after `file:line: Skipped`), or the last line that a script printed."""
    output = case.findtext("system-out") or ""
    found = re.search(r": Skipped\n(.+)", output) or re.search(r"([^\n]+)\s*\Z", output)
    return found.group(1).strip() if found else "no reason given"


def main():
    report, status = sys.argv[1], int(sys.argv[2])
    if not os.path.exists(report):
        print("tests: no report was written; the run did not start")
        return 1
    counts = collections.Counter()
    skipped = collections.defaultdict(list)
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("skipped") is not None or case.get("status") == "notrun":
            counts["skipped"] += 1
            skipped[skip_reason(case)].append(case.get("name"))
        elif case.get("status") == "run":
            counts["passed"] += 1
        else:
            counts["failed"] += 1

    for reason, names in sorted(skipped.items()):
        print(f"skipped: {len(names)} x {reason} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")

    if status != 0 or counts["failed"] or not counts["passed"]:
        return 1
    unproven = sum(len(names) for reason, names in skipped.items()
                   if "shared" not in reason or os.path.isdir("../shared/fixtures"))
    if unproven and os.environ.get("CI") == "true":
        print(f"error: {unproven} skipped tests are failures where CI=true")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
