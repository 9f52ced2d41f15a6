#!/bin/sh
# Cosine of two sentences, or of one with each line of the input, with gdbus, which comes with GLib.
#
#   gdbus.sh "the disk is full" "no space left on device"
#   journalctl -p err -o cat | gdbus.sh "the disk is full"
set -eu

# As GVariant's text form has it: gdbus would take quotes around a text for its own. Logs are not all
# UTF-8, and a bus carries nothing else.
quoted() {
    printf "'%s'" "$(printf '%s' "$1" | iconv -c -f UTF-8 -t UTF-8 2>/dev/null | sed "s/[\\\\']/\\\\&/g")"
}

similarity() {
    gdbus call --system --dest org.opdbus.Embedding1 --object-path /org/opdbus/Embedding1 \
        --method org.opdbus.Embedding1.Embedder.Similarity -- "$(quoted "$1")" "$(quoted "$2")"
}

if [ $# -eq 2 ]; then
    similarity "$1" "$2"
    exit
fi
while IFS= read -r line || [ -n "$line" ]; do
    cosine=$(similarity "$1" "$line")
    printf '%s %s\n' "$cosine" "$line"
done
