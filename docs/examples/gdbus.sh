#!/bin/sh
# Cosine of two sentences, or of one with each line of the input, with gdbus, which comes with GLib.
#
#   gdbus.sh "the disk is full" "no space left on device"
#   journalctl -p err -o cat | gdbus.sh "the disk is full"
set -eu

similarity() {
    gdbus call --system --dest org.opdbus.Embedding1 --object-path /org/opdbus/Embedding1 \
        --method org.opdbus.Embedding1.Embedder.Similarity -- "$1" "$2"
}

if [ $# -eq 2 ]; then
    similarity "$1" "$2"
    exit
fi
while IFS= read -r line; do
    printf '%s %s\n' "$(similarity "$1" "$line")" "$line"
done
