#!/bin/bash
# docs/equations.sh SOURCE_FOLDER
# The equations of docs/mechanisms/ and the code agree on their numbers: each number, \tag{KDA-1}, is given once and
# in order; the code in include/ cites every one of them, as (KDA-1); and every number in parentheses, in the code or in
# the pages, exists.
cd "${1:?the folder of the sources}" || exit 1
{
    grep -rnoE '\\tag\{[A-Z]{2,}-[0-9]+\}' docs/mechanisms --include='*.md' | sed -E 's/\\tag\{(.*)\}/tag:\1/'
    grep -rnoE '\([A-Z]{2,}-[0-9]+\)' docs include --include='*.md' --include='*.hpp' --include='*.cuh' |
        sed -E 's/\((.*)\)$/cite:\1/'
} | awk -F: '
    function complain(text) { print text; failures++ }
    { file = $1; line = $2; kind = $3; name = $4; split(name, part, "-") }
    kind == "tag" {
        if (name in place) complain(file ":" line ": " name " is given twice, first in " place[name])
        if (part[2] != last[part[1]] + 1) complain(file ":" line ": " name " follows " part[1] "-" last[part[1]] + 0)
        if (part[1] in home && home[part[1]] != file) complain(file ":" line ": " part[1] " numbers another page")
        place[name] = file ":" line
        last[part[1]] = part[2]
        home[part[1]] = file
        equations++
    }
    kind == "cite" { cited[name] = 1; at[name] = file ":" line }
    kind == "cite" && file ~ /^include\// { in_code[name] = 1; citations++ }
    END {
        for (name in cited)
            if (!(name in place)) complain(at[name] ": there is no equation (" name ")")
        for (name in place)
            if (!(name in in_code)) complain(place[name] ": no code cites (" name ")")
        printf "%d equations, %d citations in the code, %d failures\n", equations, citations, failures
        exit failures > 0 || equations == 0
    }'
