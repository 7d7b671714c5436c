#!/usr/bin/env bash
# Claude Code against `luce serve`. A person's settings: ANTHROPIC_BASE_URL and any ANTHROPIC_API_KEY (the server's, if
# it has one). Its attribution header stays on: the server copes with it. session.sh says what else can be set.
. "$(dirname "$0")/session.sh"
need_client @anthropic-ai/claude-code 2.1.328 claude
begin
export ANTHROPIC_BASE_URL=$URL ANTHROPIC_API_KEY=${LUCE_API_KEY:-dummy} CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
export CLAUDE_CODE_MAX_OUTPUT_TOKENS=$TOKENS CLAUDE_CODE_MAX_CONTEXT_TOKENS=65536
claude() { turn "$1" "$CLIENT" --print --output-format json --model luce "${@:2}"; }

turns() {
    claude first_turn "$FIRST_MESSAGE"
    claude second_turn --continue "$SECOND_MESSAGE"
    claude second_session "$OTHER_FIRST_MESSAGE"
    verdict
}

task() {
    mkdir -p "$HOME/.claude"
    echo '{"permissions": {"allow": ["Read", "Edit", "Write", "Bash", "Agent"]}}' >"$HOME/.claude/settings.json"
    claude task "$TASK"
    claude sub_agent --continue "$AGENT_TASK"
    claude effort --continue --effort low "$EFFORT_TASK"
    claude compaction --continue /compact
    claude after --continue "$LAST_TASK"
    task_done
}

"$SCENARIO"
