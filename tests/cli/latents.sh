#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Latents in files: decode draws what the run itself would have drawn; noise that is given; what is refused.
. tests/lib.sh
klein=tests/models/klein-tiny dev=tests/models/dev-tiny
short="--steps 1 --max-sequence-length 512 --seed 7"

# shellcheck disable=SC2086 # lists of words
{
	for kind in "klein $klein bf16" "klein $klein fp32" "dev $dev bf16" "dev $dev fp32"; do
		set -- $kind
		case_ "decode_$1_$3_is_the_runs_picture"
		for type in png latent; do
			[ $type = png ] && out=$dir/$1-$3.png || out=$dir/$1-$3.safetensors
			"$DIFFTP" --model $2 --prompt fox --height 96 --width 64 $short --dtype $3 --output-type $type --no-metadata -o "$out" -q ||
				fail "exit code $? of the run"
		done
		"$DIFFTP" decode "$dir/$1-$3.safetensors" --model $2 --no-metadata --force -o "$dir/decoded.png" -q 2>"$dir/err" || fail "exit code $?: $(cat "$dir/err")"
		cmp "$dir/$1-$3.png" "$dir/decoded.png" >/dev/null || fail "another picture"
		[ ! -s "$dir/err" ] || fail "--quiet says: $(cat "$dir/err")"
		done_
	done
	k=$dir/klein-bf16.safetensors d=$dir/dev-bf16.safetensors

	expect decode_says_what_it_wrote 0 '^$' "^wrote $dir/x\.png \(64x96\)$" decode "$k" --model $klein --force -o "$dir/x.png"
	expect decode_in_another_dtype 0 '^$' 'wrote' decode "$k" --model $klein --dtype fp32 --force -o "$dir/x.png"

	mkdir "$dir/vae_only"
	cp -r $klein/vae "$dir/vae_only/"
	expect decode_needs_the_vae_alone 0 '^$' 'wrote' decode "$k" --model "$dir/vae_only" --force -o "$dir/x.png"

	refuse decode_without_file "the file of the latents is missing: difftp decode FILE --model DIR$" decode --model $klein
	refuse decode_without_model "option '--model' is missing: the folder of the pipeline, of which the VAE is needed$" decode "$k"
	refuse decode_without_vae "'tests/cli' has no folder 'vae'; --model takes a pipeline folder in the diffusers layout$" \
		decode "$k" --model tests/cli
	refuse decode_absent_file "cannot open '$dir/none': No such file or directory$" decode "$dir/none" --model $klein
	refuse decode_folder "'tests' is a folder" decode tests --model $klein
	refuse decode_picture "'tests/images/420.jpg' is no safetensors file: it claims a header of [0-9]+ bytes, at most 100000000 are allowed$" decode tests/images/420.jpg --model $klein
	case_ decode_leaves_the_picture_that_is_there
	mkdir "$dir/twice"
	file=$(realpath "$k") folder=$(realpath $klein) program=$(realpath "$DIFFTP")
	for i in 1 2; do
		(cd "$dir/twice" && "$program" decode "$file" --model "$folder" -q 2>"$dir/err") || fail "exit code $?: $(cat "$dir/err")"
		[ $i -eq 1 ] && cp "$dir/twice/out.png" "$dir/first.png" && echo other >"$dir/twice/out.png"
	done
	[ "$(cat "$dir/twice/out.png")" = other ] || fail "out.png was replaced"
	cmp "$dir/twice/out-2.png" "$dir/first.png" || fail "in the folder: $(ls "$dir/twice")"
	done_
	refuse decode_pattern "output '.seed..png': decode writes one picture, of which a pattern knows nothing$" \
		decode "$k" --model $klein -o '{seed}.png'
	refuse decode_as_jpeg "'$dir/x.jpg': only PNG files are written, not '.jpg'; name it '.png'$" \
		decode "$k" --model $klein -o "$dir/x.jpg"
	refuse decode_another_size "'$k' holds the latents of 64x96 pixels, not of 64x80 pixels$" decode "$k" --model $klein --height 80
	refuse decode_packed_another_size "'$d' holds 24 packed tokens of 16x16 pixels, not of 64x80 pixels$" \
		decode "$d" --model $dev --height 80

	cp "$d" "$dir/bare.safetensors"
	"$TESTBIN/tool_damage" tensor "$dir/bare.safetensors" __metadata__ height - || echo "tool_damage failed"
	refuse decode_packed_without_metadata "'$dir/bare.safetensors' holds 24 packed tokens and its metadata name no height and width: give --height and --width, which are 16 times the tokens of a column and of a row$" \
		decode "$dir/bare.safetensors" --model $dev
	expect decode_packed_with_a_size 0 '^$' '\(64x96\)$' decode "$dir/bare.safetensors" --model $dev --height 96 --width 64 --no-metadata --force \
		-o "$dir/x.png"
	cmp "$dir/x.png" "$dir/dev-bf16.png" >/dev/null || echo "not ok decode_packed_with_a_size_draws_the_same"

	cp "$k" "$dir/other.safetensors"
	"$TESTBIN/tool_damage" tensor "$dir/other.safetensors" latents shape "[1, 16, 24, 8]" || echo "tool_damage failed"
	refuse decode_other_channels "'$dir/other.safetensors' has the shape \[1, 16, 24, 8\]; the VAE takes \[1, 32, rows, columns\], or packed \[1, tokens, 128\]$" \
		decode "$dir/other.safetensors" --model $klein
	"$TESTBIN/tool_damage" tensor "$dir/other.safetensors" latents shape "[2, 32, 6, 8]" || echo "tool_damage failed"
	refuse decode_two_pictures "'$dir/other.safetensors': tensor 'latents' has the shape \[2, 32, 6, 8\], expected the latents of one picture: \[1, channels, rows, columns\] or \[1, tokens, channels\]$" \
		decode "$dir/other.safetensors" --model $klein
	"$TESTBIN/tool_damage" tensor "$dir/other.safetensors" latents dtype '"I16"' || echo "tool_damage failed"
	refuse decode_other_dtype "'$dir/other.safetensors': tensor 'latents' is I16, latents are F32, BF16 or F16$" \
		decode "$dir/other.safetensors" --model $klein
	refuse decode_no_latents "'$klein/vae/diffusion_pytorch_model.safetensors' has [0-9]+ tensors, none of them called 'latents'$" \
		decode $klein/vae/diffusion_pytorch_model.safetensors --model $klein
	cp "$k" "$dir/nan.safetensors"
	printf '\300\177' | dd of="$dir/nan.safetensors" bs=1 seek=$(($(stat -c %s "$k") - 2)) conv=notrunc 2>/dev/null
	refuse decode_nan "'$dir/nan.safetensors': value 3071 of tensor 'latents' is not finite$" decode "$dir/nan.safetensors" --model $klein

	# ---- noise that is given: the shape [1, 128, h, w], made of the same bytes
	cp "$k" "$dir/noise.safetensors"
	"$TESTBIN/tool_damage" tensor "$dir/noise.safetensors" latents shape "[1, 128, 6, 4]" || echo "tool_damage failed"
	run="--model $klein --prompt fox --steps 1 --max-sequence-length 32 --latents $dir/noise.safetensors"
	expect noise_gives_the_size 0 '^$' "^wrote $dir/x\.png \(64x96, given noise\)$" $run --force -o "$dir/x.png"
	expect noise_and_seed 0 '^$' "^warning: --seed has no effect: the noise is that of --latents$" $run --seed 1 -o "$dir/y.png"
	case_ noise_is_independent_of_the_seed
	cmp "$dir/x.png" "$dir/y.png" >/dev/null || fail "the pictures differ"
	done_
	refuse noise_of_another_size "'$dir/noise.safetensors' is noise for a picture of 64x96, not 64x64; its size need not be given$" \
		$run --height 64
	refuse noise_for_several "'$dir/noise.safetensors' is noise for one picture, 2 are to be drawn$" $run -n 2
	refuse noise_for_a_batch "--latents is the noise of one picture: it cannot be given with --prompts$" \
		--model $klein --prompts tests/lib.sh --latents "$dir/noise.safetensors"
	refuse noise_of_another_shape "'$k' has the shape \[1, 32, 12, 8\]; the noise that the model takes is \[1, 128, rows, columns\]$" \
		--model $klein --prompt fox --latents "$k"
}
finish
