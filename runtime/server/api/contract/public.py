"""The routes of builds, scripts and the server itself."""

from __future__ import annotations

from runtime.artifacts.scripts import SCRIPTS
from runtime.server.api.contract.operation import ANY, OPERATOR, PUBLIC, Operation, Parameter

ARCH = Parameter("arch", {"type": "string"}, text="amd64 (the default) or arm64")

DISTRIBUTION = (
    Operation(
        "get",
        "/static/agent",
        "The agent's file of one architecture: whole, in ranges, or 304",
        PUBLIC,
        {200: "application/octet-stream", 206: "application/octet-stream", 304: None},
        codes=("unknown_arch", "agent_build_missing"),
        parameters=(ARCH,),
    ),
    Operation(
        "get",
        "/static/agent/manifest.json",
        "Which builds there are, with sizes and checksums",
        PUBLIC,
        {200: ANY, 206: ANY, 304: None},
        codes=("agent_build_missing",),
    ),
    *(
        Operation(
            "get",
            f"/{name}",
            f"The script {name}, made for this server's address",
            PUBLIC,
            {200: "text/x-shellscript", 206: "text/x-shellscript", 304: None},
        )
        for name in SCRIPTS
    ),
)

SYSTEM = (
    Operation("get", "/openapi.json", "This document", PUBLIC, {200: ANY}),
    Operation("get", "/healthz", "The process answers", PUBLIC, {200: ANY}),
    Operation("get", "/readyz", "Ready to serve, with the brake's state", PUBLIC, {200: ANY}),
    Operation("get", "/metrics", "Prometheus text", OPERATOR, {200: "text/plain"}),
)
