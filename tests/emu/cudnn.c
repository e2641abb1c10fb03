/* SPDX-License-Identifier: Apache-2.0 */
/* Stands before cuDNN.  Descriptors, heuristics and plans are the real library's, made for a GPU that is described and not there;
 * running a plan computes what its text says, in plain loops.  See cudnn_work.h. */
#include "cudnn_work.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "library.h"
#include "properties.h"
#include "runtime.h"

struct cudnnContext {
	cudaStream_t stream;
	int device;
	struct cudnnContext *next;
};

static struct cudnnContext *handles;

/* What variant packs were given: the library does not tell. */
enum { MOST = 16 };
static struct pack {
	cudnnBackendDescriptor_t d;
	int64_t ids[MOST], nids, npointers;
	void *pointers[MOST];
	struct pack *next;
} *packs;

static void *real(const char *name)
{
	char why[512];
	void *f = emu_real_symbol(DTP_LIB_CUDNN, name, why, sizeof why);

	if (!f)
		emu_misuse("%s", why);
	return f;
}
#define REAL(name) ((__typeof__(name) *)real(#name))

/* A call is counted, and fails where it is to. */
#define BEGIN(name)                                                                                                                  \
	do {                                                                                                                         \
		int code_ = CUDNN_STATUS_EXECUTION_FAILED;                                                                           \
		if (emu_call(#name, &code_))                                                                                         \
			return (cudnnStatus_t)code_;                                                                                 \
	} while (0)

#define HANDLE "cuDNN handles"
#define DESCRIPTOR "cuDNN descriptors"

static void check(cudnnHandle_t handle, const char *call)
{
	for (struct cudnnContext *h = handles; h; h = h->next)
		if (h == handle)
			return;
	emu_misuse("%s: %p is no handle of cuDNN", call, (void *)handle);
}

static int arch(int device)
{
	struct cudaDeviceProp p;

	if (!emu_device_properties(device, &p))
		emu_misuse("cuDNN: there is no device %d", device);
	return p.major * 10 + p.minor;
}

/* ---- the calls that need a GPU */

static cudnnStatus_t create(cudnnHandle_t *out)
{
	struct cudnnContext *h;

	BEGIN(cudnnCreate);
	h = calloc(1, sizeof *h);
	if (!h)
		return CUDNN_STATUS_NOT_INITIALIZED;
	h->device = emu_device();
	h->next = handles;
	handles = h;
	emu_hold(HANDLE, 1);
	*out = h;
	return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy(cudnnHandle_t handle)
{
	struct cudnnContext **at = &handles;

	check(handle, "cudnnDestroy");
	while (*at != handle)
		at = &(*at)->next;
	*at = handle->next;
	free(handle);
	emu_hold(HANDLE, -1);
	BEGIN(cudnnDestroy);
	return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream)
{
	check(handle, "cudnnSetStream");
	BEGIN(cudnnSetStream);
	handle->stream = stream;
	return CUDNN_STATUS_SUCCESS;
}

/* The plan's text, malloc'd. */
static char *text_of(cudnnBackendDescriptor_t plan, size_t *len)
{
	int64_t n = 0;
	char *text;

	if (REAL(cudnnBackendGetAttribute)(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 0, &n, NULL))
		emu_misuse("cudnnBackendExecute: what it was given is no finished plan");
	text = calloc(1, (size_t)n + 1);
	if (!text || REAL(cudnnBackendGetAttribute)(plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n, &n, text))
		emu_misuse("cudnnBackendExecute: the plan has no text");
	*len = strlen(text);
	return text;
}

static int64_t workspace_of(cudnnBackendDescriptor_t plan)
{
	int64_t n = 0, size = 0;

	if (REAL(cudnnBackendGetAttribute)(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &n, &size))
		emu_misuse("cudnnBackendExecute: the plan has no workspace's size");
	return size;
}

static struct pack **find_pack(cudnnBackendDescriptor_t d)
{
	struct pack **p = &packs;

	while (*p && (*p)->d != d)
		p = &(*p)->next;
	return p;
}

static cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t variants)
{
	struct emu_dnn_job job = {.workspace_size = 0};
	const struct pack *pack = *find_pack(variants);
	int64_t n;
	size_t len;
	char *text;

	check(handle, "cudnnBackendExecute");
	BEGIN(cudnnBackendExecute);
	/* It tells the workspace only when it is finished. */
	if (!pack || pack->nids != pack->npointers || REAL(cudnnBackendGetAttribute)(variants, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
	    CUDNN_TYPE_VOID_PTR, 1, &n, &job.workspace))
		emu_misuse("cudnnBackendExecute: what it was given is no finished variant pack");
	text = text_of(plan, &len);
	emu_dnn_read(text, len, arch(handle->device), pack->ids, pack->pointers, (int)pack->nids, &job);
	free(text);
	job.workspace_size = (size_t)workspace_of(plan);
	if (job.workspace_size) {
		emu_device_range(job.workspace, job.workspace_size, "cudnnBackendExecute: workspace");
		if ((uintptr_t)job.workspace % 256)
			emu_misuse("cudnnBackendExecute: workspace %p is no multiple of 256", (void *)job.workspace);
	}
	return emu_enqueue(handle->stream, emu_dnn_compute, &job, sizeof job, "cudnnBackendExecute") ? CUDNN_STATUS_EXECUTION_FAILED
												      : CUDNN_STATUS_SUCCESS;
}

/* ---- the others */

static cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *d)
{
	cudnnStatus_t s;

	BEGIN(cudnnBackendCreateDescriptor);
	s = REAL(cudnnBackendCreateDescriptor)(type, d);
	if (s)
		return s;
	emu_hold(DESCRIPTOR, 1);
	if (type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
		struct pack *p = calloc(1, sizeof *p);
		if (!p)
			emu_misuse("out of memory");
		p->d = *d;
		p->next = packs;
		packs = p;
	}
	return s;
}

/* DIFFTP_EMU_CUDNN=VERSION: another one. */
static size_t version(void)
{
	return (size_t)emu_setting("DIFFTP_EMU_CUDNN", REAL(cudnnGetVersion)());
}

static cudnnStatus_t destroy_descriptor(cudnnBackendDescriptor_t d)
{
	struct pack **at = find_pack(d), *pack = *at;

	if (pack) {
		*at = pack->next;
		free(pack);
	}
	cudnnStatus_t s = REAL(cudnnBackendDestroyDescriptor)(d); /* even where it is to fail: the caller has no second chance */

	emu_hold(DESCRIPTOR, -1);
	BEGIN(cudnnBackendDestroyDescriptor);
	return s;
}

static void remember(struct pack *p, cudnnBackendAttributeName_t name, int64_t n, const void *values)
{
	if (!p || n > MOST)
		emu_misuse("cudnnBackendSetAttribute: %lld tensors of a variant pack", (long long)n);
	if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) {
		memcpy(p->ids, values, (size_t)n * sizeof *p->ids);
		p->nids = n;
	} else {
		memcpy(p->pointers, values, (size_t)n * sizeof *p->pointers);
		p->npointers = n;
	}
}

static cudnnStatus_t set_attribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
				   int64_t n, const void *values)
{
	char text[2048];

	BEGIN(cudnnBackendSetAttribute);
	if (name == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS || name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)
		remember(*find_pack(d), name, n, values);
	if (name != CUDNN_ATTR_DEVICEPROP_HANDLE)
		return REAL(cudnnBackendSetAttribute)(d, name, type, n, values);
	cudnnHandle_t handle = *(const cudnnHandle_t *)values;
	check(handle, "cudnnBackendSetAttribute");
	if (!emu_properties(arch(handle->device), handle->device, text, sizeof text))
		emu_misuse("cuDNN: nothing is known of compute capability %d", arch(handle->device));
	return REAL(cudnnBackendSetAttribute)(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, (int64_t)strlen(text), text);
}

static cudnnStatus_t get_attribute(cudnnBackendDescriptor_t const d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
				   int64_t n, int64_t *there, void *values)
{
	BEGIN(cudnnBackendGetAttribute);
	return REAL(cudnnBackendGetAttribute)(d, name, type, n, there, values);
}

static cudnnStatus_t finalize(cudnnBackendDescriptor_t d)
{
	BEGIN(cudnnBackendFinalize);
	return REAL(cudnnBackendFinalize)(d);
}

void *emu_cudnn(const char *name, char *why, size_t size)
{
	static const struct { const char *name; void (*f)(void); } own[] = {
#define OWN(name, f) {#name, (void (*)(void))(f)}
		OWN(cudnnGetVersion, version), OWN(cudnnCreate, create), OWN(cudnnDestroy, destroy), OWN(cudnnSetStream, set_stream), OWN(cudnnBackendExecute, execute),
		OWN(cudnnBackendCreateDescriptor, create_descriptor), OWN(cudnnBackendDestroyDescriptor, destroy_descriptor),
		OWN(cudnnBackendSetAttribute, set_attribute), OWN(cudnnBackendGetAttribute, get_attribute),
		OWN(cudnnBackendFinalize, finalize),
#undef OWN
	};
	char compiler[32];
	void *p;

	/* cuDNN compiles attention only where it finds a driver; one is built beside the programs that are emulated. */
	if (!dlopen(EMU_LIBCUDA, RTLD_NOW | RTLD_LOCAL)) {
		snprintf(why, size, "%s", dlerror());
		return NULL;
	}
	/* It closes the compiler after each plan.  Then nobody could tell whose the memory is that this leaves: so that one stays. */
	snprintf(compiler, sizeof compiler, "libnvrtc.so.%d", CUDART_VERSION / 1000);
	dlopen(compiler, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
	for (size_t i = 0; i < sizeof own / sizeof *own; i++)
		if (!strcmp(own[i].name, name)) {
			memcpy(&p, &own[i].f, sizeof p);
			return p;
		}
	return emu_real_symbol(DTP_LIB_CUDNN, name, why, size);
}
