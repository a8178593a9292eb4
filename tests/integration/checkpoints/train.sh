#!/bin/sh
# A training program: it saves after every step as the Trainer does, with the state file last, and goes on from
# where it is told. A file hold-STEP beside the checkpoints makes it stand still in the middle of that save, once.
# Arguments: the folder of its checkpoints, and its last step.
set -eu
folder=$1
last=$2
step=0
from=${HETEROFLOW_RESUME_FROM_CHECKPOINT:-}
if [ -n "$from" ]; then
    step=$(sed -n 's/.*"global_step": \([0-9]*\).*/\1/p' "$from/trainer_state.json")
    cat "$from/model.safetensors" "$from/optimizer.pt" > /dev/null
    how="goes on from $from at step $step"
else
    how="begins from scratch"
fi
echo "$how" | tee -a "$folder/starts"
while [ "$step" -lt "$last" ]; do
    step=$((step + 1))
    save=$folder/checkpoint-$step
    rm -rf "$save"
    mkdir "$save"
    echo "weights of step $step" > "$save/model.safetensors"
    echo "optimizer of step $step" > "$save/optimizer.pt"
    echo "scheduler of step $step" > "$save/scheduler.pt"
    if [ -e "$folder/hold-$step" ]; then
        sync
        mv "$folder/hold-$step" "$folder/held-$step"
        while :; do sleep 1; done
    fi
    printf '{"epoch": 0.5, "global_step": %s, "log_history": []}\n' "$step" > "$save/trainer_state.json"
    echo "step $step"
done
echo "has ended at step $step"
