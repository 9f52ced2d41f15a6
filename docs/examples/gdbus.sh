#!/bin/sh
# Cosine of two sentences, with gdbus, which comes with GLib.
#
#   gdbus.sh "the disk is full" "no space left on device"
set -eu
gdbus call --system --dest org.opdbus.Embedding1 --object-path /org/opdbus/Embedding1 \
    --method org.opdbus.Embedding1.Embedder.Similarity -- "$1" "$2"
