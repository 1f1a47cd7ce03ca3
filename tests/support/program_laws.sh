# Sourced by tests/programs/*.sh with the program under test in $program: a scratch folder, and what a law is.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

failed=0
law() { # law <sentence> <command...>: the command holds
    local sentence=$1
    shift
    if ! "$@"; then
        echo "broken: $sentence"
        failed=1
    fi
}
ends() { # ends <code> <text in stdout or stderr> <arguments...>: the program ends so
    local code=$1 text=$2
    shift 2
    timeout 60 "$program" "$@" >stdout 2>stderr </dev/null
    local got=$?
    [ $got = "$code" ] && grep -qF -- "$text" stdout stderr && return 0
    echo "exit $got instead of $code, or no '$text', of: $*"
    cat stdout stderr
    return 1
}
equal() { # equal <got> <wanted>
    [ "$1" = "$2" ] && return 0
    echo "'$1' is not '$2'"
    return 1
}
