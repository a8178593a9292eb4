#!/bin/sh
# The lab's task: does what its words say, one after the other, then exits 0.
#   exit N | sleep S | forever | print TEXT | err TEXT | env [NAME] | cat FILE | write FILE TEXT
#   bytes N | lines N [PAUSE_S] | eat MIB | ignore-term | on-term CODE | die SIGNAL
#   serve PORT [READY_AFTER_S [ANSWER_AFTER_S]] | listen PORT
# A first word that is none of these is run as a program.
set -u

# A sleep that a trapped signal ends at once: the shell runs traps only between its own commands.
nap() { sleep "$1" & nap_pid=$!; wait "$nap_pid"; kill "$nap_pid" 2>/dev/null; }

eat() { # MIB: held in a shell variable that grows by 1 MiB at a time
    one=$(head -c 1048576 /dev/zero | tr '\0' x)
    held=""
    done_mib=0
    while [ "$done_mib" -lt "$1" ]; do
        held="$held$one"
        done_mib=$((done_mib + 1))
    done
}

serve() { # PORT READY_AFTER ANSWER_AFTER
    echo $(($(cut -d. -f1 /proc/uptime) + ${2:-0})) > /tmp/ready-at
    echo "${3:-0}" > /tmp/answer-after
    nc -ll -p "$1" -e /bin/task-http &
}

case ${1:-forever} in
exit | sleep | forever | print | err | env | cat | write | bytes | lines | eat | ignore-term | on-term | \
    die | serve | listen) ;;
*) exec "$@" ;;
esac

[ $# -gt 0 ] || set -- forever
while [ $# -gt 0 ]; do
    word=$1
    shift
    case $word in
    exit) exit "$1" ;;
    sleep) nap "$1"; shift ;;
    forever) while :; do nap 3600; done ;;
    print) printf '%s\n' "$1"; shift ;;
    err) printf '%s\n' "$1" >&2; shift ;;
    env)
        if [ $# -gt 0 ]; then
            env | grep "^$1=" || echo "unset: $1"
            shift
        else
            env
        fi
        ;;
    cat) cat "$1"; shift ;;
    write) printf '%s\n' "$2" > "$1"; shift 2 ;;
    bytes) head -c "$1" /dev/zero | tr '\0' 'x'; shift ;;
    lines)
        count=0
        pause=0
        total=$1
        shift
        case ${1:-} in [0-9]*) pause=$1; shift ;; esac
        while [ "$count" -lt "$total" ]; do
            count=$((count + 1))
            echo "line $count"
            [ "$pause" = 0 ] || nap "$pause"
        done
        ;;
    eat) eat "$1"; shift ;;
    ignore-term) trap '' TERM ;;
    on-term)
        term_code=$1
        trap 'echo "got TERM"; exit "$term_code"' TERM
        shift
        ;;
    die) kill "-$1" $$; shift ;;
    serve)
        port=$1
        ready=0
        answer=0
        shift
        case ${1:-} in [0-9]*) ready=$1; shift ;; esac
        case ${1:-} in [0-9]*) answer=$1; shift ;; esac
        serve "$port" "$ready" "$answer"
        ;;
    listen) nc -ll -p "$1" -e /bin/true & shift ;;
    *) echo "task: unknown word: $word" >&2; exit 64 ;;
    esac
done
