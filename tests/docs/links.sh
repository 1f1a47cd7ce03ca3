#!/bin/bash
# docs/links.sh SOURCE_FOLDER
# What README.md and docs/ point to is there: files and headings of links within the repository, and the test cases that
# pages name as `folder/file: name`, in tests/.
cd "${1:?the folder of the sources}" || exit 1
failures=0 links=0 tests=0
complain() { echo "$1"; failures=$((failures + 1)); }

# The anchor that GitHub gives a heading: lower case, punctuation dropped, spaces as hyphens.
anchors() { sed -nE 's/^#+ +//p' "$1" | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'; }

# page:line:text of all that matches the pattern $1 outside of blocks.
all() {
    find README.md docs -name '*.md' -exec awk -v pattern="$1" '
        FNR == 1 { inside = 0 }
        /^ *```/ { inside = !inside }
        { for (rest = inside ? "" : $0; match(rest, pattern); rest = substr(rest, RSTART + RLENGTH))
              print FILENAME ":" FNR ":" substr(rest, RSTART, RLENGTH) }' {} +
}

while IFS=: read -r page line link; do
    link=${link#](} link=${link%)}
    [[ $link == *://* ]] && continue
    links=$((links + 1))
    target=$page
    [ -z "${link%%#*}" ] || target=$(dirname "$page")/${link%%#*}
    [ -e "$target" ] || { complain "$page:$line: there is no $link"; continue; }
    [[ $link == *#* ]] || continue
    anchors "$target" | grep -qxF -- "${link#*#}" || complain "$page:$line: no heading #${link#*#}"
done < <(all '\\]\\([^)]+\\)')

while IFS=: read -r page line _; do
    complain "$page:$line: the text of a link stands on one line, where every reader of Markdown finds it"
done < <(all '^[^[]*\\]\\(')

while IFS=: read -r page line file name; do
    file=tests/${file#\`}.cpp name=${name# } name=${name%\`}
    tests=$((tests + 1))
    grep -qE "TEST_CASE(_TEMPLATE)?\($name\b" "$file" || complain "$page:$line: $file has no test case $name"
done < <(all '`[a-z_]+/[a-z0-9_]+: [a-z0-9_]+`')

echo "$links links, $tests test cases, $failures failures"
[ $failures = 0 ] && [ $links -gt 0 ] && [ $tests -gt 0 ]
