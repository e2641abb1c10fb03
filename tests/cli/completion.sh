#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Completions, asked of the shells themselves.
. tests/lib.sh
mkdir "$dir/bin" "$dir/fpath" "$dir/files"
ln -s "$(realpath "$DIFFTP")" "$dir/bin/difftp"
PATH=$dir/bin:$PATH
touch "$dir/files/latents.safetensors"
mkdir "$dir/files/model-folder"
for shell in bash zsh fish; do
	difftp completion $shell >"$dir/$shell" || exit 1
done
cp "$dir/zsh" "$dir/fpath/_difftp"
cd "$dir/files" || exit 1

# Each prints what LINE, which ends where the cursor stands, may be completed to, a word a line.
in_bash() {
	bash --norc -c '
		source "$1"
		COMP_WORDBREAKS=$'"' \\t\\n\"=:'"'
		# As readline splits a line: "=" is a word of its own.
		line=${2//=/ = }
		read -r -a COMP_WORDS <<<"$line"
		[[ $line == *" " ]] && COMP_WORDS+=("")
		COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
		compopt() { [[ $2 == dirnames ]] && dirs=yes || files=yes; }
		complete -p difftp | grep -q _difftp || echo unregistered
		_difftp
		[[ -z ${dirs-} ]] || compgen -d -- "${COMP_WORDS[COMP_CWORD]#=}"
		[[ -z ${files-} ]] || compgen -f -- "${COMP_WORDS[COMP_CWORD]#=}"
		printf "%s\n" "${COMPREPLY[@]}"' bash "$dir/bash" "$1"
}
in_fish() {
	HOME=$dir fish --no-config -c 'source $argv[1]; complete -C $argv[2]' "$dir/fish" "$1" | cut -f 1
}
# zsh completes in a terminal only: here its helpers tell what they are given, a specification a line.
in_zsh() {
	zsh -f -c '
		_arguments() { print -rl -- "$@" }
		_describe() { print -rl -- "${(@P)2}" }
		compdef() { registered=$1 }
		source "$1"
		[[ $registered == _difftp ]] || print unregistered
		words=(${(z)2})
		[[ $2 == *" " ]] && words+=("")
		CURRENT=$#words
		_difftp' zsh "$dir/zsh" "$1"
}
zsh_gives() { # LINE EXPRESSION...: with '!' in front none is to match
	line=$1
	shift
	in_zsh "$line" >"$dir/out" 2>&1 || fail "exit code $?"
	for wanted in "$@"; do
		case $wanted in
		!*) ! grep -qE -- "${wanted#!}" "$dir/out" || fail "'$line' gives '${wanted#!}'" ;;
		*) grep -qE -- "$wanted" "$dir/out" || fail "'$line' does not give '$wanted': $(cut -c1-80 "$dir/out" | head -n 20)" ;;
		esac
	done
}
offers() { # LINE WANTED...: a word with '!' in front is not to be offered
	line=$1
	shift
	for in in $shells; do
		"in_$in" "$line" >"$dir/out" 2>&1
		for word in "$@"; do
			case $word in
			!*) ! grep -qxF -- "${word#!}" "$dir/out" || fail "$in: '$line' offers '${word#!}'" ;;
			*) grep -qF -- "$word" "$dir/out" || fail "$in: '$line' does not offer '$word': $(tr '\n' ' ' <"$dir/out" | cut -c1-300)" ;;
			esac
		done
	done
}

shells='bash fish'
for shell in bash zsh fish; do
	command -v "$shell" >/dev/null && continue
	echo "skip completion_in_$shell: there is no $shell"
	shells=$(printf '%s' "$shells" | sed "s/$shell//")
done
case_ completion_of_commands
offers 'difftp pl' plan
offers 'difftp ' inspect doctor completion
done_
case_ completion_of_options
offers 'difftp --hei' --height
offers 'difftp plan --tfl' --tflops
offers 'difftp --tfl' '!--tflops'
offers 'difftp inspect --' --filter --check '!--seed'
done_
case_ completion_of_choices
offers 'difftp --dtype ' bf16 fp32 '!bfloat16'
offers 'difftp verify --progress ' auto json
offers 'difftp completion ' bash zsh fish
done_
case_ completion_of_files_and_folders
offers 'difftp inspect lat' latents.safetensors
offers 'difftp --model mod' model-folder
offers 'difftp --latents lat' latents.safetensors
offers 'difftp --model lat' '!latents.safetensors'
offers 'difftp --steps lat' '!latents.safetensors'
done_
case_ completion_behind_an_equals_sign
offers 'difftp --dtype=b' bf16
done_

if command -v zsh >/dev/null; then
	case_ completion_in_zsh
	zsh_gives 'difftp pl' '^plan:say what' '^doctor:.*machine\\: what' '!unregistered'
	zsh_gives 'difftp --' '^--height=\[height of' '^\(-m --model\)-m\+\[' '--model=\[.*:_files -/$' '^--dtype=.*:value:\( bf16 fp32\)$' '^\*--image=' '!--tflops'
	zsh_gives 'difftp plan --' '^--tflops=' '^--suggest\[' '^\*:file:_files$' '!--seed'
	zsh_gives 'difftp completion ' '^1:shell:\(bash zsh fish\)$'
	done_
fi

case_ completion_knows_every_option
for option in $(difftp --help | grep -oE '^  (-.|   ),? --[a-z-]*|^      --[a-z-]*' | grep -oE -- '--[a-z-]+'); do
	for shell in bash zsh fish; do
		grep -qE -- "(--|-l )${option#--}[ '=[}]" "$dir/$shell" || fail "$shell: no $option"
	done
done
done_
expect completion_of_no_shell 2 '^$' "^difftp: there are no completions for 'tcsh'; there are for bash, zsh and fish" completion tcsh
expect completion_without_a_shell 2 '^$' '^difftp: which shell is missing: ' completion
finish
