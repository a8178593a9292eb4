#!/bin/sh
# supervise FOLDER ID OUTPUT SIZE GROUPS PROGRAM...: runs PROGRAM without systemd, and writes down how it ended.
# GROUPS are the control groups (folders, one a line) that the program and all its children are kept in. Standard
# input of the program is ID.go, its output goes through ID.out to the pump. PROGRAM makes ID.started when there is
# nothing left but to become what was asked for; ID.ready hears then, or when it came to nothing.
set -u
umask 077
folder=$1 id=$2 output=$3 size=$4 groups=$5
shift 5
unset READY
cd "$folder" || exit 1

# "pid start-time" of a process; nothing when it is gone.
mark() {
    read -r line <"/proc/$1/stat" || return
    # shellcheck disable=SC2086
    set -- "$1" ${line##*) }
    echo "$1 ${21}"
} 2>/dev/null

# Everything that came from the program: by its control groups, and by its session where it has none.
left() {
    printf '%s\n' "$groups" | while read -r group; do
        if [ -n "$group" ]; then cat "$group/cgroup.procs" 2>/dev/null; fi
    done
    if [ -n "$groups" ]; then return; fi
    for stat in /proc/[0-9]*/stat; do
        read -r line <"$stat" || continue
        pid=${line%% *}
        # shellcheck disable=SC2086
        set -- ${line##*) }
        if [ "$4" = "$child" ]; then echo "$pid"; fi
    done 2>/dev/null
}

killed() {
    printf '%s\n' "$groups" | while read -r group; do
        for file in "$group/memory.events" "$group/memory.oom_control"; do
            if [ -r "$file" ]; then sed -n 's/^oom_kill //p' "$file"; fi
        done
    done
}

sh .pump "$folder/$id.out" "$output" "$size" "$folder/$id.end" &
pump=$!
(
    # shellcheck disable=SC2016
    exec setsid sh -c '
        until [ -e "$2.pid" ]; do sleep 0.01; done
        printf "%s\n" "$1" | while read -r group; do
            if [ -n "$group" ]; then echo $$ >"$group/cgroup.procs" || exit 126; fi
        done
        shift 2
        exec "$@"' sh "$groups" "$id" "$@" <"$id.go" >"$id.out" 2>&1
) &
child=$!
{
    mark $$
    mark "$child"
} >"$id.pid.new"
mv -f "$id.pid.new" "$id.pid"
wait "$child"
code=$?
result=exited
if [ ! -e "$id.started" ]; then result=unmade; fi
tries=0
while pids=$(left) && [ -n "$pids" ] && [ "$tries" -lt 200 ]; do
    # shellcheck disable=SC2086
    kill -KILL $pids 2>/dev/null
    tries=$((tries + 1))
    sleep 0.05
done
times=0
for count in $(killed); do times=$((times + count)); done
printf '%s %s - %s\n' "$result" "$code" "$times" >"$id.end.new"
mv -f "$id.end.new" "$id.end"
if [ -p "$id.ready" ]; then echo 1<>"$id.ready"; fi
wait "$pump"
