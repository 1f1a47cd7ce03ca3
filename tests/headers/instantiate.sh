#!/bin/bash
# headers/instantiate.sh COMPILER FLAGS SOURCE WARNINGS: the source compiles without a word.
compiler=$1 flags=$2 source=$3 warnings=$4
command -v "$compiler" > /dev/null || { echo "skipped: no $compiler"; exit 77; }
said=$("$compiler" "@$flags" "@$warnings" -fsyntax-only "$source" 2>&1) && [ -z "$said" ] || { echo "$said"; exit 1; }
