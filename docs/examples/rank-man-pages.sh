#!/bin/sh
# The manual pages that answer a question, best first.
#
#   rank-man-pages.sh "how do I see which process uses a port?"
#   rank-man-pages.sh "…" FILE    with the output of `apropos .` in a file
set -eu
question=$1
if [ $# -gt 1 ]; then cat "$2"; else apropos .; fi | op-dbus rank --top 5 -- "$question"
