#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Models by name in the cache of Hugging Face's tools, laid out as these lay it out; what is said when one is not there.
. tests/lib.sh
id=black-forest-labs/FLUX.2-klein-4B
commit=0123456789abcdef0123456789abcdef01234567
cache="$dir/cache"
repository="$cache/models--black-forest-labs--FLUX.2-klein-4B"
snapshot="$repository/snapshots/$commit"
mkdir -p "$repository/refs/refs" "$repository/blobs" "$snapshot"
printf %s $commit >"$repository/refs/main"
printf '%s\n' $commit >"$repository/refs/refs/pr"
mkdir -p "$cache/models--someone--FLUX.2-klein-9B/snapshots" "$cache/datasets--a--b" "$cache/models--odd"
# Every file is a link into blobs/.
(cd tests/models/klein-tiny && find . -type f) | while read -r f; do
	mkdir -p "$snapshot/$(dirname "$f")"
	blob=$(printf %s "$f" | cksum | tr ' ' -)
	cp "tests/models/klein-tiny/$f" "$repository/blobs/$blob"
	ln -s "$repository/blobs/$blob" "$snapshot/$f"
done
HF_HUB_CACHE=$cache
export HF_HUB_CACHE
plan() { # NAME ARGUMENT...: finds the model
	what=$1
	shift
	expect "$what" 0 "Flux2KleinPipeline" '^$' plan --model "$@"
}

plan hub_by_name $id
plan hub_by_branch $id@main
plan hub_by_commit $id@$commit
plan hub_by_deep_reference $id@refs/pr

case_ hub_draws_the_same_on_ranks
draw() { # MODEL OUTPUT
	"$DIFFTP" --model "$1" --prompt "a red fox" --tp-degree 2 --height 64 --width 64 --steps 1 --seed 1 --max-sequence-length 32 --no-metadata \
		-q -o "$2" >"$dir/out" 2>&1 </dev/null || fail "exit code $?: $(cat "$dir/out")"
}
draw $id "$dir/a.png"
draw tests/models/klein-tiny "$dir/b.png"
cmp -s "$dir/a.png" "$dir/b.png" || fail "not the same picture"
done_

case_ hub_the_places
for place in "HF_HUB_CACHE=$cache" "HUGGINGFACE_HUB_CACHE=$cache" "HF_HOME=$dir/home" "XDG_CACHE_HOME=$dir/xdg" "HOME=$dir/user"; do
	path=${place#*=}
	case $place in
	HF_HOME*) path=$path/hub ;;
	XDG*) path=$path/huggingface/hub ;;
	HOME*) path=$path/.cache/huggingface/hub ;;
	esac
	mkdir -p "$(dirname "$path")"
	[ "$path" = "$cache" ] || ln -s "$cache" "$path"
	env -u HF_HUB_CACHE -u HUGGINGFACE_HUB_CACHE -u HF_HOME -u XDG_CACHE_HOME "$place" "$DIFFTP" plan --model $id >/dev/null 2>"$dir/err" ||
		fail "$place: $(cat "$dir/err")"
done
# The first that is set counts, whether it holds the model or not.
HF_HUB_CACHE=$dir/empty HF_HOME=$dir/home "$DIFFTP" plan --model $id >/dev/null 2>&1 && fail "HF_HOME counts before HF_HUB_CACHE"
HOME=$dir HF_HUB_CACHE='~/cache' "$DIFFTP" plan --model $id >/dev/null 2>&1 || fail "a home folder is not understood"
done_

case_ hub_a_folder_of_that_name_counts_first
mkdir -p "$dir/work/black-forest-labs/FLUX.2-klein-4B"
program=$(realpath "$DIFFTP")
(cd "$dir/work" && "$program" plan --model $id) 2>"$dir/err" && fail "an empty folder was taken for a model"
grep -q "'$id' has no model_index.json" "$dir/err" || fail "$(cat "$dir/err")"
done_

# ---- what is not there
refuse hub_absent "model 'someone/else' is no folder, and not in the cache of Hugging Face \('$cache'\); difftp downloads nothing: 'hf download someone/else' would fetch it$" plan --model someone/else
refuse hub_absent_revision "model 'a/b' is .* 'hf download a/b --revision v1' would fetch it" plan --model a/b@v1
refuse hub_slip "model 'black-forest-lab/FLUX.2-klein-4b' is .* would fetch it; did you mean '$id', which is in the cache\?" plan --model black-forest-lab/FLUX.2-klein-4b
refuse hub_other_organisation ".* did you mean '$id', which is in the cache\?" plan --model me/FLUX.2-klein-4B
refuse hub_name_alone "model folder 'FLUX.2-klein-4B' does not exist; did you mean '$id', which is in the cache\?" plan --model FLUX.2-klein-4B
refuse hub_unknown_revision "'$repository' has no revision 'v2' of model '$id', but .*'main'.* and '$commit'; name one as '$id@REVISION', or 'hf download $id --revision v2' fetches it" plan --model $id@v2
refuse hub_nothing_of_it "'$cache/models--someone--FLUX.2-klein-9B' has no files of model 'someone/FLUX.2-klein-9B': its download did not get far; 'hf download someone/FLUX.2-klein-9B' goes on with it" plan --model someone/FLUX.2-klein-9B
refuse hub_out_of_the_cache "model folder 'a/b@../../x' does not exist" plan --model a/b@../../x

case_ hub_dangling_links_are_named
for f in model_index.json tokenizer/tokenizer.json tokenizer/tokenizer_config.json vae/diffusion_pytorch_model.safetensors vae/config.json; do
	blob=$(readlink "$snapshot/$f")
	mv "$blob" "$dir/blob"
	"$DIFFTP" --model $id --prompt x -o "$dir/x.png" >/dev/null 2>"$dir/err" && fail "$f: accepted"
	grep -q "^difftp: cannot open '$snapshot/$f': it is a link to '$blob', which is not there" "$dir/err" || fail "$f: $(cat "$dir/err")"
	mv "$dir/blob" "$blob"
done
done_
finish
