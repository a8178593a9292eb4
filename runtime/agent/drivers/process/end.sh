#!/bin/sh
# end FOLDER UNIT: systemd runs it when all of a task's processes are gone, in their place and with its word on the end.
# It may run it twice (see systemd.py); the first time counts.
set -u
umask 077
cd "$1" || exit 1
id=$(cat "$2.unit") || exit 1
[ -e "$id.end" ] && exit 0
# How often the kernel has killed in this control group for lack of memory: of either hierarchy's form.
killed() {
    while IFS=: read -r number controllers path; do
        case "$number:$controllers" in
            0:) file=/sys/fs/cgroup$path/memory.events ;;
            *:memory) file=/sys/fs/cgroup/memory$path/memory.oom_control ;;
            *) continue ;;
        esac
        if [ -r "$file" ]; then sed -n 's/^oom_kill //p' "$file"; fi
    done </proc/self/cgroup
}
times=0
for count in $(killed); do times=$((times + count)); done
printf '%s %s %s %s\n' "${EXIT_CODE:--}" "${EXIT_STATUS:--}" "${SERVICE_RESULT:--}" "$times" >"$id.end.new"
mv -f "$id.end.new" "$id.end"
