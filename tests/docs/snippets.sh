#!/bin/bash
# docs/snippets.sh SOURCE_FOLDER
# The code in the documentation is code that a test compiles or runs. In README.md and docs/ every fenced block is of a
# language; text, math and console blocks show what is no code of ours, and every other block follows a line
#     <!-- from FILE -->    or    <!-- from FILE FILE ... -->
# A block of sh or cmake stands in these files command by command, comments aside; any other stands in the first of them
# line after line, and may be indented there. The files are headers, programs, tests and their scripts.
cd "${1:?the folder of the sources}" || exit 1
find README.md docs -name '*.md' | sort | xargs awk '
    function complain(line, text) { printf "%s:%d: %s\n", FILENAME, line, text; failures++ }
    function trimmed(line) { sub(/^[ \t]+/, "", line); sub(/[ \t]+$/, "", line); return line }
    function command(line) { sub(/(^|[ \t]+)#.*$/, "", line); return trimmed(line) }
    # The lines of a file, once: text[file, n] and its number of lines.
    function load(file,   line, n) {
        if (file in lines) return lines[file]
        while ((status = (getline line < file)) > 0) text[file, ++n] = line
        close(file)
        return lines[file] = status < 0 ? -1 : n + 0
    }
    function indent(line) { match(line, /^ */); return RLENGTH }
    # Whether the block stands in the file from line `at` on, shifted by one and the same indentation.
    function stands(file, at,   n, shift, line) {
        shift = -1
        for (n = 1; n <= size; n++) {
            line = text[file, at + n - 1]
            if (block[n] == "" || line == "") {
                if (block[n] != line) return 0
                continue
            }
            if (shift < 0) shift = indent(line) - indent(block[n])
            if (shift < 0 || indent(line) != indent(block[n]) + shift || trimmed(line) != trimmed(block[n])) return 0
        }
        return 1
    }
    function check_code(file,   at) {
        for (at = 1; at + size - 1 <= lines[file]; at++)
            if (stands(file, at)) return
        complain(begin, "this block does not stand in " file)
    }
    function check_shell(files, count,   n, f, at, found) {
        for (n = 1; n <= size; n++) {
            if (command(block[n]) == "") continue
            found = 0
            for (f = 1; f <= count && !found; f++)
                for (at = 1; at <= lines[files[f]] && !found; at++)
                    found = command(text[files[f], at]) == command(block[n])
            if (!found) complain(begin + n, "no command of " from ": " command(block[n]))
        }
    }
    function check(   files, count, f, known) {
        if (language == "") return complain(begin, "a block without a language")
        if (language ~ /^(text|math|console)$/) return
        if (from == "") return complain(begin, "a block of code without <!-- from FILE -->")
        count = split(from, files, " ")
        known = 1
        for (f = 1; f <= count; f++)
            if (files[f] !~ /^(include|examples|tests|\.ci)\// || load(files[f]) < 0) {
                complain(begin, files[f] " is no file that tests compile or run")
                known = 0
            }
        if (!known) return
        if (language ~ /^(sh|cmake)$/) check_shell(files, count)
        else check_code(files[1])
        checked++
    }
    FNR == 1 { if (inside) complain(FNR, "the file before ends within a block"); inside = 0; from = "" }
    /^ *```/ {
        if (inside) check()
        else { begin = FNR; size = 0; language = $0; sub(/^ *``` */, "", language); margin = indent($0) }
        inside = !inside
        if (!inside) from = ""
        next
    }
    inside { block[++size] = substr($0, indent($0) < margin ? indent($0) + 1 : margin + 1); next }
    /^<!-- from .* -->$/ { from = $0; sub(/^<!-- from /, "", from); sub(/ -->$/, "", from); next }
    from != "" && NF { complain(FNR, "<!-- from " from " --> stands right before its block"); from = "" }
    END {
        if (inside) complain(FNR, "the last file ends within a block")
        printf "%d blocks of code, %d failures\n", checked, failures
        exit failures > 0 || checked == 0
    }'
