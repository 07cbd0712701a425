#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# skipped.sh BUILD: the tests and cases that the last run of ctest skipped, each with its reason.
# Exit code 0; 2 without a run.
log=$1/Testing/Temporary/LastTest.log
[ -f "$log" ] || { echo "no $log: ctest has not run" >&2; exit 2; }
awk '/^[0-9]+\/[0-9]+ Test: / { name = $3; reason = ""; cases = 0 }
     /^skipped: / { reason = substr($0, 10) }
     /^\[  SKIPPED \] [0-9]+ test\(s\)/ { cases = $4 }
     /^<end of output>/ && (reason != "" || cases > 0) {
         count++
         lines = lines sprintf("  %s%s%s\n", name, cases > 0 ? ", " cases " of its cases" : "",
                               reason != "" ? ": " reason : "")
     }
     END {
         if (count == 0) exit
         printf "Skipped, for what is not here:\n%s", lines
         print "CONTRIBUTING.md, Tests that skip, says what each kind needs."
     }' "$log"
