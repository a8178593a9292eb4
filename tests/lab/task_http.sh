#!/bin/sh
# One HTTP answer on standard output: /health and /v1/models are 503 until the task is ready.
read -r _ path _
sleep "$(cat /tmp/answer-after)"
now=$(cut -d. -f1 /proc/uptime)
status="200 OK"
[ "$now" -ge "$(cat /tmp/ready-at)" ] || status="503 Service Unavailable"
[ ! -e /tmp/unhealthy ] || status="500 Internal Server Error"
case $path in
/health | /) body='{"status":"ok"}' ;;
/v1/models) body='{"object":"list","data":[{"id":"lab-model","object":"model"}]}' ;;
*) status="404 Not Found" body='{}' ;;
esac
printf 'HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s' \
    "$status" "${#body}" "$body"
