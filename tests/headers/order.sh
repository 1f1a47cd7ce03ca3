#!/bin/bash
# headers/order.sh INCLUDE_FOLDER
# The house rules that the text of a header shows: a folder includes only itself and the folders before it; JSON stays in
# text/ and io/, PCRE2 in text/; what the umbrella reaches needs neither, and every header is reached from it or from
# text.hpp and io.hpp; the first line is #pragma once; includes stand before all else; macros are KIMIK3_*; files are at
# most 400 lines long. No public function returns an expression that may outlive its operands (b67): Eigen is named in
# ops/cpu/ alone, there inside of namespace detail, and where numbers are computed no function leaves its return type to
# the compiler.
cd "$1" || exit 1
find kimik3 -name '*.hpp' | sort | xargs awk '
    BEGIN {
        split("core config backend tensor ops layers model text data train generate io", order)
        for (place in order) rank[order[place]] = place
    }
    function complain(text) { printf "%s:%d: %s\n", FILENAME, FNR, text; failures++ }
    function folder_of(path) { return split(path, part, "/") > 2 ? part[2] : "umbrella" }
    FNR == 1 {
        folder = folder_of(FILENAME)
        if (folder != "umbrella" && !(folder in rank)) complain("the folder " folder " has no place in the order")
        if ($0 != "#pragma once") complain("the first line is not #pragma once")
        files++
        seen[FILENAME] = 1
    }
    FNR == 1 { hidden = 0; code = 0 }
    /^namespace (kimik3::)?detail \{/ { hidden = 1 }
    /^}  \/\/ namespace (kimik3::)?detail/ { hidden = 0 }
    /Eigen::/ && !/^ *\/\// && (FILENAME !~ /^kimik3\/ops\/cpu\// || !hidden) { complain("Eigen outside of ops/cpu and namespace detail") }
    /^ *(template <[^>]*> )?((inline|constexpr|static|friend) )*(auto|decltype\(auto\)) [a-z_]+\(/ && !/->/ && folder ~ /^(tensor|ops|layers|model|train|generate)$/ {
        complain("a function names the type that it returns")
    }
    FNR == 401 { complain("more than 400 lines") }
    /^ *# *define/ && $0 !~ /^ *# *define (KIMIK3_|PCRE2_CODE_UNIT_WIDTH )/ { complain("a macro that is not KIMIK3_*") }
    !/^ *($|#|\/\/)/ { code = 1 }
    /^ *# *include/ {
        if (code) complain("an include after code")
        if (match($0, /"[^"]*"/)) {
            target = substr($0, RSTART + 1, RLENGTH - 2)
            if (target !~ /^kimik3\//) complain("write includes as \"kimik3/...\"")
            other = folder_of(target)
            if (folder != "umbrella" && (other == "umbrella" || rank[other] + 0 > rank[folder] + 0))
                complain(folder "/ includes " target ", which comes later")
            includes[FILENAME] = includes[FILENAME] " " target
        }
        else if (/<nlohmann\//) { heavy[FILENAME] = "nlohmann_json"; if (folder != "text" && folder != "io") complain("JSON outside text/ and io/") }
        else if (/<pcre2/) { heavy[FILENAME] = "PCRE2"; if (folder != "text") complain("PCRE2 outside text/") }
    }
    function reach(file, list, position, count) {
        if (file in reached) return
        reached[file] = 1
        count = split(includes[file], list, " ")
        for (position = 1; position <= count; position++) reach(list[position])
    }
    END {
        reach("kimik3/kimik3.hpp")
        for (file in heavy)
            if (file in reached) { printf "kimik3/kimik3.hpp needs %s through %s\n", heavy[file], file; failures++ }
        reach("kimik3/text.hpp")
        reach("kimik3/io.hpp")
        for (file in seen)
            if (!(file in reached)) { printf "no umbrella header reaches %s\n", file; failures++ }
        printf "%d headers, %d failures\n", files, failures
        exit failures > 0 || files == 0
    }'
