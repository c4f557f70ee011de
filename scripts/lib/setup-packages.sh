#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
# Part of scripts/setup: packages of the distribution, and why something could not be had.

wrong_clock='not valid yet|not yet valid|Not live until|NOT_YET_VALID|has expired|is expired|HAS_EXPIRED'

# Why the last command failed, in one line: what people can change first, else what it complains of.
reason() {
	local line
	if grep -qE 'No space left on device|enough free space|ENOSPC' "$log"; then
		echo "the disk is full: $(df -k --output=avail,target . "$cache" /var/cache/apt /var/lib /tmp | sed 1d |
			sort -n | awk 'NR == 1 {printf "%d MB are free on %s", $1 / 1024, $2}')"
	elif grep -qE "$wrong_clock" "$log"; then
		echo "signatures are not valid at $(date '+%F %H:%M'), the time of this machine's clock: set it"
	elif grep -qE 'EAI_AGAIN|ENOTFOUND|ENETUNREACH|ECONNREFUSED|ETIMEDOUT|NewConnectionError|ConnectTimeout|Temporary failure|Could not (resolve|connect)|Network is unreachable' "$log"; then
		echo "no network, or its server does not answer"
	else
		line=$(grep -m 1 -E '^(E:|\[ERROR\]|ERROR|npm error)|: error: | ERROR: |command not found' "$log") ||
			line=$(tail -n 1 "$log")
		line=${line#E: }
		echo "${line:0:300}"
	fi
}

have() {
	local kind what
	IFS=: read -r kind what _ <<<"$1"
	case $kind in
	cmd) command -v "$what" >/dev/null ;;
	pc) pkg-config --exists "$what" 2>/dev/null ;;
	file) [ -e "$what" ] ;;
	python) [ -x .venv/bin/python ] || find_python >/dev/null ;;
	postgres) compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ;;
	esac
}

# Sets ``missing`` to the packages that the needs call for, and ``wanted_for`` to what they are for.
find_missing() {
	local need package what_for
	missing=()
	for need; do
		have "$need" && continue
		IFS=: read -r _ _ package what_for <<<"$need"
		[[ " ${missing[*]} " != *" $package "* ]] || continue
		missing+=("$package")
		wanted_for[$package]=$what_for
	done
}

# How root's work is done here: sets ``become``; fails, and sets ``why_not``, where it cannot be.
find_root() {
	if ! command -v apt-get >/dev/null; then
		why_not="there is no apt here"
	elif [ "$(id -u)" = 0 ]; then
		become=()
		return
	elif ! command -v sudo >/dev/null; then
		why_not="only root can install packages, and there is no sudo"
	elif sudo -n true 2>/dev/null || { (: </dev/tty) 2>/dev/null && sudo -v; }; then
		become=(sudo --)
		return
	else
		why_not="only root can install packages, and sudo does not let $(id -un) do it"
	fi
	return 1
}

as_root() { "${become[@]}" "$@"; }

# Debian starts the services of a package that it installs, unless this program forbids it.
guard=/usr/sbin/policy-rc.d
guard_saved=/usr/sbin/policy-rc.d.stallscope-saved
guarded=0
forbid_services() {
	guarded=1
	# One of ours that is still there is of a run that was killed.
	as_root sh -c "[ ! -e $guard ] || grep -q stallscope $guard || mv $guard $guard_saved
		printf '#!/bin/sh\n# while stallscope installs packages\nexit 101\n' >$guard && chmod 755 $guard"
}
allow_services() {
	[ "$guarded" = 1 ] || return 0
	guarded=0
	as_root sh -c "rm -f $guard; [ ! -e $guard_saved ] || mv $guard_saved $guard"
}

# Runs apt-get; waits while another process uses it, and finishes what one that was killed began.
# needrestart would restart running services whose libraries were upgraded.
apt_get() {
	local waited=0 repaired=0
	while ! as_root env LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
		apt-get -q -o Dpkg::Use-Pty=0 -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
		-o Acquire::https::Timeout=20 "$@" >"$log" 2>&1; do
		if grep -qE 'Could not get lock|Unable to (acquire|lock)' "$log" && [ $waited -lt 300 ]; then
			[ $waited != 0 ] || report "waiting, 5 minutes at most, for another process that uses apt:" \
				"$(grep -m 1 -oE 'process [0-9]+ \([^)]*\)' "$log" || reason)"
			sleep 2
			waited=$((waited + 2))
		elif grep -q 'dpkg --configure -a' "$log" && [ $repaired = 0 ]; then
			repaired=1
			report "finishing what an interrupted dpkg began"
			as_root env DEBIAN_FRONTEND=noninteractive dpkg --force-confold --configure -a >"$log" 2>&1 ||
				return 1
		elif grep -q -- '--fix-broken install' "$log" && [ $repaired != 2 ]; then
			repaired=2
			as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-remove -f install >"$log" 2>&1 ||
				return 1
		else
			return 1
		fi
	done
}

# Sets ``lists_failed`` to what is wrong with apt's lists, or nothing; ``offline`` to 1 where none came.
update_lists() {
	lists_failed='' offline=0 updated=1
	apt_get update && ! grep -q '^Err:' "$log" && return
	lists_failed=$(reason)
	grep -qE '^(Hit|Get):' "$log" && ! grep -qE "$wrong_clock" "$log" && return
	offline=1
}

# Those of the packages that apt can install.
known_of() {
	apt-cache policy "$@" 2>/dev/null |
		awk '/^[^ ]/ {name = $1; sub(/:$/, "", name)} /Candidate:/ && $2 != "(none)" {print name}'
}

# Installs what can be had of the packages; ``reasons`` has why the others cannot.
install_packages() {
	local package known
	lists_failed='' offline=0 updated=0
	forbid_services
	# Lists of this hour are new enough.
	[ -n "$(find /var/lib/apt/lists -maxdepth 0 -mmin -60)" ] || update_lists
	mapfile -t known < <(known_of "$@")
	if [ ${#known[@]} != $# ] && [ "$updated" = 0 ]; then
		update_lists
		mapfile -t known < <(known_of "$@")
	fi
	for package; do
		reasons[$package]="apt knows no such package here${lists_failed:+ ($lists_failed)}"
	done
	[ ${#known[@]} = 0 ] || install_known "${known[@]}"
	allow_services
}

# All at once, or where that fails in halves, so that one that cannot be had stops no other.
# --no-remove: a server of another vendor on this machine must stay what it is.
install_known() {
	local package half=$(($# / 2)) why
	if apt_get install -y --no-install-recommends --no-remove -o Dpkg::Options::=--force-confold "$@"; then
		for package; do reasons[$package]="it is installed, and still not found"; done
		return
	fi
	why=$(reason)
	if [ "$updated" = 0 ]; then
		update_lists
		[ "$offline" = 1 ] || { install_known "$@" && return; }
	elif [ $# -gt 1 ] && [ "$offline" = 0 ] && [[ $why != "the disk is full"* ]]; then
		report "apt could not install all of it at once ($why): trying parts"
		install_known "${@:1:half}"
		install_known "${@:half+1}"
		return
	fi
	for package; do reasons[$package]=$why; done
}

# Installs what the needs call for. Nothing works without those that are for nothing in particular.
packages() {
	local package why why_not='' core=() by_reason=()
	declare -A wanted_for=() reasons=() lines=()
	find_missing "$@"
	[ ${#missing[@]} -gt 0 ] || return 0
	if find_root; then
		report "installing through apt: ${missing[*]}"
		report "(no service is started; what apt says is in $log)"
		install_packages "${missing[@]}"
		# shellcheck disable=SC2034 # scripts/setup reads it
		installed=1
		find_missing "$@"
	else
		report "$why_not; have an administrator run: apt-get install --no-install-recommends ${missing[*]}"
	fi
	for package in "${missing[@]}"; do
		if [ -z "${wanted_for[$package]}" ]; then
			core+=("$package")
			continue
		fi
		why=${reasons[$package]:-$why_not}
		[ -n "${lines[$why]:+x}" ] || by_reason+=("$why")
		lines[$why]+=${lines[$why]:+, }"$package (for ${wanted_for[$package]})"
	done
	[ ${#core[@]} = 0 ] || fail "nothing works without ${core[*]}: ${why_not:-${reasons[${core[0]}]}}"
	[ -z "$why_not" ] || return 0
	for why in "${by_reason[@]}"; do report "left out: ${lines[$why]}: $why"; done
}
