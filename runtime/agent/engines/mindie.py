"""MindIE takes no flags: its settings file is changed inside the container before the daemon starts.

Names of the settings are those of its guide (``conf/config.json``); no MindIE was at hand to try them.
"""

from __future__ import annotations

from runtime.agent.engines.options import Launch, OptionRefused, Program

_SCRIPT = """\
for file in /usr/local/Ascend/ascend-toolkit/set_env.sh /usr/local/Ascend/nnal/atb/set_env.sh \\
  /usr/local/Ascend/atb-models/set_env.sh /usr/local/Ascend/mindie/set_env.sh; do
  [ ! -f "$file" ] || . "$file"
done
cd /usr/local/Ascend/mindie/latest/mindie-service || exit 1
python3 -c '
import json, sys
path, name, port, world, length = sys.argv[1:]
with open("conf/config.json") as file:
    config = json.load(file)
config["ServerConfig"].update(ipAddress="0.0.0.0", port=int(port), httpsEnabled=False, allowAllZeroIpListening=True)
backend = config["BackendConfig"]
backend["npuDeviceIds"] = [list(range(int(world)))]
model = backend["ModelDeployConfig"]["ModelConfig"][0]
model.update(modelName=name, modelWeightPath=path, worldSize=int(world))
if length:
    backend["ModelDeployConfig"]["maxSeqLen"] = int(length)
with open("conf/config.json", "w") as file:
    json.dump(config, file, indent=2)
' "$@" || exit 1
exec ./bin/mindieservice_daemon
"""


def mindie_program(launch: Launch) -> Program:
    """The program of a MindIE container. Raises OptionRefused for what its settings do not have."""
    options = launch.options
    if options.memory_fraction is not None or options.args:
        raise OptionRefused("profile: mindie has neither memory_fraction nor args")
    name, length = options.served_model_name or launch.name, options.max_model_len
    words = [launch.model, name, str(launch.port), str(launch.world), "" if length is None else str(length)]
    return Program(["bash", "-c", _SCRIPT, "mindie"], words)
