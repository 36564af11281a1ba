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

# Without a table nothing was compared, and the log says why.
if [ -s "$table" ]; then
    [ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$table" >>"$GITHUB_STEP_SUMMARY"
    { echo "$marker"; cat "$table"; } >"$table.comment"
    if [ "${WATTLOOP_COMMENT:-false}" = true ]; then
        # A comment that cannot be written, as from a fork, must not fail the check.
        if [ -n "${WATTLOOP_PULL_REQUEST:-}" ] && command -v gh >/dev/null 2>&1; then
            known=$(gh api "repos/$GITHUB_REPOSITORY/issues/$WATTLOOP_PULL_REQUEST/comments" \
                --paginate --jq ".[] | select(.body | startswith(\"$marker\")) | .id" 2>/dev/null | head -n 1)
            if [ -n "$known" ]; then
                gh api -X PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$known" -F body=@"$table.comment" >/dev/null
            else
                gh api "repos/$GITHUB_REPOSITORY/issues/$WATTLOOP_PULL_REQUEST/comments" -F body=@"$table.comment" >/dev/null
            fi || echo "ci/check.sh: the comment could not be written; the table is in the summary" >&2
        elif [ -n "${CI_MERGE_REQUEST_IID:-}" ] && [ -n "${WATTLOOP_GITLAB_TOKEN:-}" ]; then
            curl --silent --show-error --fail --output /dev/null \
                --header "PRIVATE-TOKEN: $WATTLOOP_GITLAB_TOKEN" --data-urlencode "body@$table.comment" \
                "$CI_API_V4_URL/projects/$CI_PROJECT_ID/merge_requests/$CI_MERGE_REQUEST_IID/notes" ||
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
