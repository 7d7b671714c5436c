# Sourced by the scripts beside it: a client of a pinned version, a server for it, and one of two scenarios. It must not
# know which client that is.
#
#   turns (the default)   two turns and a second session, and what must be true of them (verdict.py). Tools that change
#                         anything are not allowed to the model: it is asked for nothing but an answer.
#   task                  a task with tools, a sub-agent, another effort, a compaction and a turn after it. The model's
#                         answers are those of answers/CLIENT.json (steering.py), everything else is real. Its result is
#                         checked on disk; tokens_read.py prints what was read anew.
#
#   LUCE_URL          a running server to take in place of one of our own
#   LUCE              the program (default: .venv/bin/luce, else luce from the path)
#   CLIENT_MODEL      the server's model (default: the packaged one)
#   CLIENT_TEMPLATE   its chat template (default: the model's own)
#   CLIENT_RECORDS    file for what the proxy wrote down
#   CLIENT_TIMEOUT    seconds that one run of the client may take (default 600)
#   CLIENT_TOKENS     longest answer, in tokens (default 64; task: 512)
#
# Whatever the client writes lies in a folder of its own that is removed at the end; nothing is installed outside of
# build/clients.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
PYTHON=$ROOT/.venv/bin/python
[ -x "$PYTHON" ] || PYTHON=python3
TIMEOUT=${CLIENT_TIMEOUT:-600}
SCENARIO=${1:-turns}
NAME=$(basename "$0" .sh)
TOKENS=${CLIENT_TOKENS:-$([ "$SCENARIO" = task ] && echo 512 || echo 64)}
MODEL=(${CLIENT_MODEL:+--model "$(realpath "$CLIENT_MODEL")"})
MODEL+=(${CLIENT_TEMPLATE:+--chat-template "$(realpath "$CLIENT_TEMPLATE")"})
FIRST_MESSAGE='Say hello in one word.'
SECOND_MESSAGE='And now say it in another language.'
OTHER_FIRST_MESSAGE='Which file is the readme?'

# Of the task. What comes after which of them stands in answers/.
TASK='Copy the last line of notes.txt into summary.txt, and check the copy with a command.'
AGENT_TASK='Have a sub-agent count the lines of notes.txt, and write the number into count.txt.'
EFFORT_TASK='Now add a line to summary.txt that says: done.'
WORD_TASK='Say in a word whether all is well.'
LAST_TASK='Finally, append the content of count.txt to summary.txt.'

say() { printf '%s\n' "$*" >&2; }

fail() { say "${0##*/}: $*"; exit 1; }

# The client cannot be had here: exit code 77, which tests take for a reason to leave it out.
no_client() { say "${0##*/}: $*"; exit 77; }

# need_client PACKAGE VERSION PROGRAM: sets CLIENT to the program's path.
need_client() {
    local folder=$ROOT/build/clients/$3-$2
    CLIENT=$folder/node_modules/.bin/$3
    [ -x "$CLIENT" ] && return
    command -v npm >/dev/null || no_client "npm is missing: install Node.js 20 or newer"
    say "installing $1@$2"
    mkdir -p "$folder"
    npm install --prefix "$folder" --no-audit --no-fund --loglevel=error "$1@$2" >"$folder/install.log" 2>&1 ||
        { tail -n 20 "$folder/install.log" >&2; rm -f "$CLIENT"; no_client "npm could not install $1@$2"; }
    "$CLIENT" --version >/dev/null 2>&1 || { rm -f "$CLIENT"; fail "$1@$2 does not run here: see $folder/install.log"; }
}

# begin: a scratch home, a server, and recording_proxy.py between the client and it; sets URL to the proxy's.
begin() {
    SCRATCH=$(mktemp -d)
    SERVER_PID='' PROXY_PID=''
    trap finish EXIT
    RECORDS=$SCRATCH/records.jsonl
    : >"$RECORDS"
    PROJECT=$SCRATCH/project
    export HOME=$SCRATCH/home
    mkdir -p "$HOME" "$PROJECT"
    printf '# A project\n\nNothing in it yet.\n' >"$PROJECT/README.md"
    seq -f 'Note %g: the tide comes in twice a day, and goes out as often.' 40 >"$PROJECT/notes.txt"
    local answers=()
    [ "$SCENARIO" = turns ] || answers=(--answers "$ROOT/scripts/clients/answers/$NAME.json" --folder "$PROJECT")
    local server=${LUCE_URL:-}
    [ -n "$server" ] || start_server
    "$PYTHON" "$ROOT/scripts/clients/recording_proxy.py" --to "${server:-$SERVER_URL}" --records "$RECORDS" \
        --max-tokens "$TOKENS" "${answers[@]}" >"$SCRATCH/recording_proxy" &
    PROXY_PID=$!
    until URL=$(head -n 1 "$SCRATCH/recording_proxy" 2>/dev/null) && [ -n "$URL" ]; do
        kill -0 "$PROXY_PID" 2>/dev/null || fail "the recording_proxy ended"
        sleep 0.05
    done
    cd "$PROJECT"
}

# start_server: sets SERVER_URL.
start_server() {
    local luce=${LUCE:-$ROOT/.venv/bin/luce} port
    [ -x "$luce" ] || luce=luce
    port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    SERVER_URL=http://127.0.0.1:$port
    "$luce" serve "${MODEL[@]}" --ctx 65536 --host 127.0.0.1 --port "$port" >"$SCRATCH/server.log" 2>&1 &
    SERVER_PID=$!
    until "$PYTHON" -c "import urllib.request; urllib.request.urlopen('$SERVER_URL/health', timeout=5)" 2>/dev/null; do
        kill -0 "$SERVER_PID" 2>/dev/null || { cat "$SCRATCH/server.log" >&2; fail "the server ended"; }
        sleep 0.2
    done
}

# turn STEP COMMAND…: runs the client once; the requests that it makes are this step's.
turn() {
    local step=$1
    shift
    say "$step"
    printf '{"step": "%s"}\n' "$step" >>"$RECORDS"
    if ! timeout "$TIMEOUT" "$@" </dev/null >"$SCRATCH/$step.out" 2>"$SCRATCH/$step.err"; then
        tail -c 2000 "$SCRATCH/$step.out" "$SCRATCH/$step.err" >&2
        [ ! -f "$SCRATCH/server.log" ] || tail -n 30 "$SCRATCH/server.log" >&2
        "$PYTHON" "$ROOT/scripts/clients/verdict.py" "$RECORDS" >&2 || true
        fail "$step: the client failed"
    fi
}

# cannot STEP REASON: the client has no such step.
cannot() { printf '{"step": "%s", "cannot": "%s"}\n' "$1" "$2" >>"$RECORDS"; }

# task_done: whether the files are what the task wanted, and what was read for it.
task_done() {
    local wanted
    wanted=$(tail -n 1 notes.txt; echo done.)
    [ ! -e count.txt ] || wanted=$(printf '%s\n40' "$wanted")
    [ "$(cat summary.txt 2>&1)" = "$wanted" ] || fail "summary.txt is not what it should be: $(cat summary.txt 2>&1)"
    "$PYTHON" "$ROOT/scripts/clients/tokens_read.py" "$RECORDS" --client "$NAME" "${MODEL[@]}"
}

verdict() { "$PYTHON" "$ROOT/scripts/clients/verdict.py" "$RECORDS"; }

finish() {
    local status=$? pid
    for pid in $PROXY_PID $SERVER_PID; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    cd /
    [ -z "${CLIENT_RECORDS:-}" ] || cp "$RECORDS" "$CLIENT_RECORDS"
    rm -rf "$SCRATCH"
    exit "$status"
}
