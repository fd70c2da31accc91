// SPDX-License-Identifier: GPL-2.0
/* Traces of real programs, see lab/TRACES */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "lab.h"

void trace_add(struct trace *trace, struct event event)
{
	if (trace->n == trace->room) {
		trace->room = 2 * trace->room + 1024;
		trace->events = realloc(trace->events, trace->room * sizeof(event));
		if (!trace->events)
			die("out of memory");
	}
	trace->events[trace->n++] = event;
	if (event.cpu >= trace->cpus)
		trace->cpus = event.cpu + 1;
	if (event.task >= trace->tasks)
		trace->tasks = event.task + 1;
}

void trace_free(struct trace *trace)
{
	free(trace->events);
	memset(trace, 0, sizeof(*trace));
}

#define MAX_CPUS	1024
#define MAX_PID		4194304

struct reader {
	struct trace *trace;
	const char *file;
	long line;
	int *task_of;	/* by pid, + 1 */
	int owner[MAX_CPUS];	/* of the registers, as recorded: task + 1 */
	int *loaded_on;	/* by task: CPU + 1 */
};

static __noreturn void bad(const struct reader *r, const char *why)
{
	die("%s:%ld: %s", r->file, r->line, why);
}

static int task_of(struct reader *r, long pid)
{
	if (!r->task_of[pid])
		r->task_of[pid] = ++r->trace->tasks;
	return r->task_of[pid] - 1;
}

/*
 * It was recorded with fpu_switch=lazy: the registers are those of the last task
 * that used them. If they are not valid then, the kernel has used them.
 */
static void check_valid(struct reader *r, int cpu, int task, bool used, bool valid)
{
	bool may = r->owner[cpu] == task + 1 && r->loaded_on[task] == cpu + 1;

	if (valid && !may)
		bad(r, "registers cannot be valid: another task used them, or this one others");
	if (!valid && may)
		trace_add(r->trace, (struct event){ .type = KERNEL_FPU, .cpu = cpu });
	if (!valid && may)
		r->owner[cpu] = 0;
	if (used) {
		r->owner[cpu] = task + 1;
		r->loaded_on[task] = cpu + 1;
	}
}

static void read_slice(struct reader *r, const long v[5])
{
	struct event e = { .type = SLICE, .cpu = v[0], .used = v[2], .hint = v[4] };

	if (v[2] > 1 || v[3] > 1 || v[4] > 1)
		bad(r, "used, valid and hint are 0 or 1");
	if (!v[2] && !v[4])
		bad(r, "a slice without use has a hint of it: the last number must be 1");
	e.task = task_of(r, v[1]);
	check_valid(r, e.cpu, e.task, e.used, v[3]);
	trace_add(r->trace, e);
}

static void check_ids(const struct reader *r, long cpu, long pid)
{
	if (cpu >= MAX_CPUS)
		bad(r, "CPU number too large");
	if (pid >= MAX_PID)
		bad(r, "pid too large");
}

static int parse(const struct reader *r, char *s, long v[5])
{
	int n;

	for (n = 0; ; n++) {
		char *end;

		while (isspace((unsigned char)*s))
			s++;
		if (!*s || *s == '#')
			return n;
		if (n == 5)
			bad(r, "too many numbers");
		if (!isdigit((unsigned char)*s))
			bad(r, "not a number");
		v[n] = strtol(s, &end, 10);
		if (*end && !isspace((unsigned char)*end))
			bad(r, "not a number");
		s = end;
	}
}

static void read_line(struct reader *r, char *line)
{
	long v[5] = { 0 };
	int task, n;

	if (*line == '#' || *line == '\n')
		return;
	if (!strchr("skln", *line))
		bad(r, "a line begins with s, k, l, n or #");
	n = parse(r, line + 1, v);
	switch (*line) {
	case 's':
		if (n != 5)
			bad(r, "a slice has 5 numbers: cpu pid used valid hint");
		check_ids(r, v[0], v[1]);
		read_slice(r, v);
		break;
	case 'l':
		if (n != 2)
			bad(r, "l has 2 numbers: cpu pid");
		check_ids(r, v[0], v[1]);
		task = task_of(r, v[1]);
		trace_add(r->trace, (struct event){ .type = KERNEL_LOAD, .cpu = v[0], .task = task });
		r->owner[v[0]] = task + 1;
		r->loaded_on[task] = v[0] + 1;
		break;
	case 'k':
		if (n != 1)
			bad(r, "k has 1 number: cpu");
		check_ids(r, v[0], 0);
		trace_add(r->trace, (struct event){ .type = KERNEL_FPU, .cpu = v[0] });
		r->owner[v[0]] = 0;
		break;
	default:
		if (n != 1)
			bad(r, "n has 1 number: pid");
		check_ids(r, 0, v[0]);
		task = task_of(r, v[0]);
		trace_add(r->trace, (struct event){ .type = NEW_PROGRAM, .task = task });
		r->loaded_on[task] = 0;
	}
}

void trace_read(struct trace *trace, const char *file)
{
	struct reader r = { .trace = trace, .file = file };
	FILE *f = fopen(file, "r");
	char line[256];

	if (!f)
		die("%s: cannot be opened", file);
	r.task_of = alloc(MAX_PID, sizeof(int));
	r.loaded_on = alloc(MAX_PID, sizeof(int));
	while (fgets(line, sizeof(line), f)) {
		r.line++;
		if (!strchr(line, '\n'))
			bad(&r, "line too long, or cut off");
		read_line(&r, line);
	}
	if (ferror(f))
		die("%s: cannot be read", file);
	fclose(f);
	free(r.task_of);
	free(r.loaded_on);
	if (!trace->n)
		die("%s: no slices", file);
}
