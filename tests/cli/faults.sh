#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The faults of docs/faults.md: a rank that dies, stops, hangs or runs out of memory in each stage; files that change; the end of
# the launcher; streams, disks and folders that are not there; a rank that is slow.  In each case: one message that names rank,
# stage and cause, the exit code, within seconds; no process, file or shared memory is left.
# FAULTS=all tries every fault in every stage (tests/long/faults.sh); NAMES=1 prints the names of the cases instead.
. tests/lib.sh
model=tests/models/klein-tiny
timeout=3 # seconds, of --timeout
mkdir "$dir/out" "$dir/tmp"
export TMPDIR="$dir/tmp" # whatever is put there must be gone
# An allocator of the tests' own and a sanitizer's do not go together.
[ -n "$SANITIZED" ] || memory=tests/fault_memory.c
# shellcheck disable=SC2086 # a file or none
[ -n "${NAMES:-}" ] || ${CC:-cc} -shared -fPIC -D_GNU_SOURCE -Icore -Icli -Itests -o "$dir/fault.so" tests/fault_preload.c ${memory:-} -ldl ||
	exit 1
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0
export ASAN_OPTIONS
shm=$(ls -A /dev/shm 2>/dev/null)

# broken RANK STAGE WHAT [ARGUMENT...]: a small picture on two ranks, one of which fails.
broken() {
	rank=$1 stage=$2 what=$3
	shift 3
	rm -f "$dir/mark"
	begin=$(date +%s%N)
	LD_PRELOAD="$dir/fault.so" FAULT_RANK=$rank FAULT_STAGE=$stage FAULT_DO=$what FAULT_MARK="$dir/mark" \
		"$DIFFTP" --model $model --prompt "a red fox" --height 64 --width 64 --steps 4 --seed 1 --max-sequence-length 16 \
		--tp-degree 2 -o "$dir/out/x.png" --timeout $timeout "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
	took=$((($(date +%s%N) - begin) / 1000000))
	echo $rc >"$dir/rc"
}
processes() { # ids of the processes that were started for this picture
	pgrep -f -- "-o $dir/out/x.png"
}
nothing_left() {
	[ -z "$(processes)" ] || fail "processes are left: $(processes | tr '\n' ' ')"
	[ -z "$(find "$dir/out" "$dir/tmp" -mindepth 1)" ] || fail "files are left: $(find "$dir/out" "$dir/tmp" -mindepth 1)"
	[ "$(ls -A /dev/shm 2>/dev/null)" = "$shm" ] || fail "shared memory is left"
	rm -rf "$dir"/out/* "$dir"/out/.[!.]* "$dir"/tmp/*
}
one_message() { # EXPRESSION
	[ "$(grep -c '^difftp: ' "$dir/stderr")" -eq 1 ] || fail "not one message: $(cat "$dir/stderr")"
	grep -Eq -- "^difftp: $1" "$dir/stderr" || fail "the message is not '$1': $(grep '^difftp: ' "$dir/stderr")"
}
within() { # SECONDS
	[ $took -lt $(($1 * 1000)) ] || fail "took $took ms"
}
# dies NAME RANK STAGE WHAT CAUSE
dies() {
	case_ "fault_$1" || return
	broken "$2" "$3" "$4"
	[ -e "$dir/mark" ] || fail "it did not happen"
	[ "$4" = stop ] && limit=$((timeout + 5)) || limit=10
	within $limit
	[ ! -s "$dir/stdout" ] || fail "stdout is not empty"
	place=$3
	[ "$place" = naming ] && place='write'
	[ $rc -eq 1 ] || fail "exit code $rc, not 1"
	one_message "rank $2 on [^ ]+ .*'${place}[^']*'"
	[ -z "$5" ] || one_message ".*$5"
	nothing_left
	done_
}

cause() { # WHAT: what the message must say of it
	case $1 in
	kill) echo SIGKILL ;;
	stop) echo 'stopped .SIGSTOP' ;;
	exit) echo 'exited with code 1' ;;
	abort) [ -n "$SANITIZED" ] || echo SIGABRT ;;
	segv) [ -n "$SANITIZED" ] || echo SIGSEGV ;;
	memory) echo '([Oo]ut of memory|Cannot allocate memory|bad_alloc|may have found no memory)' ;; # oneDNN crashes
	oom) echo 'SIGKILL .*out-of-memory killer has struck' ;;
	esac
}
# try WHAT RANK STAGE
try() {
	[ -n "$SANITIZED" ] && [ "$1" = memory ] && return
	dies "$(printf '%s_rank_%s_%s' "$1" "$2" "$3" | tr -c 'a-z0-9_' _)" "$2" "$3" "$1" "$(cause "$1")"
}

# A control group of the tests' own for the kernel's memory killer, of version 1 or 2; empty where none can be made.
make_group() {
	v1=/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
	v2=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
	for g in "$v1" "$v2" /sys/fs/cgroup; do
		mkdir "$g/difftp_test_$$" 2>/dev/null || continue
		for f in memory.limit_in_bytes memory.max; do
			echo 16000000 2>/dev/null >"$g/difftp_test_$$/$f" && echo "$g/difftp_test_$$" && return
		done
		rmdir "$g/difftp_test_$$"
	done
}
# killer RANK STAGE
killer() {
	FAULT_GROUP=
	[ -n "${NAMES:-}" ] || FAULT_GROUP=$(make_group)
	export FAULT_GROUP
	if [ -z "${NAMES:-}" ] && [ -z "$FAULT_GROUP" ]; then
		echo "skip fault_oom_rank_$1: no control group for memory can be made here"
		return
	fi
	try oom "$1" "$2"
	[ -z "$FAULT_GROUP" ] || rmdir "$FAULT_GROUP"
}

spoken() { # a stage's name with blanks
	echo "$1" | tr _ ' '
}

# ---- ranks.  The picture is decoded and written by rank 0 alone.  Steps but the first take no memory, nor does the naming of a file.
shared='rendezvous load_text load_trans encode step_3' alone='load_vae decode write naming'
if [ "${FAULTS:-}" = all ]; then
	for what in kill stop exit abort segv; do
		for stage in $shared; do
			try $what 0 "$(spoken "$stage")"
			try $what 1 "$(spoken "$stage")"
		done
		for stage in $alone; do
			try $what 0 "$(spoken "$stage")"
		done
	done
	for rank in 0 1; do
		for stage in rendezvous 'load text' 'load trans' encode 'step 1'; do
			try memory $rank "$stage"
			killer $rank "$stage"
		done
	done
	for stage in 'load vae' decode write; do
		try memory 0 "$stage"
		killer 0 "$stage"
	done
else
	rank=0
	for stage in $shared; do
		try kill $rank "$(spoken "$stage")"
		rank=$((1 - rank))
	done
	for stage in $alone; do
		try kill 0 "$(spoken "$stage")"
	done
	try stop 1 'load trans'
	try exit 1 encode
	try abort 0 'step 1'
	try memory 1 'load trans'
	try memory 0 decode
	killer 1 'step 1'
fi

# ---- files of the checkpoint
whole=$model
# spoilt WHAT RANK PART WHY: the file changes when a rank begins to load; any rank may be the first to notice.
spoilt() {
	case_ "fault_$1_$3" || return
	rm -rf "$dir/m"
	cp -r $whole "$dir/m"
	model=$dir/m
	FAULT_FILE=$(echo "$dir/m/$3"/*.safetensors)
	export FAULT_FILE
	broken "$2" "load $3" "$1"
	[ -e "$dir/mark" ] || fail "it did not happen"
	within 10
	[ $rc -eq 1 ] || fail "exit code $rc, not 1"
	one_message "rank [01] on [^ ]+ .*'load $3'.*: cannot read tensor '.*' of '$FAULT_FILE': the file $4"
	nothing_left
	done_
}
for part in text_encoder transformer; do
	spoilt truncate 0 $part 'had [0-9]+ bytes when it was opened and has [0-9]+ now$'
	spoilt modify 1 $part 'was modified since it was opened$'
done

# The same shapes, other values: a fine-tune.
make_fine_tune() {
	rm -rf "$dir/m" "$dir/other"
	cp -r $whole "$dir/m"
	cp -r $whole "$dir/other"
	for part in text_encoder transformer vae; do
		f=$(cd "$dir/m/$part" && echo *.safetensors)
		n=$("$DIFFTP" inspect "$dir/m/$part/$f" --json | sed -n 's/.*"header_bytes":[^0-9]*\([0-9]*\).*/\1/p')
		{
			head -c "$n" "$dir/m/$part/$f"
			tail -c "+$((n + 1))" "$dir/m/$part/$f" | LC_ALL=C tr '\000-\376\377' '\001-\377\000'
		} >"$dir/other/$part/$f"
	done
}
other_settings() {
	sed 's/"rope_theta": 2000/"rope_theta": 2001/' "$dir/m/transformer/config.json" >"$dir/other/transformer/config.json"
	cp plans/flux2.json "$dir/m/plan.json"
	echo '{"transformer_blocks.*.ff.linear_in": "packed_colwise", "transformer_blocks.*.ff.linear_out": "rowwise"}' \
		>"$dir/other/plan.json"
}
[ -n "${NAMES:-}" ] || make_fine_tune
# differs NAME RANK FILE WHAT WHOSE [ARGUMENT...]
differs() {
	case_ "fault_$1" || return
	export FAULT_OPEN="$dir/m/$3" FAULT_INSTEAD="$dir/other/$3"
	rank=$2 item=$4 whose=$5
	shift 5
	broken "$rank" none none "$@"
	within 10
	[ $rc -eq 1 ] || fail "exit code $rc, not 1"
	one_message "rank $rank on [^ ]+ .*'compare the ranks' models'.*: its $item has the checksum [0-9a-f]{16}, that of $whose is [0-9a-f]{16}: all ranks must read the same files$"
	nothing_left
	unset FAULT_OPEN FAULT_INSTEAD
	done_
}
differs other_transformer_rank_1 1 transformer/diffusion_pytorch_model.safetensors \
	"transformer \('$dir/m/transformer/diffusion_pytorch_model.safetensors'\)" 'rank 0'
differs other_text_encoder_rank_2_of_4 2 text_encoder/model.safetensors \
	"text_encoder \('$dir/m/text_encoder/model.safetensors'\)" 'rank 0 and others' --tp-degree 4
differs other_vae_rank_0_of_4 0 vae/diffusion_pytorch_model.safetensors \
	"vae \('$dir/m/vae/diffusion_pytorch_model.safetensors'\)" 'rank 1 and others' --tp-degree 4
[ -n "${NAMES:-}" ] || other_settings
differs other_configuration 1 transformer/config.json "configuration or tokenizer \(folder '$dir/m'\)" 'rank 0'
differs other_plan 1 plan.json "plan \($dir/m/plan.json\)" 'rank 0' --tp-plan "$dir/m/plan.json"
model=$whole

# ---- a rank that is not at fault is held in a stage, so that the rest of the run can be looked at meanwhile
# held RANK STAGE [ARGUMENT...]: begins a run in the background; its launcher is $launcher.
held() {
	rm -f "$dir/mark"
	broken "$1" "$2" hang --timeout 60 &
	background=$!
	for _ in $(seq 400); do
		[ -e "$dir/mark" ] && break
		sleep 0.05
	done
	[ -e "$dir/mark" ] || fail "the rank did not come to '$2'"
	launcher=
	for p in $(processes); do
		grep -qz '^DIFFTP_RANK=' "/proc/$p/environ" || launcher=$p
	done
}
gone_within() { # SECONDS
	for _ in $(seq $(($1 * 20))); do
		[ -z "$(processes)" ] && return
		sleep 0.05
	done
	fail "processes are left after $1 s: $(processes | tr '\n' ' ')"
}

signalled() { # NAME
	case_ "fault_signal_$1" || return
	held 1 'step 2'
	kill "-$1" "$launcher"
	gone_within 5
	wait $background
	[ "$(cat "$dir/rc")" -eq 130 ] || fail "exit code $(cat "$dir/rc"), not 130"
	one_message 'interrupted$'
	nothing_left
	done_
}
launcher_killed() { # STAGE
	case_ "fault_launcher_killed_$(echo "$1" | tr ' ' _)" || return
	held 0 "$1"
	kill -KILL "$launcher"
	gone_within 5
	wait $background
	nothing_left
	done_
}
for s in INT TERM HUP; do
	signalled $s
done
for s in rendezvous 'step 2' naming; do
	launcher_killed "$s"
done

rank_told_to_end() {
	case_ fault_rank_told_to_end || return
	held 0 'step 2'
	for p in $(processes); do
		grep -qz '^DIFFTP_RANK=1$' "/proc/$p/environ" && kill -TERM "$p"
	done
	gone_within 5
	wait $background
	one_message 'rank 1 on .*SIGTERM'
	nothing_left
	done_
}
rank_told_to_end

# Runs a tenth of the time, and takes several times the timeout for it.
slow_rank() {
	case_ fault_slow_rank_finishes || return
	rm -f "$dir/done"
	(
		while [ ! -e "$dir/done" ]; do
			for p in $(processes); do
				grep -qz '^DIFFTP_RANK=1$' "/proc/$p/environ" 2>/dev/null || continue
				kill -STOP "$p" && sleep 0.18 && kill -CONT "$p"
			done 2>/dev/null
			sleep 0.02
		done
	) &
	slow=$!
	[ "${FAULTS:-}" = all ] && steps=1000 || steps=200
	broken 1 none none --steps $steps --timeout 0.5
	touch "$dir/done"
	wait $slow
	[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
	[ $took -gt 5000 ] || [ "${FAULTS:-}" != all ] || fail "it took $took ms only, not ten times the timeout"
	[ $took -gt 1000 ] || fail "it took $took ms only"
	rm -f "$dir/out/x.png"
	nothing_left
	done_
}
slow_rank

# ---- streams
# draws NAME SHELL: the run goes on without a stream that it has no need of.
draws() {
	case_ "fault_$1" || return
	"$DIFFTP" --model $model --prompt x --height 64 --width 64 --steps 1 --max-sequence-length 32 --seed 1 -q --no-metadata --force \
		-o "$dir/whole.png" || fail "it does not draw at all"
	sh -c "$2" sh "$DIFFTP" --model $model --prompt x --height 64 --width 64 --steps 1 --max-sequence-length 32 --seed 1 \
		--no-metadata --tp-degree 2 -o "$dir/out/x.png" 2>"$dir/stderr"
	rc=$?
	[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
	cmp "$dir/whole.png" "$dir/out/x.png" || fail "another picture"
	rm -f "$dir/out/x.png"
	nothing_left
	done_
}
# shellcheck disable=SC2016 # the inner shell expands it
{
	draws closed_stdout '"$@" >&-'
	draws closed_stdin_stdout_stderr '"$@" <&- >&- 2>&-'
	draws full_stderr '"$@" 2>/dev/full'
}
# mute NAME COMMAND ARGUMENT...: a command that has something to print, and nowhere to.
mute() {
	case_ "fault_closed_stdout_$1" || return
	shift
	"$DIFFTP" "$@" >&- 2>"$dir/stderr" </dev/null
	rc=$?
	[ $rc -eq 1 ] || fail "exit code $rc, not 1: $(cat "$dir/stderr")"
	grep -Eq '^difftp: .*standard output: Bad file descriptor$' "$dir/stderr" || fail "$(cat "$dir/stderr")"
	"$DIFFTP" "$@" >/dev/full 2>"$dir/stderr" </dev/null
	rc=$?
	[ $rc -eq 1 ] || fail "full: exit code $rc, not 1: $(cat "$dir/stderr")"
	grep -Eq '^difftp: .*standard output: No space left on device$' "$dir/stderr" || fail "full: $(cat "$dir/stderr")"
	nothing_left
	done_
}
mute bench bench --model $model --height 64 --width 64 --steps 1 --max-sequence-length 32 -q --prompt x --tp-degree 2
mute plan plan --model $model
mute inspect inspect $model
mute doctor doctor -o "$dir/out/x.png"
mute man man
mute help --help

# ---- folders, in a mount namespace of its own
unshare -m true 2>/dev/null && unshared=-m || unshared=-rm
apart() {
	unshare $unshared "$@"
}
may_mount() { # CASE
	[ -n "${NAMES:-}" ] && return
	apart sh -c 'mount -t tmpfs none /mnt' 2>/dev/null || { echo "skip fault_$1: mount namespaces are not allowed here" && return 1; }
}
# full NAME SIZE CODE MESSAGE ARGUMENT...: a command that writes to x in a small file system.
full() {
	may_mount "disk_full_$1" || return
	case_ "fault_disk_full_$1" || return
	size=$2 code=$3 message=$4
	shift 4
	mkdir -p "$dir/small"
	begin=$(date +%s%N)
	# shellcheck disable=SC2016 # the inner shell expands it
	apart sh -c 'mount -t tmpfs -o size="$1" none "$2" && shift 2 && "$@"; rc=$?; cd '"'$dir/small'"' && ls -A && exit $rc' sh "$size" \
		"$dir/small" "$DIFFTP" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null
	rc=$?
	took=$((($(date +%s%N) - begin) / 1000000))
	within 10
	[ $rc -eq "$code" ] || fail "exit code $rc, not $code"
	one_message "$message"
	[ ! -s "$dir/stdout" ] || fail "files are left: $(cat "$dir/stdout")"
	nothing_left
	done_
}
picture="--model $model --prompt x --max-sequence-length 32 --steps 1 --seed 1 --tp-degree 2 -q --timeout $timeout"
no_room='No space left on device'
# shellcheck disable=SC2086 # lists of words
{
	full before_the_run 16k 2 ".*'$dir/small/x.png'.*$no_room" $picture --height 64 --width 64 -o "$dir/small/x.png"
	full picture 100k 1 "rank 0 on [^ ]+ failed in 'write the image': .*'$dir/small/x.png': $no_room" $picture --height 256 --width 256 \
		-o "$dir/small/x.png"
	full latents 100k 1 "rank 0 on [^ ]+ failed in 'write the image': .*'$dir/small/x.safetensors': $no_room" $picture --height 512 \
		--width 512 --output-type latent -o "$dir/small/x.safetensors"
	full stages 100k 1 "rank 0 on [^ ]+ failed in 'write the image': .*'$dir/small/s.safetensors': $no_room" $picture --height 64 \
		--width 64 -o /dev/null --dump-stages "$dir/small/s.safetensors"
	full shard 2m 2 ".*'$dir/small/sharded': it takes [0-9]+ bytes, the disk of '$dir/small' has [0-9]+ left$" shard --model $model --tp-degree 2 -o "$dir/small/sharded"
	full plan 4k 2 ".*'$dir/small/p.json': $no_room" plan --model $model --tp-degree 2 --emit "$dir/small/p.json"
}

no_shm() {
	may_mount no_dev_shm || return
	case_ fault_no_dev_shm || return
	"$DIFFTP" $picture --height 64 --width 64 --force -o "$dir/whole.png" || fail "it does not draw at all"
	cat >"$dir/bare" <<'EOT'
bare=$1
shift
mkdir "$bare"
for n in null zero full random urandom; do
	touch "$bare/$n" && mount --bind "/dev/$n" "$bare/$n" || exit 99
done
mount --rbind "$bare" /dev || exit 99
[ ! -e /dev/shm ] || exit 98
exec "$@"
EOT
	apart sh "$dir/bare" "$dir/dev" "$DIFFTP" $picture --height 64 --width 64 -o "$dir/out/x.png" 2>"$dir/stderr"
	rc=$?
	[ $rc -eq 0 ] || fail "exit code $rc: $(cat "$dir/stderr")"
	cmp "$dir/whole.png" "$dir/out/x.png" || fail "another picture"
	rm -rf "$dir/out/x.png" "${dir:?}/dev"
	apart sh "$dir/bare" "$dir/dev" "$DIFFTP" doctor -o "$dir/out/x.png" >"$dir/stdout" 2>&1
	grep -Eq '^warning +shared memory +there is no /dev/shm: No such file or directory$' "$dir/stdout" || fail "doctor: $(cat "$dir/stdout")"
	nothing_left
	done_
}
no_shm
finish
