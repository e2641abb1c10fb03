/* SPDX-License-Identifier: Apache-2.0 */
#include "place.h"

#include "flags.h"
#include "sizes.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Names of variables.  Several, separated by blanks: of `size` and `hosts` the first that is set counts, of `job` all. */
struct launcher {
	const char *name;
	const char *rank, *size, *local_rank; /* every rank has these */
	const char *local_size, *hosts;       /* how many ranks on this host; how many hosts: may be missing */
	const char *job;
	const char *parents;
	bool in_shells; /* `size` also stands in shells that are no rank */
};

/* Inner before outer: srun may start torchrun, and mpirun may run where Slurm gave it room. */
static const struct launcher launchers[] = {
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "",
	 "TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT", "torchrun python* pt_*", false},
	{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
	 "OMPI_COMM_WORLD_LOCAL_SIZE", "", "PMIX_NAMESPACE OMPI_MCA_ess_base_jobid",
	 "mpirun mpiexec orterun orted prterun prted", false},
	{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE",
	 "SLURM_STEP_NUM_NODES SLURM_JOB_NUM_NODES SLURM_NNODES", "SLURM_JOB_ID SLURM_STEP_ID", "slurmstepd", true},
};
#define NLAUNCHERS (int)(sizeof launchers / sizeof *launchers)

static const char *set(const char *name)
{
	const char *s = getenv(name);

	return s && *s ? s : NULL;
}

struct pick {
	char name[64];
	const char *value;
};

static bool first_set(void *arg, const char *word, size_t len)
{
	struct pick *p = arg, w = {.value = NULL};

	snprintf(w.name, sizeof w.name, "%.*s", (int)len, word);
	w.value = set(w.name);
	if (w.value || !p->name[0]) /* the first name stands for all where none is set */
		*p = w;
	return !w.value;
}

static struct pick pick(const char *names)
{
	struct pick p = {.value = NULL};

	dtp_each_word(names, first_set, &p);
	return p;
}

/* What to do about all of these errors. */
#define REMEDY "; --launcher self ignores the variables and starts the ranks itself"

static enum dtp_code number(const struct pick *v, int lo, int hi, int *out, struct dtp_err *err)
{
	long n;

	errno = 0;
	n = strtol(v->value, NULL, 10);
	if (v->value[strspn(v->value, "0123456789")] || errno || n < lo || n > hi)
		return dtp_fail(err, DTP_REFUSED, "the variable '%s' is '%s', not a whole number from %d to %d" REMEDY,
				v->name, v->value, lo, hi);
	*out = (int)n;
	return DTP_OK;
}

/* ---- one launcher */

static enum dtp_code need(const struct launcher *l, const struct pick *v, const struct pick *other, struct dtp_err *err)
{
	if (v->value)
		return DTP_OK;
	if (!other->value) /* the launcher was named */
		return dtp_fail(err, DTP_REFUSED, "the variable '%s' is not set: %s sets it" REMEDY, v->name, l->name);
	return dtp_fail(err, DTP_REFUSED, "the variable '%s' is not set, though '%s' is: %s sets both" REMEDY, v->name,
			other->name, l->name);
}

static enum dtp_code read_numbers(const struct launcher *l, struct dtp_place *p, struct dtp_err *err)
{
	struct pick rank = pick(l->rank), size = pick(l->size), local = pick(l->local_rank), locals = pick(l->local_size),
		    hosts = pick(l->hosts);
	int local_rank, local_size = 0, nhosts = 0;

	if (need(l, &rank, &size, err) || need(l, &size, &rank, err) || need(l, &local, &rank, err) ||
	    number(&size, 1, DTP_MAX_RANKS, &p->size, err) || number(&rank, 0, DTP_MAX_RANKS, &p->rank, err) ||
	    number(&local, 0, DTP_MAX_RANKS, &local_rank, err) ||
	    (locals.value && number(&locals, 1, DTP_MAX_RANKS, &local_size, err)) ||
	    (hosts.value && number(&hosts, 1, DTP_MAX_RANKS, &nhosts, err)))
		return err->code;
	if (p->rank >= p->size)
		return dtp_fail(err, DTP_REFUSED, "the variable '%s' is %d, but '%s' is %d: ranks are numbered from 0 to %d" REMEDY,
				rank.name, p->rank, size.name, p->size, p->size - 1);
	if (local_rank > p->rank || (local_size && local_rank >= local_size))
		return dtp_fail(err, DTP_REFUSED, "the variable '%s' is %d, but '%s' is %d: no rank has that place on its host" REMEDY,
				local.name, local_rank, local_rank > p->rank ? rank.name : locals.name,
				local_rank > p->rank ? p->rank : local_size);
	p->one_host = nhosts ? nhosts == 1 : local_size >= p->size;
	p->near = p->one_host || (!nhosts && !local_size && local_rank == p->rank);
	return DTP_OK;
}

static enum dtp_code read_master(struct dtp_place *p, struct dtp_err *err)
{
	struct pick addr = pick("MASTER_ADDR"), port = pick("MASTER_PORT");

	if (!addr.value != !port.value)
		return dtp_fail(err, DTP_REFUSED,
				"the variable '%s' is not set, though '%s' is: the ranks meet where both say; unset it, or say with "
				"--rendezvous where they meet",
				addr.value ? port.name : addr.name, addr.value ? addr.name : port.name);
	p->master = addr.value;
	return addr.value ? number(&port, 1, 65535, &p->master_port, err) : DTP_OK;
}

static bool append_value(void *arg, const char *word, size_t len)
{
	struct dtp_place *p = arg;
	char name[64];
	size_t used = strlen(p->job);

	snprintf(name, sizeof name, "%.*s", (int)len, word);
	if (set(name))
		snprintf(p->job + used, sizeof p->job - used, "%s%s", used ? "." : "", set(name));
	return true;
}

/* A batch script has srun's variables too, for the step that it is itself. */
static bool is_batch_script(void)
{
	const char *e = getenv("ENVIRONMENT");

	return e && !strcmp(e, "BATCH") && !set("SLURM_STEP_ID");
}

static bool present(const struct launcher *l)
{
	struct pick size = pick(l->size);

	if (!l->in_shells)
		return set(l->rank) || size.value;
	/* A shell in an allocation is a step of one rank. */
	return set(l->rank) && !is_batch_script() && !(size.value && !strcmp(size.value, "1"));
}

enum dtp_code dtp_place_find(int choice, struct dtp_place *p, struct dtp_err *err)
{
	const struct launcher *l = NULL;

	*p = (struct dtp_place){.size = 1};
	if (choice == DTP_ARG_SELF)
		return DTP_OK;
	if (choice >= DTP_ARG_TORCHRUN)
		l = &launchers[choice - DTP_ARG_TORCHRUN];
	for (int i = 0; i < NLAUNCHERS && !l; i++)
		if (present(&launchers[i]))
			l = &launchers[i];
	if (!l)
		return DTP_OK;
	p->launcher = l->name;
	p->parents = l->parents;
	dtp_each_word(l->job, append_value, p);
	return read_numbers(l, p, err) ? err->code : read_master(p, err);
}

struct comm {
	char name[64];
	bool found;
};

static bool match_parent(void *arg, const char *word, size_t len)
{
	struct comm *c = arg;
	char pattern[64];

	snprintf(pattern, sizeof pattern, "%.*s", (int)len, word);
	c->found = !fnmatch(pattern, c->name, 0);
	return !c->found;
}

pid_t dtp_place_parent(const struct dtp_place *p)
{
	pid_t parent = getppid();
	struct comm c = {.found = false};
	char path[64];

	snprintf(path, sizeof path, "/proc/%ld/comm", (long)parent);
	FILE *f = fopen(path, "re");
	if (!f)
		return 0;
	if (fgets(c.name, sizeof c.name, f)) {
		c.name[strcspn(c.name, "\n")] = '\0';
		dtp_each_word(p->parents, match_parent, &c);
	}
	fclose(f);
	return c.found ? parent : 0;
}
