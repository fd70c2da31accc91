# SPDX-License-Identifier: GPL-2.0
# Sourced by the scripts beside it: where things are, how to say things.
# shellcheck shell=sh disable=SC2034

top=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
build=$top/build
BASE=${BASE:-6.12}
KSRC=${KSRC:-}
jobs=${JOBS:-$(nproc)}

# No user's or machine's git configuration may change what is generated.
GIT_CONFIG_NOSYSTEM=1
GIT_CONFIG_GLOBAL=/dev/null
GIT_AUTHOR_NAME='sLeAZY FPU'
GIT_AUTHOR_EMAIL=sleazy-fpu@localhost
GIT_AUTHOR_DATE='2026-01-01T00:00:00Z'
GIT_COMMITTER_NAME=$GIT_AUTHOR_NAME
GIT_COMMITTER_EMAIL=$GIT_AUTHOR_EMAIL
GIT_COMMITTER_DATE=$GIT_AUTHOR_DATE
LC_ALL=C
TZ=UTC
export GIT_CONFIG_NOSYSTEM GIT_CONFIG_GLOBAL LC_ALL TZ
export GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_AUTHOR_DATE
export GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL GIT_COMMITTER_DATE
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# Progress, with the time since the first script of this command started.
if [ -z "${SLEAZY_T0:-}" ]; then
	SLEAZY_T0=$(date +%s)
	export SLEAZY_T0
fi
say() {
	t=$(($(date +%s) - SLEAZY_T0))
	printf '[%3d:%02d] %s\n' $((t / 60)) $((t % 60)) "$*" >&2
}

# The column of this base in series/bases: package, version, sha256 or release
base_field() {
	case $1 in
	package) n=2 ;;
	version) n=3 ;;
	sha256) n=4 ;;
	release) n=5 ;;
	*) die "no field $1 in series/bases" ;;
	esac
	awk -F' *[|] *' -v b="$BASE" -v n="$n" '$1 == b { print $n }' "$top/series/bases"
}

known_bases() {
	awk -F' *[|] *' '/^[0-9]/ { printf "%s%s", s, $1; s = ", " }' "$top/series/bases"
}

[ -n "$(base_field package)" ] ||
	die "BASE=$BASE is not known: use one of $(known_bases), or a tree of your own with KSRC=/path"

# 6.12 is 612: what lines of the overlay within "#if BASE_VERSION ..." are taken by.
number=$(echo "$BASE" | awk -F. '{ print $1 * 100 + $2 }')
on_this_base() { # FILE
	if grep -q BASE_VERSION "$1"; then
		# In prose, an apostrophe opens no string.
		case $1 in
		*.[ch]) prose= ;;
		*) prose=-t ;;
		esac
		# It exits with 1 if it changed anything. In a pipe, nobody sees it fail.
		unifdef $prose -DBASE_VERSION="$number" "$1" >/dev/null || [ $? = 1 ] || die "$1: see above"
		unifdef $prose -DBASE_VERSION="$number" "$1" || true
	else
		cat "$1"
	fi | at_its_place
}
# v6.5 moved that directory.
if [ "$number" -ge 605 ]; then
	at_its_place() { cat; }
else
	at_its_place() { sed 's|Documentation/arch/x86|Documentation/x86|g'; }
fi

# The machines that this base can have: those for ci and long, or for one of them, or for hand
machines() { # [WHEN]
	awk -F' *[|] *' -v base="$BASE" -v when="${1:-}" '
		!/^#/ && (when == "" ? $10 != "hand" : $10 == when) && !index(" " $11 " ", " " base " ") { print $1 }' \
		"$top/configs/machines"
}

# The mirror that this system uses
debian_mirror() {
	# shellcheck disable=SC2016
	apt-get indextargets --format '$(SITE)' 'Origin: Debian' 2>/dev/null | grep -v security | head -1 | grep . ||
		die "this system has no Debian package source: add one to /etc/apt"
}

# What a result on a machine of configs/machines depends on
machine_id() { # NAME FLAVOUR
	{
		grep "^$1 " "$top/configs/machines"
		cat "$work/obj-$2/arch/x86/boot/bzImage" "$work/initramfs.id"
	} | sha256sum
}

# The initramfs with the files of a directory on top, of which /script.sh is run by
# RUN=script: a second archive goes over the first.
initramfs_with() { # ROOT OUT
	{
		cat "$work/initramfs.gz"
		(cd "$1" && find . | LC_ALL=C sort | cpio -o -H newc -R 0:0 2>/dev/null | gzip -n -1)
	} >"$2.new"
	mv "$2.new" "$2"
}

# All that is made for this base, or for the user's tree
if [ -n "$KSRC" ]; then
	KSRC=$(CDPATH='' cd -- "$KSRC" 2>/dev/null && pwd) ||
		die "KSRC: no such directory: give the path of a kernel tree"
	work=$build/ksrc-$(printf '%s' "$KSRC" | sha256sum | cut -c1-12)
else
	work=$build/$BASE
fi
