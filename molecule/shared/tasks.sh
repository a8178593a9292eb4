#!/bin/sh
# `note`: write down the task containers of this host and when each began; `same`: they are those, and none began again.
set -eu
note=/root/scenario-tasks
now() {
    docker ps -aq --filter label=heterofleet.task | xargs docker inspect \
        -f '{{.Name}} {{.Id}} {{.State.StartedAt}} {{.State.Running}} {{.RestartCount}}' > "$1.unsorted"
    sort "$1.unsorted" > "$1"
    rm "$1.unsorted"
}
case $1 in
note) now "$note" ;;
same)
    now "$note.now"
    diff "$note" "$note.now"
    ;;
esac
