#!/bin/sh
# pump FIFO FOLDER SIZE END: what is written to FIFO goes to files in FOLDER, named by the place of their first byte.
# A file holds SIZE bytes; the newest two are kept. Whoever writes is never held up, also when the disk is full.
# It ends when nobody writes any more and END is there, and then makes the file "done".
set -u
umask 077
fifo=$1 folder=$2 size=$3 end=$4
cd "$folder" || exit 1
LC_ALL=C
export LC_ALL

at=0
for name in [0-9]*; do
    if [ -f "$name" ] && [ "$name" -gt "$at" ]; then at=$name; fi
done
have() { stat -c %s "$at" 2>/dev/null || echo 0; }
forget_older() {
    for name in [0-9]*; do
        if [ "$name" != "$at" ]; then rm -f -- "$name"; fi
    done
}

rm -f "done"
exec 3<"$fifo"
quiet=0
while :; do
    # Looked at before the pipe is read: what was written until END was made is read then.
    last=
    if [ -e "$end" ]; then last=yes; fi
    held=$(have)
    if [ "$held" -ge "$size" ]; then
        forget_older
        at=$((at + held))
        held=0
    fi
    if dd bs=65536 count=$((size - held)) iflag=count_bytes oflag=append conv=notrunc of="$at" status=none \
        <&3 2>/dev/null; then
        now=$(have)
        if [ "$now" -ge "$size" ]; then continue; fi
        if [ "$now" -gt "$held" ]; then quiet=0; fi
        if [ -n "$last" ]; then
            : >"done"
            exit 0
        fi
        if [ -e "$end" ]; then continue; fi
        # Nobody has it open just now: between the program's end and what is run after it, or for good.
        quiet=$((quiet + 1))
        if [ "$quiet" -lt 100 ]; then sleep 0.1; else sleep 2; fi
    else
        # The disk is full, and what was read last is gone: how much of it was written is known, the rest is not.
        at=$((at + $(have) + 1))
        forget_older
        : >"$at" 2>/dev/null
        : >gap 2>/dev/null
        dd bs=65536 count=16 of=/dev/null status=none <&3
    fi
done
