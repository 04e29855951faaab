"""The fixed parts of a rank's script."""

from __future__ import annotations

#: Starting, watching and ending. A process group is addressed by the pid that bash gave us, never by one that was read:
#: before setsid has acted that group does not exist, and the signal goes to the pid alone.
FRAME = r"""
set -fu
pids=() names=() last=-1 awaited=-1

say() { printf 'rank script: %s\n' "$*" >&2; }

pause() { sleep 0.2 & wait "$!"; }

start() { # start NAME FUNCTION: in the background; the function ends by exec, so its pid is the process's
  "$2" &
  last=${#names[@]}
  names+=("$1") pids[last]=$!
  say "started $1, pid $!"
}

check() { # ends the script where a process that must run has exited
  local i code
  for i in "${!pids[@]}"; do
    ((i == awaited)) && continue
    kill -0 "${pids[i]}" 2>/dev/null && continue
    wait "${pids[i]}"
    code=$?
    say "${names[i]} exited with $code"
    exit "$((code ? code : 1))"
  done
}

until_done() { # until_done SECONDS: waits for the end of the process that was started last; 0 = as long as it takes
  local pid=${pids[last]} deadline=$((SECONDS + $1)) code
  awaited=$last
  while kill -0 "$pid" 2>/dev/null; do
    if (($1 && SECONDS >= deadline)); then
      say "${names[last]} has not ended within $1 s"
      exit 12
    fi
    check
    pause
  done
  wait "$pid"
  code=$?
  if ((code)); then
    say "${names[last]} ended with $code"
    exit "$code"
  fi
  awaited=-1
  unset "pids[last]"
}

wait_for() { # wait_for NAME SECONDS TEST WORDS...: until the test succeeds
  local name=$1 bound=$2 deadline=$((SECONDS + $2))
  shift 2
  say "waiting for $name"
  until "$@"; do
    check
    if ((SECONDS >= deadline)); then
      say "$name has not become ready within $bound s"
      exit 12
    fi
    pause
  done
}

finish() { # ends exactly the groups that were started, in reverse order
  local code=$? i deadline order=()
  trap - EXIT
  trap '' INT TERM HUP
  for i in "${!pids[@]}"; do order=("${pids[i]}" ${order[@]+"${order[@]}"}); done
  for i in ${order[@]+"${order[@]}"}; do
    kill -TERM -- "-$i" 2>/dev/null || kill -TERM "$i" 2>/dev/null
  done
  deadline=$((SECONDS + 30))
  for i in ${order[@]+"${order[@]}"}; do
    while kill -0 -- "-$i" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.1; done
    kill -KILL -- "-$i" 2>/dev/null
  done
  exit "$code"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
"""

#: Asking over the network with what bash itself has; each question takes 5 s at most, a generation 60 s.
PROBES = r"""
tcp_answers() { # tcp_answers HOST PORT
  timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$@" 2>/dev/null
}

http_answers() { # http_answers HOST PORT PATH: with 200
  timeout 5 bash -c '
    exec 3<>"/dev/tcp/$0/$1" || exit
    printf "GET %s HTTP/1.0\r\nHost: %s\r\nConnection: close\r\n\r\n" "$2" "$0" >&3
    read -r _ code _ <&3 && [[ $code == 200* ]]
  ' "$@" 2>/dev/null
}

generates() { # generates HOST PORT PATH BODY: the POST is answered with 200
  timeout 60 bash -c '
    exec 3<>"/dev/tcp/$0/$1" || exit
    LC_ALL=C length=${#3}
    printf "POST %s HTTP/1.0\r\nHost: %s\r\nContent-Type: application/json\r\n" "$2" "$0" >&3
    printf "Content-Length: %s\r\nConnection: close\r\n\r\n%s" "$length" "$3" >&3
    read -r _ code _ <&3 && [[ $code == 200* ]]
  ' "$@" 2>/dev/null
}
"""

#: What the node has of a path list, without empty elements (each would mean the current directory).
CLEAN = r"""
clean() { # REPLY = the elements of $1, which stand between colons
  local IFS=: part
  REPLY=
  for part in $1; do
    if [[ $part ]]; then REPLY+=${REPLY:+:}$part; fi
  done
}
"""
