"""The shell that starts, looks at and stops a detached job; `detached_job` says what it is for."""

from overbrainer_airflow.machines.runtime import Launch
from overbrainer_airflow.machines.shell import exports, quote

GRACE = 10
"""Seconds between asking a job's processes to stop and killing them."""

LOG_CHUNK = 256 * 1024
"""Bytes of log that one look brings at most."""

# A process is told apart from a later one with its number by its start time and the boot; a
# member that is a zombie no longer counts. Without /proc (macOS) only the group is asked for.
_FUNCTIONS = r"""
boot_id() {
    cat /proc/sys/kernel/random/boot_id 2>/dev/null || sysctl -n kern.boottime 2>/dev/null ||
        echo unknown
}
stat_of() {
    read -r stat <"/proc/$1/stat" || return 1
    stat=${stat##*) }
} 2>/dev/null
start_of() {
    stat_of "$1" || { echo 0; return; }
    set -- $stat
    echo "${20}"
}
group_alive() {
    if [ -r /proc/self/stat ]; then
        if stat_of "$1"; then
            [ "$(start_of "$1")" = "$2" ] || return 1
            case "$stat" in [ZX]*) ;; *) return 0 ;; esac
        fi
        kill -0 "-$1" 2>/dev/null || return 1
        for process in /proc/[0-9]*; do
            stat_of "${process#/proc/}" || continue
            set -- "$1" "$2" $stat
            [ "$5" = "$1" ] && case "$3" in [ZX]) ;; *) return 0 ;; esac
        done
        return 1
    fi
    kill -0 "-$1" 2>/dev/null
}
job_alive() {
    read -r pid <job.pid && read -r boot start _ <job.boot || return 1
    case "$pid" in '' | 0 | 1 | *[!0-9]*) return 1 ;; esac
    [ "$boot" = "$(boot_id)" ] && group_alive "$pid" "$start"
} 2>/dev/null
cancelling_alive() {
    read -r canceller since <cancelling && [ "$(start_of "$canceller")" = "$since" ]
} 2>/dev/null
job_status() {
    if [ -f cancelled ]; then echo cancelled
    elif [ -f cancelling ]; then
        if job_alive || cancelling_alive; then echo running; else echo cancelled; fi
    elif [ -f exit_code ]; then echo "exited $(cat exit_code)"
    elif [ ! -f job.pid ]; then echo absent
    elif job_alive; then echo running
    elif [ -f exit_code ]; then echo "exited $(cat exit_code)"
    else echo lost
    fi
}
# Called in the background only: it becomes the new session's leader.
in_new_session() {
    if command -v setsid >/dev/null; then exec setsid nohup "$@"
    else exec nohup python3 -c \
        'import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])' "$@"
    fi
}
# Seconds of a clock that nobody sets, where there is one.
clock() {
    if read -r uptime _ </proc/uptime; then echo "${uptime%%.*}"; else date +%s; fi
} 2>/dev/null
stop_rest() {
    [ ! -s job.stop ] || sh job.stop </dev/null >/dev/null 2>&1 9>&-
}
lock_job() {
    exec 9>job.lock || return 1
    if command -v flock >/dev/null; then flock 9
    else python3 -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
    fi
}
"""

# The leader outlives the signal that ends its command, so that the end is written down.
_JOB = f"""#!/bin/sh
{_FUNCTIONS}
echo "$(boot_id) $(start_of $$) $(clock)" >job.boot
echo $$ >job.pid.part && mv job.pid.part job.pid
echo ready >&3
exec 3>&-
trap : TERM INT
"$@"
echo $? >exit_code.part && mv exit_code.part exit_code
"""

_CANCEL = f"""
{_FUNCTIONS}
echo "$$ $(start_of $$)" >cancelling.part && mv cancelling.part cancelling
echo ready >&3
exec 3>&-
stop_rest
job_alive || pid=
if [ -n "$pid" ]; then
    kill -TERM "-$pid" 2>/dev/null
    waited=0
    while job_alive && [ $waited -lt {GRACE * 5} ]; do
        sleep 0.2
        waited=$((waited + 1))
    done
    while job_alive; do
        kill -KILL "-$pid" 2>/dev/null
        sleep 0.2
    done
fi
rm -rf scratch
: >cancelled
"""


def start_script(directory: str, launch: Launch, inputs: str, result: str) -> str:
    """Return shell that starts a job unless it runs or has its result, and prints the `Outcome`.

    Args:
        directory: the job directory, which exists.
        launch: how it is started and stopped.
        inputs: one line that tells this job from one made of something else.
        result: the file, relative to the directory, that a finished job has.
    """
    return f"""
{_enter(directory)}
{_FUNCTIONS}
lock_job || {{ echo "cannot lock $PWD/job.lock" >&2; exit 1; }}
# A job that is being cancelled is nobody's any more: its successor starts once it is gone.
waited=0
while [ -f cancelling ] && [ "$waited" -lt {(GRACE + 20) * 5} ] && [ "$(job_status)" = running ]; do
    sleep 0.2
    waited=$((waited + 1))
done
same=no
[ "$(cat job.inputs 2>/dev/null)" = {quote(inputs)} ] && same=yes
state=$(job_status)
case "$state $same" in
    'running yes') echo running; exit ;;
    'running no') echo different; exit ;;
    'exited 0 yes') if [ -s {quote(result)} ]; then echo finished; exit; fi ;;
esac
if [ "$state" != absent ]; then
    stop_rest
    attempt=1
    while [ -e "attempts/$attempt" ]; do attempt=$((attempt + 1)); done
    mkdir -p "attempts/$attempt"
    for file in job.inputs job.boot job.log job.shown exit_code cancelling cancelled job.pid; do
        [ ! -e "$file" ] || mv "$file" "attempts/$attempt/"
    done
fi
printf '%s\\n' {quote(inputs)} >job.inputs || {{ echo "cannot write $PWD" >&2; exit 1; }}
printf '%s' {quote(_JOB)} >job.sh
printf '%s' {quote(launch.stop)} >job.stop
ready=$(
    {exports(launch.env)}
    in_new_session sh job.sh {launch.command} </dev/null 3>&1 >job.log 2>&1 9>&- &
)
[ "$ready" = ready ] || {{ echo "the job did not start: $(tail -n 1 job.log)" >&2; exit 1; }}
echo started
"""


def watch_script(directory: str, watcher: str, limit: int = LOG_CHUNK) -> str:
    """Return shell that answers looks at a job, a request a line, until its input ends.

    ``from`` answers how many bytes of the log ``watcher`` has shown already. ``look OFFSET WAIT``
    answers once ``WAIT`` seconds have passed or the job has ended: a line, ``<state> [<exit code>]
    <seconds since the start> <size of the log> <n>``, and ``n`` bytes of the log from the offset
    on. ``shown OFFSET`` is not answered.
    """
    return f"""
{_FUNCTIONS}
directory={quote(directory)}
watcher={quote(watcher)}
cd -- "$directory" 2>/dev/null || cd /
# The wait is spent beside the job, where its end is seen at once and a second look costs nothing.
until_ended() {{
    waited=0
    while [ "$waited" -lt "$1" ] && [ -f job.pid ] && [ ! -f exit_code ] && [ ! -f cancelled ]; do
        read -r pid <job.pid && kill -0 "-$pid" || return
        sleep 1
        waited=$((waited + 1))
    done
}} 2>/dev/null
look() {{
    until_ended "$2"
    state=lost size=0 age=0
    if [ -d "$directory" ]; then
        state=$(job_status)
        [ ! -f job.log ] || size=$(($(wc -c <job.log)))
        [ ! -f job.boot ] || read -r _ _ began <job.boot
        now=$(clock)
        age=$((now - ${{began:-$now}}))
    fi
    count=$((size > $1 ? size - $1 : 0))
    [ "$count" -le {limit:d} ] || count={limit:d}
    echo "$state $age $size $count"
    [ "$count" = 0 ] || tail -c "+$(($1 + 1))" job.log | head -c "$count"
}}
while read -r request offset wait; do
    case "$request" in
        from)
            {{ read -r who at <job.shown && [ "$who" = "$watcher" ]; }} 2>/dev/null || at=0
            echo "$at"
            ;;
        look) look "$offset" "$wait" </dev/null ;;
        shown) echo "$watcher $offset" >job.shown.part && mv job.shown.part job.shown ;;
    esac
done
"""


def cancel_script(directory: str) -> str:
    """Return shell that has a job stopped, whatever becomes of the caller, and prints its state."""
    return f"""
cd -- {quote(directory)} 2>/dev/null || {{ echo absent; exit; }}
{_FUNCTIONS}
lock_job || {{ echo "cannot lock $PWD/job.lock" >&2; exit 1; }}
state=$(job_status)
if [ "$state" = running ]; then
    ready=$(in_new_session sh -c {quote(_CANCEL)} </dev/null 3>&1 >/dev/null 2>&1 9>&- &)
    [ "$ready" = ready ] || {{ echo "cannot write $PWD/cancelling" >&2; exit 1; }}
elif [ "$state" = lost ]; then stop_rest
fi
echo "$state"
"""


def status_script(directory: str) -> str:
    """Return shell that prints a job's state, and on a line of its own what it was made of."""
    return f"""
{_FUNCTIONS}
cd -- {quote(directory)} 2>/dev/null || {{ echo lost; exit; }}
job_status
cat job.inputs 2>/dev/null || :
"""


def _enter(directory: str) -> str:
    return f"cd -- {quote(directory)} || exit 1"
