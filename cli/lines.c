/* SPDX-License-Identifier: Apache-2.0 */
#include "lines.h"

#include "line.h"
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILE ((size_t)1 << 30)
/* Lines of stdin that are read ahead of rank 0's work: more wait in the pipe. */
#define MAX_AHEAD 1000
#define TICK_MS 200

/* stdin in the job's store: "prompts" is how much was put there so far, "prompts/N" the Nth of it: one of these, the line's
 * number, its text.  Blank lines are not put there, and what all replicas have got does not stay there. */
#define COUNT_KEY "prompts"
enum { TEXT = 'T', END = 'E', FAILURE = 'F' };
#define HEAD (1 + sizeof(int64_t))

struct dtp_lines {
	struct dtp_rank *rank;
	char *file;          /* all of it; NULL: stdin */
	size_t size, at;
	int64_t number;      /* of the line that was got last */

	uint64_t next;       /* of the store, from 0 */
	char *value;         /* that was got last */
	uint64_t arrived;    /* so many are known to be there */

	bool reads;          /* the thread runs: only on rank 0 */
	pthread_t thread;
	int wake;            /* ends it */
};

const char *dtp_lines_name(const char *path)
{
	return strcmp(path, "-") ? path : "stdin";
}

bool dtp_lines_are_known(const struct dtp_lines *l)
{
	return l->file != NULL;
}

/* Whether there is something in it: *line.  A byte order mark at the beginning is no part of the prompt. */
static bool is_line(const char *text, size_t len, int64_t number, struct dtp_lines_line *line)
{
	size_t mark = number == 1 && len >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0;

	*line = (struct dtp_lines_line){text + mark, len - mark, number};
	return !dtp_line_is_blank(line->text, line->len);
}

/* ---- a file */

static enum dtp_code open_file(const char *path, int *fd, struct dtp_err *err)
{
	struct stat st;

	*fd = open(path, O_RDONLY | O_CLOEXEC);
	if (*fd < 0)
		return dtp_fail(err, DTP_REFUSED, "cannot read '%s': %s", path, strerror(errno));
	if (fstat(*fd, &st) || S_ISREG(st.st_mode))
		return DTP_OK;
	close(*fd);
	return S_ISDIR(st.st_mode)
		? dtp_fail(err, DTP_REFUSED, "'%s' is a folder, --prompts takes a file of lines", path)
		: dtp_fail(err, DTP_REFUSED, "'%s' is no regular file: pipes are read as stdin, with --prompts -", path);
}

enum dtp_code dtp_lines_check(const char *path, struct dtp_err *err)
{
	int fd;

	if (!strcmp(path, "-"))
		return DTP_OK;
	if (open_file(path, &fd, err))
		return err->code;
	close(fd);
	return DTP_OK;
}

/* All of it, with room for a NUL: 0, or an error number. */
static int read_all(struct dtp_lines *l, int fd)
{
	size_t cap = 0;
	ssize_t n;

	do {
		if (l->size == cap) { /* one byte more than is taken, to see that there are more */
			cap = cap ? 2 * cap : 65536;
			cap = cap <= MAX_FILE ? cap : MAX_FILE + 1;
			char *more = realloc(l->file, cap + 1);
			if (!more)
				return ENOMEM;
			l->file = more;
		}
		n = read(fd, l->file + l->size, cap - l->size);
		if (n < 0 && errno != EINTR)
			return errno;
		l->size += n > 0 ? (size_t)n : 0;
		if (l->size > MAX_FILE)
			return EFBIG;
	} while (n);
	return 0;
}

static enum dtp_code read_file(struct dtp_lines *l, const char *path, struct dtp_err *err)
{
	int fd;

	if (open_file(path, &fd, err))
		return err->code;
	int failed = read_all(l, fd);
	close(fd);
	if (failed == EFBIG)
		return dtp_fail(err, DTP_REFUSED, "'%s' is too large: at most %zu bytes are read", path, MAX_FILE);
	if (failed == ENOMEM)
		return dtp_fail(err, DTP_FAILED, "out of memory for the lines of '%s'", path);
	return failed ? dtp_fail(err, DTP_REFUSED, "cannot read '%s': %s", path, strerror(failed)) : DTP_OK;
}

/* The same bytes in every replica, whatever becomes of the file. */
static enum dtp_code share_file(struct dtp_lines *l, const char *path, struct dtp_err *err)
{
	struct dtp_comm *replicas = l->rank->mesh.dim[DTP_MESH_DP];
	int64_t size;

	if (replicas->rank == 0 && read_file(l, path, err))
		return err->code;
	size = (int64_t)l->size;
	if (dtp_broadcast(replicas, &size, sizeof size, 0, err))
		return err->code;
	l->size = (size_t)size;
	if (replicas->rank && !(l->file = malloc(l->size + 1)))
		return dtp_fail(err, DTP_FAILED, "out of memory for the %zu bytes of '%s'", l->size, path);
	l->file[l->size] = '\0';
	return dtp_broadcast(replicas, l->file, size, 0, err);
}

static enum dtp_lines_got next_of_file(struct dtp_lines *l, struct dtp_lines_line *line)
{
	while (l->at < l->size) {
		const char *text = l->file + l->at, *end = memchr(text, '\n', l->size - l->at);
		size_t len = end ? (size_t)(end - text) : l->size - l->at;
		l->at += len + (end != NULL);
		if (is_line(text, len, ++l->number, line))
			return DTP_LINES_LINE;
	}
	return DTP_LINES_END;
}

/* ---- stdin, on the side that reads */

struct input {
	struct dtp_lines *l;
	const struct dtp_store *store;
	char *value;        /* room for its head, then an unfinished line; what is beyond the limit is not kept */
	size_t len;
	int64_t number;     /* of lines that were read */
	uint64_t n;         /* values that were handed on */
};

static void hand_on(struct input *in, char tag, const char *text, size_t len)
{
	const struct dtp_lines *l = in->l;
	char key[32], count[24];

	in->value[0] = tag;
	memcpy(in->value + 1, &in->number, sizeof in->number);
	memmove(in->value + HEAD, text, len);
	snprintf(key, sizeof key, COUNT_KEY "/%" PRIu64, in->n++);
	dtp_worker_hand_on(l->rank->worker, key, in->value, HEAD + len, l->rank->mesh.dim[DTP_MESH_DP]->size);
	in->store->set(in->store->arg, COUNT_KEY, count, (size_t)snprintf(count, sizeof count, "%" PRIu64, in->n), NULL);
}

static void end_line(struct input *in)
{
	struct dtp_lines_line line;

	if (is_line(in->value + HEAD, in->len, ++in->number, &line))
		hand_on(in, TEXT, line.text, line.len);
	in->len = 0;
}

static void take_bytes(struct input *in, const char *p, size_t n)
{
	while (n) {
		const char *end = memchr(p, '\n', n);
		size_t part = end ? (size_t)(end - p) : n, room = DTP_LINE_MAX + 1 - in->len; /* one more, to be refused */
		size_t kept = part < room ? part : room;
		memcpy(in->value + HEAD + in->len, p, kept);
		in->len += kept;
		if (end)
			end_line(in);
		p += part + (end != NULL);
		n -= part + (end != NULL);
	}
}

/* Whether there is something to read; false: it is time to end. */
static bool wait_for_input(const struct dtp_lines *l, const struct input *in)
{
	for (;;) {
		bool full = in->n > dtp_worker_taken(l->rank->worker) + MAX_AHEAD;
		struct pollfd fds[] = {{.fd = l->wake, .events = POLLIN}, {.fd = full ? -1 : STDIN_FILENO, .events = POLLIN}};
		int n = poll(fds, 2, TICK_MS);
		if (fds[0].revents || dtp_worker_finishing(l->rank->worker))
			return false;
		if (n > 0 && fds[1].revents)
			return true;
	}
}

static void *read_stdin(void *arg)
{
	struct input *in = arg;
	char block[16384];
	ssize_t n = 0;

	while (wait_for_input(in->l, in)) {
		n = read(STDIN_FILENO, block, sizeof block);
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			break;
		take_bytes(in, block, (size_t)n);
	}
	if (n < 0) {
		snprintf(block, sizeof block, "cannot read stdin: %s", strerror(errno));
		hand_on(in, FAILURE, block, strlen(block));
	} else {
		if (in->len && !n) /* the last line lacks its line break */
			end_line(in);
		hand_on(in, END, "", 0);
	}
	free(in->value);
	free(in);
	return NULL;
}

static enum dtp_code start_reading(struct dtp_lines *l, struct dtp_err *err)
{
	struct input *in = calloc(1, sizeof *in);
	const struct dtp_store *store = dtp_worker_store(l->rank->worker);

	if (!in || !(in->value = malloc(HEAD + DTP_LINE_MAX + 1))) {
		free(in);
		return dtp_fail(err, DTP_FAILED, "out of memory");
	}
	in->l = l;
	in->store = store;
	l->wake = eventfd(0, EFD_CLOEXEC);
	bool ready = l->wake >= 0 && !store->set(store->arg, COUNT_KEY, "0", 1, NULL);
	int failed = ready ? pthread_create(&l->thread, NULL, read_stdin, in) : errno;
	l->reads = ready && !failed;
	if (l->reads)
		return DTP_OK;
	free(in->value);
	free(in);
	return dtp_fail(err, DTP_FAILED, "cannot start reading stdin: %s", strerror(failed));
}

/* ---- stdin, on the side that draws */

static enum dtp_code get(struct dtp_lines *l, const char *key, size_t *len, struct dtp_err *err)
{
	const struct dtp_store *store = dtp_worker_store(l->rank->worker);
	void *value;

	if (store->get(store->arg, key, &value, len, err))
		return err->code;
	free(l->value);
	l->value = value;
	return DTP_OK;
}

static enum dtp_code count_arrived(struct dtp_lines *l, struct dtp_err *err)
{
	size_t len;

	if (get(l, COUNT_KEY, &len, err))
		return err->code;
	uint64_t n = strtoull(l->value, NULL, 10); /* the store's values are terminated */
	l->arrived = n > l->arrived ? n : l->arrived; /* a line is there before it is counted */
	return DTP_OK;
}

static enum dtp_lines_got next_of_stdin(struct dtp_lines *l, bool wait, struct dtp_lines_line *line, struct dtp_err *err)
{
	const struct dtp_monitor *mon = l->rank->mon;
	char key[32];
	size_t len;

	if (l->next == l->arrived && count_arrived(l, err))
		return DTP_LINES_FAILED;
	if (l->next == l->arrived) {
		if (!wait)
			return DTP_LINES_NONE_YET;
		mon->stage(mon->arg, DTP_PHASE_INPUT, "wait for a prompt");
	}
	snprintf(key, sizeof key, COUNT_KEY "/%" PRIu64, l->next);
	if (get(l, key, &len, err))
		return DTP_LINES_FAILED;
	l->next++;
	if (l->arrived < l->next)
		l->arrived = l->next;
	*line = (struct dtp_lines_line){.text = l->value + HEAD, .len = len - HEAD};
	memcpy(&line->number, l->value + 1, sizeof line->number);
	if (l->value[0] == END)
		return DTP_LINES_END;
	if (l->value[0] == FAILURE) {
		dtp_fail(err, DTP_FAILED, "%s", line->text);
		return DTP_LINES_FAILED;
	}
	return DTP_LINES_LINE;
}

/* ---- */

enum dtp_lines_got dtp_lines_next(struct dtp_lines *l, bool wait, struct dtp_lines_line *line, struct dtp_err *err)
{
	return l->file ? next_of_file(l, line) : next_of_stdin(l, wait, line, err);
}

enum dtp_code dtp_lines_open(struct dtp_rank *rank, const char *path, struct dtp_lines **out, struct dtp_err *err)
{
	struct dtp_lines *l = *out = calloc(1, sizeof *l);
	enum dtp_code code = DTP_OK;

	if (!l)
		return dtp_fail(err, DTP_FAILED, "out of memory");
	l->rank = rank;
	l->wake = -1;
	if (strcmp(path, "-"))
		code = share_file(l, path, err);
	else if (rank->rank == 0)
		code = start_reading(l, err);
	if (code) {
		dtp_lines_close(l);
		*out = NULL;
	}
	return code;
}

void dtp_lines_close(struct dtp_lines *l)
{
	uint64_t one = 1;

	if (!l)
		return;
	if (l->reads && write(l->wake, &one, sizeof one) == sizeof one)
		pthread_join(l->thread, NULL);
	if (l->wake >= 0)
		close(l->wake);
	free(l->value);
	free(l->file);
	free(l);
}
