#!/bin/bash
# kimik3-embed, the program of the README. $1: the folder of the built programs. Exit code 77: it is not there.
program=${1:?the folder of the programs}/kimik3-embed
[ -x "$program" ] || exit 77
said=$("$program") || exit 1
echo "$said"
grep -qx 'the cat sat on the mat, and the dog lay on the sofa.' <<< "$(tail -n 1 <<< "$said")"
