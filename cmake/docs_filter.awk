# A filter of Doxygen's input. In a header the comment at its head, which Doxygen would not see, becomes that of the
# file, as it stands; a script in a string is left out, as are CUDA's attributes with arguments. In a page math blocks
# become formulas, marks of where code was cut from disappear, links to headers become those to their part of the
# reference, and links within a page, or out of docs/, text.
FILENAME ~ /\.(hpp|cuh)$/ {
    if (FNR == 1 && $0 == "#pragma once") { print; next }
    if (FNR == 2 && /^\/\//) { head = 1; print "/** \\file"; print " * \\verbatim" }
    if (head && !/^\/\//) { head = 0; print "\\endverbatim */" }
    if (head) { sub(/^\/\/ ?/, ""); gsub(/\*\//, "* /"); print; next }
    if (match($0, /R"js\(/)) { script = 1; print substr($0, 1, RSTART - 1) "\"\""; next }
    if (script && match($0, /\)js"/)) { script = 0; print substr($0, RSTART + RLENGTH); next }
    if (script) $0 = ""
    gsub(/__(align|launch_bounds)__\([^)]*\) ?/, "")
    print
    next
}
/^```math$/ { math = 1; print "\\f["; next }
math && /^```$/ { math = 0; print "\\f]"; next }
/^<!-- from .* -->$/ { next }
/\]\(/ {
    line = ""
    for (rest = $0; match(rest, /\[[^]]*\]\([^)]*\)/); rest = substr(rest, RSTART + RLENGTH)) {
        split(substr(rest, RSTART + 1, RLENGTH - 2), part, /\]\(/)
        sub(/#.*/, "", part[2])
        out = part[2] ~ /^(\.\.\/)+README\.md$/ && FILENAME !~ /\/(design|mechanisms)\//
        if (part[2] == "" || out) link = part[1]
        else if (sub(/^.*\/include\//, "", part[2])) link = "\\ref " part[2] " \"" part[1] "\""
        else link = "[" part[1] "](" part[2] ")"
        line = line substr(rest, 1, RSTART - 1) link
    }
    $0 = line rest
}
{ print }
