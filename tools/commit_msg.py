#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the subject of a commit: `room: imperative subject`, at most 72 columns, one change.

    ln -s ../../tools/commit_msg.py .git/hooks/commit-msg     to have git ask it
    tools/commit_msg.py FILE                                  FILE holds the message

Findings go to stderr; exit 1 when there is any. Merges, reverts and fixups are left alone.
"""

import re
import sys

COLUMNS = 72
# Endings that an imperative verb does not have; the exceptions are verbs themselves.
NOT_IMPERATIVE = re.compile(r"^(?!(?:bring|string|ping|need|feed|speed|seed|embed|add|read)$)"
                            r"\w+(?:ing|ed)$")
EMPTY_WORDS = {"wip", "fix", "fixes", "update", "updates", "misc", "stuff", "changes"}
LEFT_ALONE = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")


def findings_of(message):
    lines = [line for line in message.split("\n") if not line.startswith("#")]
    while lines and not lines[0].strip():
        lines.pop(0)
    if not lines:
        return ["there is no subject"]
    subject, found = lines[0].rstrip(), []
    if subject.startswith(LEFT_ALONE):
        return []
    if len(subject) > COLUMNS:
        found.append(f"the subject has {len(subject)} columns; {COLUMNS} are allowed")
    match = re.match(r"^([a-z][\w/.-]*(?:, [a-z][\w/.-]*)*): (\S.*)$", subject)
    if not match:
        return found + ["the subject is not `room: imperative subject`"]
    text = match.group(2)
    words = text.split()
    if len(words) < 2 or words[0].lower() in EMPTY_WORDS and len(words) < 3:
        found.append("the subject does not say what changes")
    if NOT_IMPERATIVE.match(words[0]) or words[0][0].isupper():
        found.append(f"`{words[0]}` is no verb in the imperative, in small letters")
    if text.endswith("."):
        found.append("the subject ends with a full stop")
    if ";" in text or len(re.findall(r"\band\b", text)) > 1:
        found.append("the subject joins several changes: make a commit of each")
    if len(lines) > 1 and lines[1].strip():
        found.append("line 2 is not empty")
    return found


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    with open(sys.argv[1], encoding="utf-8") as file:
        found = findings_of(file.read())
    for text in found:
        print(f"commit-msg: {text}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
