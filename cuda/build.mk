# SPDX-License-Identifier: Apache-2.0
# The CUDA backend, where nvcc is found: NVCC= builds without it.  CUDA_ARCHS: compute capabilities without the dot, machine code for
# each and PTX of the last; native: the GPU of this machine, a quick build.  EMULATE=1: the same sources for a processor,
# with tests/emu in place of NVIDIA's runtime and libraries; EMULATE=shadow also sees every access of a kernel.
# Sanitized programs are without CUDA unless emulated.
NVCC ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_ARCHS ?= 80 86 89 90 100 120

CUDA_CPPFLAGS := -isystem $(CUDA_HOME)/include
CUDA_SOURCES := $(filter-out cuda/absent.c,$(wildcard cuda/*.c cuda/*.cu))
ifneq ($(EMULATE),)
CUDA := $(filter-out cuda/library.c,$(CUDA_SOURCES)) $(filter-out tests/emu/test_% tests/emu/tool_%,$(wildcard tests/emu/*.c tests/emu/*.cc))
GPU_TESTS := $(patsubst tests/%.c,$(B)/tests/%,$(wildcard tests/emu/test_*.c tests/emu/tool_*.c))
# A driver that does nothing, for cuDNN; tests/emu/cudnn.c opens it.
LIBCUDA := $(B)/tests/emu/libcuda.so.1
$(LIBCUDA): tests/emu/libcuda.sh
	@mkdir -p $(@D)
	$(call say,EMU)
	$(Q)sh $< $(CUDA_HOME)/lib64/stubs/libcuda.so > $@.c && $(CC) -shared -fPIC -Wl,-soname,$(@F) -o $@ $@.c
$(B)/tests/emu/cudnn.c.o: $(LIBCUDA)
$(B)/tests/emu/cudnn.c.o: CPPFLAGS += -DEMU_LIBCUDA='"$(abspath $(LIBCUDA))"'
else ifneq ($(and $(NVCC),$(if $(SANITIZE),,yes)),)
CUDA := $(CUDA_SOURCES)
# Its runtime is part of the program; what the loader does not find itself is looked for beside the compiler.
LDLIBS += $(CUDA_HOME)/lib64/libcudart_static.a -ldl -lrt
LDFLAGS += -Wl,-rpath,$(CUDA_HOME)/lib64
# Of the emulator's tests those that ask nothing of it: to be run on a GPU.
GPU_TESTS := $(addprefix $(B)/tests/emu/,test_kernels test_cublaslt test_cudnn test_dnn tool_gpu)
$(B)/tests/emu/test_dnn: $(B)/tests/emu/properties.c.o
else
CUDA := $(wildcard cuda/absent.c)
endif

# What tests/cli/emulated.sh runs, or a machine with a GPU; and what both ask first.
emulated-tests gpu-tests: $(B)/difftp $(addprefix $(B)/tests/,test_golden bench_ops tool_json) $(GPU_TESTS)
which-nvcc:
	@echo $(NVCC)
.PHONY: emulated-tests gpu-tests which-nvcc

newest = $(lastword $(CUDA_ARCHS))
GENCODE = $(if $(filter native,$(CUDA_ARCHS)),-arch=native,$(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$a,code=sm_$a) \
	-gencode arch=compute_$(newest),code=compute_$(newest))
NVCCFLAGS ?= -O3 -lineinfo
ALL_NVCCFLAGS = -std=c++17 $(GENCODE) -t 2 -Werror all-warnings -Xcompiler -Wall,-Wextra,-Werror
# Kernels as plain C++: pointers to vectors of bf16 into arrays of it are what makes them fast, and what C++ forbids.
EMU_CXXFLAGS := -std=c++17 -O2 -g -Wall -Wextra -Werror -Wno-unknown-pragmas -fno-strict-aliasing -pthread -include tests/emu/device.h \
	$(if $(filter shadow,$(EMULATE)),-fsanitize=thread,$(SAN))

# The emulator tells from which place in cuda/X.c it is called (DIFFTP_EMU_SITES): that code has a section of its own, and two calls that do
# the same are not made one.  What may be used unset is for -O2 to say.  Calls of dnn_api.c count as those of who asks it for them.
$(B)/cuda/%.c.o: cuda/%.c
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(CUDA_CPPFLAGS) $(CFLAGS) $(if $(EMULATE),-Og -Wno-maybe-uninitialized) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
	$(if $(and $(EMULATE),$(filter-out cuda/dnn_api.c,$<)),$(Q)objcopy --rename-section .text=calls_of_cuda $@)
$(B)/tests/emu/%.c.o: tests/emu/%.c
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CPPFLAGS) $(if $(EMULATE),-DDTP_EMULATED) $(CUDA_CPPFLAGS) $(CFLAGS) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<
$(B)/tests/emu/%.cc.o: tests/emu/%.cc
	@mkdir -p $(@D)
	$(call say,CXX)
	$(Q)$(CXX) $(CPPFLAGS) $(CUDA_CPPFLAGS) $(CFLAGS) $(ALL_CXXFLAGS) -MMD -MP -c -o $@ $<
ifneq ($(EMULATE),)
$(B)/cuda/%.cu.o: cuda/%.cu
	@mkdir -p $(@D)
	$(call say,EMU)
	$(Q)$(CXX) -x c++ $(CPPFLAGS) $(CUDA_CPPFLAGS) $(EMU_CXXFLAGS) -MMD -MP -c -o $@ $<
else
$(B)/cuda/%.cu.o: cuda/%.cu
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(Q)$(NVCC) $(NVCCFLAGS) $(ALL_NVCCFLAGS) -Xptxas -v -ccbin $(CXX) -Icore -MMD -MP -MF $@.d -c -o $@ $< >$@.ptxas 2>&1 || \
		{ cat $@.ptxas >&2; exit 1; }
endif
