#!/usr/bin/env bash
# Codex against `luce serve`. A person's settings: the same provider in ~/.codex/config.toml.
. "$(dirname "$0")/session.sh"
need_client @openai/codex 0.169.0 codex
begin
export CODEX_HOME=$HOME/.codex LUCE_API_KEY=${LUCE_API_KEY:-dummy}
mkdir -p "$CODEX_HOME"
cat >"$CODEX_HOME/config.toml" <<TOML
model = "luce"
model_provider = "luce"

[model_providers.luce]
name = "luce"
base_url = "$URL/v1"
wire_api = "responses"
env_key = "LUCE_API_KEY"
TOML
codex() { turn "$1" "$CLIENT" exec --json --skip-git-repo-check "${@:2}"; }

turns() {
    codex first_turn "$FIRST_MESSAGE"
    codex second_turn resume --last "$SECOND_MESSAGE"
    codex second_session "$OTHER_FIRST_MESSAGE"
    verdict
}

# exec has no command that compacts: it does so by itself before a turn where the conversation is longer than a limit.
task() {
    local free=(-c 'sandbox_mode="danger-full-access"' -c 'approval_policy="never"')
    codex task "${free[@]}" "$TASK"
    codex sub_agent "${free[@]}" resume --last "$AGENT_TASK"
    codex effort "${free[@]}" -c 'model_reasoning_effort="high"' resume --last "$EFFORT_TASK"
    codex compaction "${free[@]}" -c model_auto_compact_token_limit=2000 resume --last "$WORD_TASK"
    codex after "${free[@]}" resume --last "$LAST_TASK"
    task_done
}

"$SCENARIO"
