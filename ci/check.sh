#!/bin/sh
# Run `wattloop check` in CI and hand its table to the code review. Used by action.yml and
# gitlab.yml; works on any other system with these variables:
#
#   WATTLOOP_COMMAND     what to check, as a shell would run it
#   WATTLOOP_BASELINE    file with the baseline (energy.json)
#   WATTLOOP_REPEATS, WATTLOOP_TOLERANCE, WATTLOOP_STRICT (5, 5%, false)
#   WATTLOOP_TABLE       file for the Markdown table (energy-check.md)
#   WATTLOOP_COMMENT     true: comment with `gh`, or GitLab's API
set -u

if [ -z "${WATTLOOP_COMMAND:-}" ]; then
    echo "ci/check.sh: set WATTLOOP_COMMAND, such as 'python train.py --steps 200'" >&2
    exit 2
fi
table=${WATTLOOP_TABLE:-energy-check.md}
marker='<!-- wattloop check -->'
rm -f "$table"

wattloop check --baseline "${WATTLOOP_BASELINE:-energy.json}" --repeats "${WATTLOOP_REPEATS:-5}" \
    --tolerance "${WATTLOOP_TOLERANCE:-5%}" --markdown "$table" -- sh -c "$WATTLOOP_COMMAND"
code=$?

# Create the comment on GitHub, or update the one of an earlier push.
github_comment() {
    comments="repos/${GITHUB_REPOSITORY:-}/issues"
    known=$(gh api "$comments/$WATTLOOP_PULL_REQUEST/comments" --paginate \
        --jq ".[] | select(.body | startswith(\"$marker\")) | .id") || return 1
    known=$(echo "$known" | head -n 1)
    if [ -n "$known" ]; then
        gh api -X PATCH "$comments/comments/$known" -F body=@"$table.comment" >/dev/null
    else
        gh api "$comments/$WATTLOOP_PULL_REQUEST/comments" -F body=@"$table.comment" >/dev/null
    fi
}

# Call GitLab. The token goes through standard input: a command line is visible to other users.
gitlab() {
    printf 'header = "PRIVATE-TOKEN: %s"\n' "$WATTLOOP_GITLAB_TOKEN" |
        curl --config - --silent --show-error --fail --max-time 30 "$@"
}

# Create the note on GitLab, or update the newest one of an earlier push.
gitlab_note() {
    notes="${CI_API_V4_URL:-}/projects/${CI_PROJECT_ID:-}/merge_requests/$CI_MERGE_REQUEST_IID/notes"
    page=1 known=next
    while [ "$known" = next ] && [ "$page" -le 20 ]; do
        listed=$(gitlab --get --data "sort=desc&order_by=created_at&per_page=100&page=$page" "$notes") ||
            return 1
        known=$(printf '%s' "$listed" | python3 -c '
import json, sys
notes = json.load(sys.stdin)
found = [int(n["id"]) for n in notes if n["body"].startswith(sys.argv[1])]
print(found[0] if found else "next" if len(notes) == 100 else "none")' "$marker" 2>/dev/null) || return 1
        page=$((page + 1))
    done
    if [ "$known" != none ] && [ "$known" != next ]; then
        status=$(gitlab --output /dev/null --write-out '%{http_code}' --request PUT \
            --data-urlencode "body@$table.comment" "$notes/$known") && return
        # The note of another user cannot be changed. Ours is the newest one from now on.
        case $status in 403 | 404) ;; *) return 1 ;; esac
    fi
    gitlab --output /dev/null --data-urlencode "body@$table.comment" "$notes"
}

# Without a table nothing was compared, and the log says why.
if [ -s "$table" ]; then
    [ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$table" >>"$GITHUB_STEP_SUMMARY"
    { echo "$marker"; cat "$table"; } >"$table.comment"
    if [ "${WATTLOOP_COMMENT:-false}" = true ]; then
        # A comment that cannot be written, as from a fork, must not fail the check.
        if [ -n "${WATTLOOP_PULL_REQUEST:-}" ] && command -v gh >/dev/null 2>&1; then
            github_comment ||
                echo "ci/check.sh: the comment could not be written; the table is in the summary" >&2
        elif [ -n "${CI_MERGE_REQUEST_IID:-}" ] && [ -n "${WATTLOOP_GITLAB_TOKEN:-}" ]; then
            gitlab_note ||
                echo "ci/check.sh: the note could not be written; the table is an artefact" >&2
        fi
    fi
    rm -f "$table.comment"
fi

if [ "$code" = 3 ]; then
    [ -z "${GITHUB_ACTIONS:-}" ] || echo "::warning::energy check: cannot tell, the noise is too large"
    [ "${WATTLOOP_STRICT:-false}" = true ] && exit 1
    exit 0
fi
exit "$code"
