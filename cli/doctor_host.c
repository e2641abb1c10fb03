/* SPDX-License-Identifier: Apache-2.0 */
#include "doctor.h"

#include "backend.h"
#include "clock.h"
#include "file.h"
#include "host.h"
#include "inspect.h"
#include "units.h"

#include <errno.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

/* ---- processors */

/* "model name\t: ..." of /proc/cpuinfo; other processors than x86 have no such line. */
static void model_name(char *buf, size_t size)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	char line[256];

	snprintf(buf, size, "a processor without a name");
	while (f && fgets(line, sizeof line, f)) {
		char *colon = strncmp(line, "model name", 10) ? NULL : strstr(line, ": ");
		if (!colon)
			continue;
		colon[strcspn(colon, "\n")] = '\0';
		snprintf(buf, size, "%s", colon + 2);
		break;
	}
	if (f)
		fclose(f);
}

void dtp_look_processors(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	int usable = dtp_host_threads("");
	struct dtp_cpu_facts facts;
	cJSON *data = cJSON_CreateObject();
	char name[256];

	(void)args, (void)argv;
	model_name(name, sizeof name);
	dtp_cpu_facts(&facts);
	cJSON_AddStringToObject(data, "name", name);
	cJSON_AddNumberToObject(data, "online", (double)online);
	cJSON_AddNumberToObject(data, "usable", usable);
	cJSON_AddBoolToObject(data, "avx512", facts.avx512);
	cJSON_AddBoolToObject(data, "avx512_bf16", facts.avx512_bf16);
	cJSON_AddBoolToObject(data, "amx", facts.amx);
	dtp_found(f, DTP_VERDICT_OK, data, NULL, "%s: %d of %ld processors may be used", name, usable, online);
	dtp_found(f, facts.avx512 ? DTP_VERDICT_OK : DTP_VERDICT_WARNING, NULL,
		  facts.avx512 ? NULL : "use a processor with AVX-512, best with AMX; unset ONEDNN_MAX_CPU_ISA if it is set",
		  "AVX-512 %s, bf16 instructions %s, AMX %s: bf16 is multiplied %s, loops use %s", facts.avx512 ? "yes" : "no",
		  facts.avx512_bf16 ? "yes" : "no", facts.amx ? "yes" : "no", facts.bf16, facts.loops);
}

/* ---- memory */

#define LITTLE_MEMORY 2000000000u /* below, no model of the family fits */

void dtp_look_memory(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	struct dtp_host_memory m = dtp_host_memory("");
	uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	cJSON *data = cJSON_CreateObject();
	bool little = m.available < LITTLE_MEMORY;

	(void)args, (void)argv;
	if (m.available == UINT64_MAX) {
		cJSON_Delete(data);
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "mount /proc", "how much memory is available cannot be read");
		return;
	}
	cJSON_AddNumberToObject(data, "available_bytes", (double)m.available);
	cJSON_AddNumberToObject(data, "total_bytes", (double)total);
	cJSON_AddItemToObject(data, "cgroup_room_bytes",
			      m.cgroup == UINT64_MAX ? cJSON_CreateNull() : cJSON_CreateNumber((double)m.cgroup));
	dtp_found(f, little ? DTP_VERDICT_WARNING : DTP_VERDICT_OK, data,
		  little ? "end what else runs here; difftp plan says what a run takes" : NULL, "%s of %s are available",
		  dtp_bytes_text(m.available).s, dtp_bytes_text(total).s);
	if (m.cgroup == UINT64_MAX)
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "no control group limits the memory");
	else if (m.machine != UINT64_MAX && m.cgroup < m.machine)
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "the control group leaves %s, the machine has %s: difftp stays below both",
			  dtp_bytes_text(m.cgroup).s, dtp_bytes_text(m.machine).s);
	else
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "the control group leaves %s, which is more than the machine has",
			  dtp_bytes_text(m.cgroup).s);
}

#define LITTLE_SHARED 1000000000u

void dtp_look_shared_memory(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	struct statvfs v;

	(void)args, (void)argv;
	if (statvfs("/dev/shm", &v)) {
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "ranks on CPUs do not need it; NCCL does: mount a tmpfs there",
			  "there is no /dev/shm: %s", strerror(errno));
		return;
	}
	uint64_t size = (uint64_t)v.f_blocks * v.f_frsize, room = (uint64_t)v.f_bavail * v.f_frsize;
	dtp_found(f, room < LITTLE_SHARED ? DTP_VERDICT_WARNING : DTP_VERDICT_OK, NULL,
		  room < LITTLE_SHARED ? "ranks on CPUs do not need it; NCCL does: docker run --shm-size=2g, or --ipc=host" : NULL,
		  "/dev/shm has %s, of which %s are free", dtp_bytes_text(size).s, dtp_bytes_text(room).s);
}

/* ---- limits of this process */

/* What fewer of break: 3 descriptors per rank in the first process, some 20 of libraries, and one for each shard of a model. */
#define FEW_FILES 256

static const char *limit_text(rlim_t n, bool bytes, char buf[40])
{
	if (n == RLIM_INFINITY)
		return "unlimited";
	if (bytes)
		snprintf(buf, 40, "%s", dtp_bytes_text(n).s);
	else
		snprintf(buf, 40, "%" PRIu64, (uint64_t)n);
	return buf;
}

void dtp_look_limits(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	struct rlimit files, locked, space;
	char a[40], b[40];

	(void)args, (void)argv;
	if (getrlimit(RLIMIT_NOFILE, &files) || getrlimit(RLIMIT_MEMLOCK, &locked) || getrlimit(RLIMIT_AS, &space)) {
		dtp_found(f, DTP_VERDICT_WARNING, NULL, NULL, "the limits cannot be read: %s", strerror(errno));
		return;
	}
	bool few = files.rlim_cur < FEW_FILES;
	dtp_found(f, few ? DTP_VERDICT_WARNING : DTP_VERDICT_OK, NULL, few ? "ulimit -n 1024" : NULL, "open files: %s (at most %s)",
		  limit_text(files.rlim_cur, false, a), limit_text(files.rlim_max, false, b));
	dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "locked memory: %s (NCCL over InfiniBand wants it unlimited: ulimit -l unlimited)",
		  limit_text(locked.rlim_cur, true, a));
	if (space.rlim_cur != RLIM_INFINITY)
		dtp_found(f, DTP_VERDICT_WARNING, NULL, "ulimit -v unlimited; --max-memory limits what a rank takes",
			  "the address space is limited to %s: a rank may fail for want of memory that the machine has",
			  limit_text(space.rlim_cur, true, a));
}

/* ---- libraries */

static int add_library(struct dl_phdr_info *info, size_t size, void *list)
{
	char path[PATH_MAX];

	(void)size;
	/* The file behind the links has the version in its name. */
	if (info->dlpi_name && strstr(info->dlpi_name, ".so") && realpath(info->dlpi_name, path))
		cJSON_AddItemToArray(list, cJSON_CreateString(path));
	return 0;
}

void dtp_look_libraries(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	static const char *const named[] = {"libdnnl", "libgloo", "libcjson", "libpcre2", "libutf8proc", "libpng", "libnettle",
					    "libgomp"};
	cJSON *list = cJSON_CreateArray(), *item;
	const char *preload = getenv("LD_PRELOAD"), *path = getenv("LD_LIBRARY_PATH");
	struct dtp_cpu_facts facts;
	char text[1024] = "";
	struct utsname u;
	size_t n = 0;

	(void)args, (void)argv;
	dl_iterate_phdr(add_library, list);
	cJSON_ArrayForEach(item, list)
		for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
			const char *file = strrchr(item->valuestring, '/') + 1;
			if (!strncmp(file, named[i], strlen(named[i])) && n < sizeof text)
				n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? ", " : "", file);
		}
	dtp_found(f, DTP_VERDICT_OK, list, NULL, "difftp " DTP_VERSION "%s%s", n ? " with " : "", text);
	dtp_cpu_facts(&facts);
	dtp_found(f, facts.mismatch ? DTP_VERDICT_WARNING : DTP_VERDICT_OK, NULL,
		  facts.mismatch ? "compile difftp on this machine, or install the oneDNN that it was compiled with" : NULL, "%s",
		  facts.library);
	if (!uname(&u))
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "%s %s, %s, glibc %s", u.sysname, u.release, u.machine, gnu_get_libc_version());
	if (preload && *preload)
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "LD_PRELOAD is '%s'", preload);
	if (path && *path)
		dtp_found(f, DTP_VERDICT_OK, NULL, NULL, "LD_LIBRARY_PATH is '%s'", path);
}

/* ---- disks */

#define LITTLE_DISK 100000000u /* a picture of 4096x4096 pixels, and its stages */

void dtp_look_disk(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	const char *path = args->output ? args->output : "out.png";
	char *dir = strdup(path), *slash = dir ? strrchr(dir, '/') : NULL;
	struct dtp_err err = DTP_ERR_INIT;
	struct statvfs v;

	(void)argv;
	if (slash)
		slash[slash == dir] = '\0'; /* the root keeps its slash */
	const char *folder = slash ? dir : ".";
	if (dtp_outfile_check(path, &err)) {
		dtp_found(f, DTP_VERDICT_FAILURE, NULL, "choose another place with -o", "pictures cannot be written: %s", err.message);
	} else if (statvfs(folder, &v)) {
		dtp_found(f, DTP_VERDICT_WARNING, NULL, NULL, "how much room '%s' has cannot be read: %s", folder, strerror(errno));
	} else {
		uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
		bool little = room < LITTLE_DISK;
		dtp_found(f, little ? DTP_VERDICT_WARNING : DTP_VERDICT_OK, NULL, little ? "make room, or choose another place with -o" : NULL,
			  "pictures can be written to '%s', which has room for %s", folder, dtp_bytes_text(room).s);
	}
	free(dir);
}

#define READ_PIECE (8u << 20)
#define READ_MOST (256u << 20)
#define READ_S 2.0
#define SLOW_READ 2e8 /* bytes per second: FLUX.2-klein-4B takes more than a minute at it */

/* Bytes per second from the disk, which the page cache is asked to let go of first; 0: it cannot be read, errno says why. */
static double read_speed(const char *path, uint64_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *buf = fd >= 0 ? malloc(READ_PIECE) : NULL;
	double begin, took = 0;
	ssize_t n = 1;

	*bytes = 0;
	if (!buf) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	begin = dtp_seconds();
	while (*bytes < READ_MOST && took < READ_S && (n = read(fd, buf, READ_PIECE)) > 0) {
		*bytes += (uint64_t)n;
		took = dtp_seconds() - begin;
	}
	free(buf);
	close(fd);
	return n < 0 || took <= 0 ? 0 : (double)*bytes / took;
}

static const struct dtp_st_file *largest(const struct dtp_checkpoints *list, uint64_t *all)
{
	const struct dtp_st_file *best = NULL;

	*all = 0;
	for (int i = 0; i < list->n; i++)
		for (int k = 0; !list->item[i].err.code && k < list->item[i].st.nfiles; k++) {
			const struct dtp_st_file *f = &list->item[i].st.files[k];
			*all += f->size;
			best = !best || f->size > best->size ? f : best;
		}
	return best;
}

void dtp_look_model(const struct dtp_args *args, char **argv, struct dtp_findings *f)
{
	struct dtp_err err = DTP_ERR_INIT;
	struct dtp_checkpoints list;
	uint64_t all, bytes;

	(void)argv;
	if (dtp_checkpoints_find(args->model, &list, &err)) {
		dtp_found(f, DTP_VERDICT_FAILURE, NULL, "name a pipeline folder in the diffusers layout", "%s", err.message);
		return;
	}
	const struct dtp_st_file *file = largest(&list, &all);
	double speed = file ? read_speed(file->path, &bytes) : 0;
	if (!file) {
		dtp_found(f, DTP_VERDICT_FAILURE, NULL, "difftp inspect --check says more", "'%s' has no whole safetensors file", args->model);
	} else if (speed <= 0) {
		dtp_found(f, DTP_VERDICT_FAILURE, NULL, "look into the kernel's log (dmesg)", "'%s' cannot be read: %s", file->path,
			  strerror(errno));
	} else {
		cJSON *data = cJSON_CreateObject();
		bool slow = speed < SLOW_READ && (double)all / speed > 10;
		cJSON_AddNumberToObject(data, "bytes_per_second", speed);
		cJSON_AddNumberToObject(data, "weight_bytes", (double)all);
		dtp_found(f, slow ? DTP_VERDICT_WARNING : DTP_VERDICT_OK, data, slow ? "copy the model to a faster disk" : NULL,
			  "%s were read at %s/s: the model's %s take %s", dtp_bytes_text(bytes).s, dtp_bytes_text((uint64_t)speed).s,
			  dtp_bytes_text(all).s, dtp_seconds_text((double)all / speed).s);
	}
	dtp_checkpoints_free(&list);
}
