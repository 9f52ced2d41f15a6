#!/bin/sh
# The lines of standard input that say much the same as a sentence, with nothing but busctl.
#
#   loop.sh "the disk is full" < log
#
# One call for each line: fine for a screenful. For more, see semantic-grep.py.
set -eu
# Numbers have a point here, also where the user's language writes a comma.
export LC_ALL=C
while IFS= read -r line || [ -n "$line" ]; do
    # Answers `d 0.527535`. Logs are not all UTF-8, and a bus carries nothing else.
    cosine=$(busctl --system call org.opdbus.Embedding1 /org/opdbus/Embedding1 \
        org.opdbus.Embedding1.Embedder Similarity ss -- "$1" \
        "$(printf '%s' "$line" | iconv -c -f UTF-8 -t UTF-8 2>/dev/null)")
    if awk "BEGIN { exit !(${cosine#d } > 0.3) }"; then
        printf '%.2f  %s\n' "${cosine#d }" "$line"
    fi
done
