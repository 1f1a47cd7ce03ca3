#!/bin/bash
# The pages of kimik3-train and kimik3-inspect in a headless Chromium: they are drawn to the end, hold what they should,
# and the browser has nothing to say about them. $1: the folder of the built programs. Exit code 77: these or the browser
# are not there. KIMIK3_PAGES: a folder that the pages and their pictures, light and dark, are left in.
set -u
programs=$(realpath "${1:?the folder of the programs}") || exit 77
[ -x "$programs/kimik3-inspect" ] && [ -x "$programs/kimik3-train" ] || exit 77
for name in chromium chromium-browser google-chrome; do browser=${browser:-$(command -v $name)}; done
[ -n "$browser" ] || { echo "skipped: no Chromium"; exit 77; }
pages=${KIMIK3_PAGES:+$(realpath -m "$KIMIK3_PAGES")}
source "$(dirname "$(realpath "$0")")/../support/program_laws.sh"
opened() { # opened <page> <arguments...>: what the browser prints, and in complaints what it complains of
    local page=$1
    shift
    timeout 120 "$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --enable-logging=stderr \
        --user-data-dir="$work/profile" --window-size=1200,3000 --virtual-time-budget=10000 "$@" "file://$work/$page" 2>log
    grep CONSOLE log >>complaints
}
holds() { grep -qF -- "$1" "$2" || { echo "no '$1' in $2"; return 1; }; }
count_is() { # count_is <number> <pattern> <file>
    local got
    got=$(grep -o -- "$2" "$3" | wc -l)
    [ "$got" = "$1" ] || { echo "$got times '$2' in $3, not $1"; return 1; }
}
: >complaints

for n in $(seq 1 400); do echo "Sentence $n of a book says that $((n * 7 % 13)) birds sat on a wall."; done >book.txt
"$programs/kimik3-prepare" book.txt --out data --tokenizer train:300 >/dev/null &&
    "$programs/kimik3-train" --data data --out 'run <b>&amp;' --steps 6 --batch 2 --seq 32 --eval-every 2 >/dev/null &&
    "$programs/kimik3-train" --data data --out one --steps 1 --batch 2 --seq 32 >/dev/null &&
    "$programs/kimik3-inspect" --checkpoint one --text book.txt --max-tokens 500 --prompt 'Sentence <script>' >/dev/null || exit 1
mv 'run <b>&amp;/report.html' run.html
mv one/report.html one.html
sed -E 's/"(loss|val_loss|lr|gradient_norm|tokens_per_second)":\[[^]]*\]/"\1":[null]/g' one.html >null.html
sed -E 's/"(step|loss|val_loss|lr|gradient_norm|tokens_per_second)":\[[^]]*\]/"\1":[]/g' one.html >empty.html

# what every figure of a page says with the pointer at its middle
pointer='<script>for (const surface of document.querySelectorAll(".surface")) {
    const box = surface.getBoundingClientRect(), middle = {clientX: box.x + box.width / 2, clientY: box.y + box.height / 2};
    surface.dispatchEvent(new PointerEvent("pointermove", middle));
    add(main, "p", {class: "said"}, Array.from(tip.children, line => line.textContent).join(" / "));
}</script></body>'
{ sed '$d' run.html | sed '$d'; echo "$pointer"; } >pointed.html  # all but the last two lines, </body> and </html>

for page in run one inspect null empty pointed; do
    opened $page.html --dump-dom >$page.dom
    law "$page is drawn to its end" holds 'data-drawn="whole"' $page.dom
done
law "the folder's name is text" holds '<h1>run &lt;b&gt;&amp;amp;</h1>' run.dom
law "four curves, two of losses" count_is 5 'class="curve"' run.dom
law "the points of the validation" count_is 3 '<circle' run.dom
law "the loads of four layers, now and over time" count_is 4 '>Layer [0-9] over time; now [0-9.]* to [0-9.]*<' run.dom
law "the depth of every site" holds '4 feed-forward</text>' run.dom
law "the half-lives of every head" count_is 12 'class="ridge"' run.dom
law "the parameters" holds '<td>routed experts</td>' run.dom
law "curves and loads over time say their step and value" count_is 8 'class="said">step [0-9]* / [a-z,0-9 ]* [0-9.]*' pointed.dom
law "half-lives say their head and share" count_is 3 'class="said">layer [0-2], head [0-3] / [0-9.]* to [0-9.]* tokens / ' \
    pointed.dom
law "one step has no history" count_is 0 '>Layer [0-9] over time' one.dom
law "no numbers, no curves" count_is 4 '>no values yet<' null.dom
law "no steps, no curves" count_is 4 '>no values yet<' empty.dom
law "the prompt's words are text" holds '<code>&lt;' inspect.dom
law "the tokens have experts" holds 'class="expert"' inspect.dom
law "what a checkpoint does not hold is said" holds 'Not available: a checkpoint holds no curves' inspect.dom
for page in run inspect; do
    opened $page.html --screenshot="$work/$page-light.png" >/dev/null
    opened $page.html --screenshot="$work/$page-dark.png" --force-dark-mode --blink-settings=preferredColorScheme=0 >/dev/null
    for light in light dark; do law "$page has a picture, $light" test "$(stat -c %s $page-$light.png)" -gt 50000; done
    law "which differ" test "$(cmp -s $page-light.png $page-dark.png; echo $?)" = 1
done
law "the browser has no complaints" test ! -s complaints || cat complaints
[ -z "$pages" ] || { mkdir -p "$pages" && cp ./*.html ./*.png "$pages"; }

[ $failed = 0 ] && echo "all laws hold"
exit $failed
