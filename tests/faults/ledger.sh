#!/bin/sh
# Runs inside a task, in place of its image's entrypoint: writes when the program starts and how it ends into a
# folder outside the product, each line on the disk before anything else happens. Then it is the lab's task.
#
#   start RUN BOX BORN AT        end RUN BOX BORN AT CODE
#
# RUN: what the test calls the task (HF_RUN). BOX: the full container id, or the service's invocation. BORN: when its
# process 1 (of a process: itself) started, one value a start. AT: centiseconds of the machine's uptime; all nodes
# have one kernel. A program that a signal ends writes no end: nobody can.
set -u
ledger_own=/proc/1/stat
ledger_box=$(sed -n 's#.*/containers/\([0-9a-f]\{64\}\)/hostname .*#\1#p' /proc/self/mountinfo | head -n 1)
if [ ! -e /bin/task ]; then # a process of the node, which is a container itself
    ledger_own=/proc/$$/stat
    ledger_box=${INVOCATION_ID:-process-$$}
fi
ledger_born=$(sed 's/.*) //' "$ledger_own" | cut -d ' ' -f 20)

ledger_note() { # WORDS: one whole line, synced
    ledger_at=$(cut -d ' ' -f 1 /proc/uptime | tr -d .)
    ledger_file=${HF_LEDGER:-/ledger}/$HF_RUN.ledger
    # shellcheck disable=SC2086
    printf '%s %s %s %s %s%s\n' "$1" "$HF_RUN" "$ledger_box" "$ledger_born" "$ledger_at" "${2:+ $2}" >> "$ledger_file"
    sync -d "$ledger_file"
}

ledger_note start
trap 'ledger_note end $?' EXIT
if [ -e /bin/task ]; then
    # shellcheck disable=SC1091
    . /bin/task
else
    "$@"
fi
