# SPDX-License-Identifier: Apache-2.0
# What fails of what Lintian says: errors, and the warnings of a list; others are shown as notices, so
# that a newer Lintian does not fail a build. awk -F ': ' -f lintian.awk LIST OUTPUT
# The list has all warnings of Lintian 2.116 and 2.122, Debian 12's and 13's:
#   grep -rlx 'Severity: warning' /usr/share/lintian/tags | xargs grep -h '^Tag: ' | cut -d ' ' -f 2

FNR == NR { known[$1]; next }
{ split($3, words, " ") }
$1 == "E" || ($1 == "W" && words[1] in known) { print "error: Lintian: " $0; failed = 1; next }
$1 == "W" { print "notice: a warning that is new to this project: " $0 }
END { exit failed }
