#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs the commands of the documentation, each block of them in a folder of its own that holds what they name: links to the tiny
# models under the names of real ones, a few pictures, plans, LoRAs and prompts.  [OPTIONAL] parts are left out, of A|B B is taken; pictures are
# small where a command does not say how large.
# A block that cannot run here has a line above it, <!-- not run: WHY -->, where WHY begins with network, GPU, cluster, PyTorch or
# time; these are counted and listed.
. tests/lib.sh
tree=$PWD
mkdir "$dir/bin" "$dir/blocks"
ln -s "$DIFFTP" "$dir/bin/difftp"
printf '#!/bin/sh\necho "a red fox in snow"\necho "a lighthouse"\n' >"$dir/bin/producer"
chmod +x "$dir/bin/producer"

# Each block as a file: where it is, why it is not run, the commands.
cat >"$dir/blocks.awk" <<'AWK'
function flush() {
	if (commands != "") {
		file = sprintf("%s/%03d", folder, ++n)
		printf "%s\n%s\n%s", where, mark, commands >file
		close(file)
	} else if (mark != "" && inside)
		print where ": no command follows 'not run'"
	if (inside)
		mark = ""
	inside = 0
	commands = ""
	goes_on = 0
}
function line(text) {
	if (!inside) {
		inside = 1
		where = name ":" FNR
	}
	if (goes_on || text ~ /^(t=|\$t |for |(\$ )?((OMP_NUM_THREADS|DIFFTP_[A-Z_]*)=[^ ]* )?(difftp|\.\/difftp|producer|sh|seq|make|git|man|mpirun|torchrun|srun|sbatch|docker|python3|pip|hf|curl|apt-get) )/) {
		sub(/^\$ /, "", text)
		goes_on = text ~ /\\$/
		commands = commands text "\n"
	}
}
FNR == 1 { flush(); mark = ""; fence = 0; name = FILENAME; sub(tree "/", "", name) }
/^```/ { flush(); fence = !fence; shell = /^```(sh|bash|console)/; next }
fence { if (shell) line($0); next }
/^<!-- not run: .* -->$/ { flush(); mark = $0; sub(/^<!-- not run: /, "", mark); sub(/ -->$/, "", mark); next }
/^    / { line(substr($0, 5)); next }
/^$/ { if (inside) flush(); next }
{ flush(); if (mark != "") { print name ":" FNR ": no block of commands follows 'not run'"; mark = "" } }
END { flush() }
AWK
case_ docs_marks_are_in_order
documents=$(ls README.md CONTRIBUTING.md docs/*.md docs/*/*.md tests/models/*/*.md)
# shellcheck disable=SC2086 # names without blanks
awk -v tree="$tree" -v folder="$dir/blocks" -f "$dir/blocks.awk" $documents >"$dir/wrong"
[ ! -s "$dir/wrong" ] || fail "$(cat "$dir/wrong")"
[ "$(find "$dir/blocks" -type f | wc -l)" -gt 20 ] || fail "only $(find "$dir/blocks" -type f | wc -l) blocks of commands were found"
for b in "$dir/blocks"/*; do
	case $(sed -n 2p "$b") in
	'' | network* | GPU* | cluster* | PyTorch* | time*) ;;
	*) fail "$(sed -n 1p "$b"): not run: '$(sed -n 2p "$b")' is no reason that is known" ;;
	esac
done
done_

room() { # makes the folder in which a block is run
	rm -rf "$dir/room"
	mkdir "$dir/room"
	cd "$dir/room" || exit 1
	for f in tests docs plans scripts Makefile VERSION core cli cuda; do ln -s "$tree/$f" $f; done
	for m in FLUX.2-klein-4B DIR CKPT; do ln -s "$tree/tests/models/klein-tiny" $m; done
	ln -s "$tree/tests/models/dev-tiny" FLUX.2-dev
	for f in prompts.txt FILE ten; do producer >$f; done
	for f in my-plan.json A B; do cp "$tree/plans/flux2.json" $f; done
	cp "$dir/stages.safetensors" .
	grep -q -- '-o fox.png' "$dir/commands" || cp "$dir/drawn.png" fox.png # what a block draws is not there before
	cp "$dir/drawn.png" PNG
	cp "$dir/drawn.png" den.jpg # what a file is, its content says
	for f in style detail; do cp "$tree/tests/models/loras/peft.safetensors" $f.safetensors; done
}
PATH=$dir/bin:$PATH
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
XDG_CONFIG_HOME=$dir/config
mkdir -p "$dir/config/difftp"
printf 'height = 64\nwidth = 64\nsteps = 2\n' >"$dir/config/difftp/config"
export PATH OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe XDG_CONFIG_HOME

"$DIFFTP" --model tests/models/klein-tiny --prompt x --height 64 --width 64 --steps 1 -q -o "$dir/drawn.png" \
	--dump-stages "$dir/stages.safetensors" || exit 1
: >"$dir/left_out"
for b in "$dir/blocks"/*; do
	where=$(sed -n 1p "$b") mark=$(sed -n 2p "$b")
	if [ -n "$mark" ]; then
		sed -e 1,2d -e ':a' -e '/\\$/{N;s/ *\\\n */ /;ta' -e '}' "$b" | sed "s|^|note docs_not_run $where ($mark): |" >>"$dir/left_out"
		continue
	fi
	case_ "docs_$(echo "$where" | tr -c 'a-zA-Z0-9\n' _)"
	# A number for N, the last of alternatives, nothing for what may be left out.
	sed '1,2d; s/ \[[^]]*\]//g; s/\.\.\.//g; s/[A-Z][A-Z]*|\([A-Z]\)/\1/g; s/-degree N\( \|$\)/-degree 2\1/' "$b" >"$dir/commands"
	[ -s "$dir/commands" ] || fail "no command is left"
	(room && timeout 300 sh -eux "$dir/commands") >"$dir/out" 2>"$dir/err" </dev/null || fail "exit code $?: $(tail -n 20 "$dir/err")"
	done_
done
cat "$dir/left_out"
echo "note docs_not_run: $(wc -l <"$dir/left_out") commands"
finish
