# SPDX-License-Identifier: Apache-2.0
# make [V=1] [SANITIZE=address,undefined|thread] [EMULATE=1] [CUDA_ARCHS=native]; make test [ONLY=PATTERN]; make test-long; make fuzz; make man; make install|dist|deb
CC ?= gcc
CXX ?= g++
PREFIX ?= /usr/local
SANITIZE ?=
EMULATE ?=
comma := ,
# Objects are in build/release or build/san-address-undefined, ...; those of CUDA, libraries and programs in build/emulated,
# build/emulated-shadow, ... where they differ.
PLAIN := $(if $(SANITIZE),san-$(subst $(comma),-,$(SANITIZE)),release)
VARIANT := $(if $(EMULATE),emulated$(patsubst %,-%,$(filter-out 1,$(EMULATE)))$(patsubst %,-%,$(filter-out release,$(PLAIN))),$(PLAIN))
O := build/$(PLAIN)
B := build/$(VARIANT)

PKGS := libcjson libpcre2-8 libutf8proc libpng libjpeg libwebp libwebpdemux nettle
CPPFLAGS += -D_GNU_SOURCE -Icore -Icli $(shell pkg-config --cflags $(PKGS))
WARN := -Wall -Wextra -Werror -Wshadow -Wvla
SAN := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer -DDTP_SANITIZE)
CFLAGS ?= -O2 -g
ALL_CFLAGS := -std=c11 $(WARN) -Wstrict-prototypes -Wmissing-prototypes -fopenmp -pthread $(SAN)
ALL_CXXFLAGS := -std=c++17 $(WARN) -pthread $(SAN)
LDLIBS := $(shell pkg-config --libs $(PKGS)) -ldnnl -lgloo -lm
LDFLAGS += -fopenmp -pthread $(SAN) -Wl,--as-needed

# Commands are shown by what they make; V=1 shows them whole.
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-4s %s\n' $(1) $@)

all: difftp
CORE := $(wildcard core/*.c core/cpu/*.c) $(wildcard core/*.cc)
CLI := $(filter-out cli/main.c,$(wildcard cli/*.c))
PLANS := $(wildcard plans/*.json)
include cuda/build.mk
OBJ := $(patsubst %,$(O)/%.o,$(CORE) $(CLI)) $(patsubst %,$(B)/%.o,$(CUDA)) $(O)/plans.o
PLAIN_TESTS := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/test_*.c tests/tool_*.c tests/bench_*.c))
TESTS := $(PLAIN_TESTS) $(GPU_TESTS)
VERSION := $(shell cat VERSION)

# The program of the current variant; the release one is also ./difftp.
difftp: $(B)/difftp
	@if [ "$(VARIANT)" = release ]; then ln -f $< $@ 2>/dev/null || cp -f $< $@; fi
$(B)/difftp: $(O)/cli/main.c.o $(B)/libdtp.a
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CXX) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# A program takes from it what it uses.  The list of objects changes when a source goes, or with NVCC=.
$(B)/libdtp.a: $(OBJ) $(B)/objects
	$(call say,AR)
	$(Q)rm -f $@ && $(AR) qcs $@ $(OBJ)
$(B)/objects: always
	@mkdir -p $(@D) && { echo '$(OBJ)' | cmp -s - $@ || echo '$(OBJ)' > $@; }

$(O)/%.c.o: %.c
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(ALL_CFLAGS) -DDTP_VERSION='"$(VERSION)"' -MMD -MP -c -o $@ $<
$(O)/%.cc.o: %.cc
	@mkdir -p $(@D)
	$(call say,CXX)
	$(Q)$(CXX) $(CPPFLAGS) $(CFLAGS) $(ALL_CXXFLAGS) -MMD -MP -c -o $@ $<
# plans/*.json as C strings.
$(O)/plans.c: $(PLANS) scripts/embed-plans.sh
	@mkdir -p $(@D)
	$(Q)sh scripts/embed-plans.sh $(PLANS) > $@.tmp && mv $@.tmp $@
$(O)/plans.o: $(O)/plans.c
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(ALL_CFLAGS) -c -o $@ $<

# Each by its own rule: were they patterns, make would take an object of another variant that exists for one that it has to make.
$(GPU_TESTS): $(B)/tests/emu/%: $(B)/tests/emu/%.c.o $(O)/tests/support.c.o $(B)/libdtp.a
	$(call say,LD)
	$(Q)$(CXX) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka
$(B)/tests/test_member: LDFLAGS += -Wl,--wrap=calloc
$(PLAIN_TESTS): $(B)/tests/%: $(O)/tests/%.c.o $(O)/tests/support.c.o $(B)/libdtp.a
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CXX) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

tests: $(TESTS)
test: $(B)/difftp tests difftp
	@DIFFTP=$(abspath $(B)/difftp) TESTBIN=$(abspath $(B)/tests) sh tests/run.sh quick $(ONLY)
test-long: $(B)/difftp tests difftp
	@DIFFTP=$(abspath $(B)/difftp) TESTBIN=$(abspath $(B)/tests) sh tests/run.sh long $(ONLY)

# The page is committed; the tests fail when it is stale.
man: $(B)/difftp
	$(B)/difftp man > docs/difftp.1

# Speed of a backend's operations at a model's shapes, beside the roofline: make bench-ops MODEL=DIR [ARGS="--threads 2 --only conv"]
bench-ops: $(B)/tests/bench_ops
	$< --model $(MODEL) $(ARGS)

# The parsers of foreign bytes under libFuzzer, with clang; make fuzz FUZZ_SECONDS=60 also runs each for as long.
FUZZ := build/fuzz
FUZZ_CFLAGS := -std=c11 -O1 -g -DDTP_VERSION='"$(VERSION)"' -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
FUZZED := $(wildcard core/*.c) $(patsubst %,cli/%.c,defaults exclude flags line naming options recall text values)
$(FUZZ)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,FUZZ)
	$(Q)clang $(CPPFLAGS) $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c -o $@ $<
$(FUZZ)/fuzzed.a: $(FUZZED:%.c=$(FUZZ)/%.o)
	$(Q)rm -f $@ && $(AR) qcs $@ $^
$(FUZZ)/fuzz_%: tests/fuzz/fuzz_%.c $(FUZZ)/fuzzed.a $(O)/plans.o
	$(call say,FUZZ)
	$(Q)clang $(CPPFLAGS) $(FUZZ_CFLAGS) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)
fuzz: $(patsubst tests/fuzz/%.c,$(FUZZ)/%,$(wildcard tests/fuzz/fuzz_*.c))
	$(if $(FUZZ_SECONDS),sh tests/fuzz/run.sh $(FUZZ_SECONDS) $^)

include scripts/package/rules.mk
clean:
	rm -rf build difftp

.PHONY: all always tests test test-long man bench-ops fuzz clean
.SECONDARY:
-include $(shell find build -name '*.d' 2>/dev/null)
