"""The reference for an agent at rest: the same libraries, and one request every 5 s that sends a beat's bytes."""

from __future__ import annotations

import sys
import time

import docker  # noqa: F401
import psutil
import pynvml  # noqa: F401
import requests
import yaml  # noqa: F401

session = requests.Session()
session.trust_env = False
while True:
    psutil.cpu_percent()
    try:
        session.get(sys.argv[1], timeout=5)
    except requests.RequestException as error:
        print(error, file=sys.stderr)
    time.sleep(5)
