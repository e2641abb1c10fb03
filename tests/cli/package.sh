#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The scripts of a newcomer, and the examples of scripts/package: the smoke test, the workflow that calls it, the Slurm script under a stand-in for srun.
. tests/lib.sh
model=tests/models/klein-tiny

case_ quick_start_without_its_model
mkdir -p "$dir/tree/scripts"
cp scripts/quickstart.sh "$dir/tree/scripts"
sh "$dir/tree/scripts/quickstart.sh" >"$dir/out" 2>"$dir/err" && fail "it goes on"
[ "$(cat "$dir/err")" = "quickstart: tests/models/demo, the trained model, is not in $dir/tree: this is no complete clone of the repository" ] ||
	fail "it says: $(cat "$dir/err")"
done_

case_ packages_by_purpose
sh scripts/install-deps.sh --list build >"$dir/build"
sh scripts/install-deps.sh --list test long >"$dir/rest"
sh scripts/install-deps.sh --list >"$dir/all"
cat "$dir/build" "$dir/rest" | cmp -s - "$dir/all" || fail "the parts are not the whole"
[ -z "$(sort "$dir/all" | uniq -d)" ] || fail "named twice: $(sort "$dir/all" | uniq -d)"
sh scripts/install-deps.sh tests >"$dir/out" 2>"$dir/err"
rc=$?
[ $rc -eq 2 ] || fail "a slip is no error: exit code $rc"
grep -qx "install-deps: 'tests' is none of build, test, long, --list" "$dir/err" || fail "it says: $(cat "$dir/err")"
done_

case_ smoke_test_passes
sh scripts/package/smoke.sh "$DIFFTP" $model "$dir/smoke" >"$dir/out" 2>"$dir/err" || fail "$(cat "$dir/out" "$dir/err")"
[ "$(grep -c '^ok ' "$dir/out")" -eq 6 ] || fail "not 6 checks: $(cat "$dir/out")"
for n in 1 2; do
	[ -s "$dir/smoke/tp$n.png" ] || fail "tp$n.png is missing"
done
done_

# What a broken program does: it ends well and writes nothing; it draws on one rank only; it takes any model.
broken() { # NAME LINES-THAT-FAIL
	case_ "smoke_test_sees_$1"
	chmod +x "$dir/broken"
	sh scripts/package/smoke.sh "$dir/broken" $model "$dir/smoke" >"$dir/out" 2>"$dir/err" && fail "it passes"
	grep '^FAIL' "$dir/out" | sed 's/^FAIL //' | tr '\n' ';' >"$dir/failed"
	[ "$(cat "$dir/failed")" = "$2" ] || fail "what fails: $(cat "$dir/failed")"
	done_
}
printf '#!/bin/sh\nexit 0\n' >"$dir/broken"
broken a_program_that_does_nothing 'one rank draws;two ranks draw;what cannot be is refused;'
# shellcheck disable=SC2016 # the stand-in expands it
printf '#!/bin/sh\ncase "$*" in *"--tp-degree 2"*) exit 1 ;; esac\nexec %s "$@"\n' "$DIFFTP" >"$dir/broken"
broken a_second_rank_that_fails 'two ranks draw;two ranks compute what one does;'

case_ workflow_runs_what_is_there
sed -n 's/^ *- run: //p' scripts/package/ci-smoke.yml >"$dir/runs"
grep -q smoke.sh "$dir/runs" || fail "the smoke test is not run"
grep -oE '(scripts|tests)/[a-z./-]*' "$dir/runs" >"$dir/named"
while read -r word; do
	[ -e "$word" ] || fail "$word is not there"
done <"$dir/named"
done_

case_ slurm_script_draws
mkdir "$dir/bin" "$dir/job"
cat >"$dir/bin/srun" <<'END'
#!/bin/sh
ids=
for r in $(seq 0 $((SLURM_NTASKS - 1))); do
	SLURM_PROCID=$r SLURM_LOCALID=$r SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURM_STEP_NUM_NODES=1 "$@" &
	ids="$ids $!"
done
rc=0
for p in $ids; do wait "$p" || rc=$?; done
exit $rc
END
chmod +x "$dir/bin/srun"
ln -s "$DIFFTP" "$dir/bin/difftp"
script=$PWD/scripts/package/difftp.sbatch tree=$PWD
# A full picture of 1024x1024 is what the script asks for; the model is the smallest there is.
(cd "$dir/job" && PATH=$dir/bin:$PATH SLURM_JOB_ID=$$ SLURM_NTASKS=2 SLURM_JOB_NODELIST=localhost \
	sh "$script" "$tree/$model" 'a red fox') >"$dir/out" 2>"$dir/err" </dev/null || fail "exit code $?: $(cat "$dir/err")"
[ "$(ls -A "$dir/job")" = "difftp-$$.png" ] || fail "files: $(ls -A "$dir/job")"
done_
finish
