/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor.h"

#include "backend.h"
#include "device.h"
#include "gpu.h"
#include "text.h"
#include "units.h"
#include "utf8.h"

#include <stdlib.h>
#include <string.h>

#define NCCL_LEAST 21800  /* the first with all that is called */

struct gpu {
	void *handle;
	char name[96];
	struct dtp_nvml_memory memory;
	int major, minor, mode;
	int ecc, pending; /* 0, 1; -1: it has none */
	unsigned long long errors;
};
struct gpus {
	struct dtp_nvml nvml;
	struct gpu gpu[DTP_MAX_GPUS];
	int n;
};

static const char *nvml_error(const struct dtp_nvml *t, int rc)
{
	return t->error ? t->error(rc) : "no text for it";
}

/* False when there is nothing to look at; *said: why has been told. */
static bool open_gpus(struct gpus *g, struct dtp_findings *f, bool tell)
{
	char why[512];
	unsigned n = 0;

	if (!dtp_nvml_open(&g->nvml, why, sizeof why)) {
		if (tell)
			dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "no NVIDIA driver here: ranks compute on CPUs (%s)", why);
		return false;
	}
	int rc = g->nvml.init ? g->nvml.init() : -1;
	if (rc && tell)
		dtp_found(f, DTP_VERDICT_WARNING, NULL,
			  rc == DTP_NVML_MISMATCH    ? "the driver was updated while its old kernel module runs: restart the machine"
			  : rc == DTP_NVML_NO_DRIVER ? "load the kernel module (modprobe nvidia); in a container, start it with its GPUs"
						     : "nvidia-smi should say more",
			  "NVIDIA's library does not start: error %d (%s)", rc, nvml_error(&g->nvml, rc));
	if (rc)
		return false;
	if (!g->nvml.count || !g->nvml.device || (rc = g->nvml.count(&n)) || !n) {
		if (tell)
			dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "the NVIDIA driver sees no GPU: ranks compute on CPUs");
		return false;
	}
	for (unsigned i = 0; i < n && g->n < DTP_MAX_GPUS; i++)
		if (!g->nvml.device(i, &g->gpu[g->n].handle))
			g->n++;
		else if (tell)
			dtp_found(f, DTP_VERDICT_WARNING, NULL, "nvidia-smi should say more; it may have fallen off its bus",
				  "GPU %u does not answer", i);
	return g->n > 0;
}

/* What a function is missing for stays as it is set here. */
static void ask(const struct dtp_nvml *t, struct gpu *g)
{
	int rc = 0;

	snprintf(g->name, sizeof g->name, "a GPU without a name");
	g->mode = g->ecc = g->pending = -1;
	if (t->name && (rc = t->name(g->handle, g->name, sizeof g->name)))
		snprintf(g->name, sizeof g->name, "a GPU that has no name: error %d", rc);
	char *valid = dtp_utf8_repair(g->name, strlen(g->name)), copy[sizeof g->name];
	snprintf(g->name, sizeof g->name, "%s", valid ? dtp_clean(copy, sizeof copy, valid) : "?");
	free(valid);
	if (t->memory)
		t->memory(g->handle, &g->memory);
	if (t->capability)
		t->capability(g->handle, &g->major, &g->minor);
	if (t->compute_mode)
		t->compute_mode(g->handle, &g->mode);
	if (t->ecc_mode && t->ecc_mode(g->handle, &g->ecc, &g->pending))
		g->ecc = g->pending = -1;
	if (t->ecc_errors && g->ecc == 1 && t->ecc_errors(g->handle, 1, 0, &g->errors))
		g->errors = 0;
}

static const char *mode_name(int mode)
{
	static const char *const names[] = {"default", "exclusive thread", "prohibited", "exclusive process"};
	return mode >= 0 && mode < 4 ? names[mode] : "unknown";
}

static cJSON *gpu_json(const struct gpu *g, int index)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddNumberToObject(o, "index", index);
	cJSON_AddStringToObject(o, "name", g->name);
	cJSON_AddNumberToObject(o, "memory_bytes", (double)g->memory.total);
	cJSON_AddNumberToObject(o, "free_bytes", (double)g->memory.free);
	cJSON_AddNumberToObject(o, "compute_capability", g->major + g->minor / 10.0);
	cJSON_AddStringToObject(o, "compute_mode", mode_name(g->mode));
	cJSON_AddItemToObject(o, "ecc", g->ecc < 0 ? cJSON_CreateNull() : cJSON_CreateBool(g->ecc));
	cJSON_AddNumberToObject(o, "uncorrected_errors", (double)g->errors);
	return o;
}

static void tell_gpu(const struct gpu *g, int index, struct dtp_findings *f)
{
	char ecc[48] = "";

	if (g->ecc >= 0)
		snprintf(ecc, sizeof ecc, ", ECC %s", g->ecc ? "on" : "off");
	dtp_found(f, DTP_VERDICT_OK, gpu_json(g, index), NULL, "GPU %d: %s, %s of which %s are free, compute capability %d.%d, mode %s%s",
		  index, g->name, dtp_bytes_text(g->memory.total).s, dtp_bytes_text(g->memory.free).s, g->major, g->minor,
		  mode_name(g->mode), ecc);
	if (g->mode == DTP_NVML_PROHIBITED)
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "nvidia-smi -c DEFAULT, as root", "GPU %d lets nobody compute: its mode is prohibited",
			  index);
	if (g->errors)
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "its results cannot be trusted: reset it (nvidia-smi -r), or have it replaced",
			  "GPU %d had %llu memory errors that it could not correct", index, g->errors);
	if (g->ecc >= 0 && g->pending != g->ecc)
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "restart the machine, or reset the GPU (nvidia-smi -r)",
			  "GPU %d will have ECC %s from its next reset on", index, g->pending ? "on" : "off");
	if (g->memory.total && g->memory.free < g->memory.total / 10 * 9)
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "nvidia-smi lists the processes", "GPU %d: others use %s of its memory", index,
			  dtp_bytes_text(g->memory.total - g->memory.free).s);
	if (g->major && g->major < DTP_GPU_LEAST_MAJOR)
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "use a GPU of compute capability 8.0 or more (Ampere)",
			  "GPU %d has compute capability %d.%d, which computes no bf16", index, g->major, g->minor);
}

static void tell_mixed(const struct gpus *g, struct dtp_findings *f)
{
	int least = 0;

	for (int i = 1; i < g->n; i++)
		if (g->gpu[i].memory.total < g->gpu[least].memory.total)
			least = i;
	for (int i = 1; i < g->n; i++)
		if (strcmp(g->gpu[i].name, g->gpu[0].name) || g->gpu[i].memory.total != g->gpu[0].memory.total) {
			dtp_found(f, DTP_VERDICT_WARNING, NULL,
				  "choose equal ones with CUDA_VISIBLE_DEVICES, or plan for these: difftp plan --devices",
				  "the GPUs differ (GPU 0: %s, GPU %d: %s): all wait for the slowest, and each holds what fits into GPU %d (%s)",
				  g->gpu[0].name, i, g->gpu[i].name, least, dtp_bytes_text(g->gpu[least].memory.total).s);
			return;
		}
}

static void tell_driver(const struct dtp_nvml *t, struct dtp_findings *f)
{
	char version[96] = "of unknown version";
	int cuda = 0;

	if (t->driver)
		t->driver(version, sizeof version);
	if (t->cuda)
		t->cuda(&cuda);
	/* A driver runs all programs of its own major version. */
	int least = dtp_cuda_built().cuda / 1000 * 1000;
	if (cuda && cuda < least)
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "update the driver, or build difftp with an older CUDA",
			  "driver %s runs programs of CUDA %d.%d at most; this build needs %d.0", version, cuda / 1000, cuda % 1000 / 10,
			  least / 1000);
	else
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "driver %s, for programs up to CUDA %d.%d", version, cuda / 1000,
			  cuda % 1000 / 10);
}

void dtp_look_gpus(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	struct gpus *g = calloc(1, sizeof *g);
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");

	(void)args, (void)argv;
	if (!g || !open_gpus(g, f, true))
		return;
	tell_driver(&g->nvml, f);
	for (int i = 0; i < g->n; i++) {
		ask(&g->nvml, &g->gpu[i]);
		tell_gpu(&g->gpu[i], i, f);
	}
	tell_mixed(g, f);
	if (visible)
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "CUDA_VISIBLE_DEVICES is '%s': programs see these only", visible);
	struct dtp_cuda_built built = dtp_cuda_built();
	if (built.cuda)
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "this build computes on them, with CUDA %d.%d", built.cuda / 1000, built.cuda % 1000 / 10);
	else
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "this build computes on CPUs: the GPUs are not used");
}

/* ---- what connects them */

/* Links that are up; -1: it has none. */
static int nvlinks(const struct dtp_nvml *t, void *device)
{
	int n = -1, up;

	for (unsigned i = 0; t->link && i < DTP_NVML_LINKS; i++)
		if (!t->link(device, i, &up))
			n = (n < 0 ? 0 : n) + (up == 1);
	return n;
}

static bool reach(const struct dtp_nvml *t, void *a, void *b)
{
	int read = -1, write = -1;

	return t->p2p && !t->p2p(a, b, DTP_NVML_P2P_READ, &read) && !t->p2p(a, b, DTP_NVML_P2P_WRITE, &write) && !read && !write;
}

void dtp_look_gpu_links(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	struct gpus *g = calloc(1, sizeof *g);
	int pairs = 0, apart = 0, a = 0, b = 0, least = DTP_NVML_LINKS;

	(void)args, (void)argv;
	if (!g || !open_gpus(g, f, false)) {
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "no GPU answers: there is nothing to connect");
		return;
	}
	if (g->n == 1) {
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "one GPU: there is nothing to connect");
		return;
	}
	cJSON *data = cJSON_CreateObject(), *links = cJSON_AddArrayToObject(data, "nvlinks");
	cJSON *matrix = cJSON_AddArrayToObject(data, "peer_to_peer");
	for (int i = 0; i < g->n; i++) {
		cJSON *row = cJSON_CreateArray();
		int n = nvlinks(&g->nvml, g->gpu[i].handle);
		cJSON_AddItemToArray(links, cJSON_CreateNumber(n < 0 ? 0 : n));
		cJSON_AddItemToArray(matrix, row);
		least = n < least ? n : least;
		for (int k = 0; k < g->n; k++) {
			bool ok = i == k || reach(&g->nvml, g->gpu[i].handle, g->gpu[k].handle);
			cJSON_AddItemToArray(row, cJSON_CreateBool(ok));
			pairs += i < k;
			if (!ok && i < k && !apart++)
				a = i, b = k;
		}
	}
	if (apart)
		dtp_found(f, DTP_VERDICT_WARNING, data, "sums go through the host's memory; IOMMU or ACS in the firmware may forbid the direct way",
			  "%d of %d pairs of GPUs cannot reach each other directly (GPU %d and GPU %d first)", apart, pairs, a, b);
	else
		dtp_found(f, DTP_VERDICT_OK, data, NULL, "every GPU reaches every other directly");
	if (least > 0)
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "NVLink: at least %d links of each GPU are up", least);
	else
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "%s", least ? "no NVLink: GPUs are connected by PCI Express" :
			  "NVLink is there, but not every GPU has a link that is up");
}

/* ---- CUDA and its libraries */

void dtp_look_cuda(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	struct dtp_cuda t;
	const char *text = NULL;
	char why[512];
	int version = 0, n = 0;

	(void)args, (void)argv;
	if (!dtp_cuda_open(&t, why, sizeof why)) {
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "no CUDA driver here (%s)", why);
		return;
	}
	int rc = t.init ? t.init(0) : -1;
	if (rc && t.error)
		t.error(rc, &text);
	if (rc) {
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "nvidia-smi should say more; in a container, start it with its GPUs",
			  "the CUDA driver does not start: error %d (%s)", rc, text ? text : "no text for it");
		return;
	}
	if (t.version)
		t.version(&version);
	if (t.count)
		t.count(&n);
	dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "CUDA %d.%d starts and sees %d GPU%s", version / 1000, version % 1000 / 10, n,
		  n == 1 ? "" : "s");
	for (int i = 0; t.peer && i < n; i++)
		for (int k = 0, can; k < n; k++)
			if (i != k && !t.peer(&can, i, k) && !can) {
				dtp_found(f, DTP_VERDICT_WARNING, NULL, "sums go through the host's memory",
					  "CUDA gives GPU %d no access to the memory of GPU %d", i, k);
				return;
			}
}

/* As a run finds it before it loads anything. */
static void tell_library(const char *name, const struct dtp_cuda_needs *needs, struct dtp_findings *f)
{
	struct dtp_err err = DTP_ERR_INIT;

	if (!dtp_cuda_libraries(needs, &err)) {
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "%s can be loaded", name);
		return;
	}
	char *advice = strchr(err.message, '\n');
	if (advice)
		*advice++ = '\0';
	dtp_found(f, DTP_VERDICT_WARNING, NULL, advice ? advice : "install a newer one, or put its folder into LD_LIBRARY_PATH", "%s", err.message);
}

void dtp_look_gpu_libraries(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	const struct dtp_cuda_needs lt = {.products = true}, dnn = {.convolutions = true};
	struct dtp_cuda t;
	char why[512];

	(void)args, (void)argv;
	if (!dtp_cuda_built().cuda) {
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "this build computes on CPUs: it needs neither cuBLASLt nor cuDNN");
	} else if (!dtp_cuda_open(&t, why, sizeof why)) {
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "no CUDA driver here: neither cuBLASLt nor cuDNN is needed");
	} else {
		tell_library("cuBLASLt", &lt, f);
		tell_library("cuDNN", &dnn, f);
	}
}

void dtp_look_nccl(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	struct dtp_nccl t;
	char why[512], text[48], with[48];
	int version = 0;

	(void)args, (void)argv;
	if (!dtp_nccl_open(&t, why, sizeof why))
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "no NCCL here, which only ranks on GPUs use (%s)", why);
	else if (!t.version || t.version(&version))
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "reinstall NCCL", "libnccl.so.2 does not say its version");
	else if (!dtp_cuda_built().nccl)
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "NCCL %s can be loaded; this build has been compiled without it",
			  dtp_nccl_text(version, text, sizeof text));
	else if (version < NCCL_LEAST)
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "install a newer NCCL: several GPUs need it", "NCCL %s is loaded; 2.18 or later is needed",
			  dtp_nccl_text(version, text, sizeof text));
	else
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "NCCL %s can be loaded; this build was compiled with %s",
			  dtp_nccl_text(version, text, sizeof text), dtp_nccl_text(dtp_cuda_built().nccl, with, sizeof with));
}
