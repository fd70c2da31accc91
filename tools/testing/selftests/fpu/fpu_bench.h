/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the parts of fpu_switch_bench share: fpu_bench_slices.c measures without
 * any use of the FPU of its own, fpu_bench_report.c calculates and prints, and
 * fpu_switch_bench.c decides what is measured in which mode.
 */
#ifndef FPU_BENCH_H
#define FPU_BENCH_H

#include <stdbool.h>

#include "fpu_switch.h"

#define BATCH		25	/* round trips in one reading of the TSC */
#define MAX_THREADS	64
#define MAX_MODES	5
#define MODE_SIZE	32
#define UNPATCHED	"unpatched or without debugfs"

enum { FUTEX, PIPE, EVENTFD, UNIX, YIELD, NR_TRANSPORTS };
enum { MIX_NONE, MIX_ONE, MIX_BOTH, MIX_NTH, MIX_BURSTS, MIX_CHANGE, NR_MIXES };
enum { X87, SSE, AVX, AVX512, NR_STATES };

struct experiment {
	char name[32];
	const char *what;
	enum { PING_PONG, ALONGSIDE, MIXED } kind;
	void (*parent)(void);		/* of PING_PONG and ALONGSIDE */
	void (*child)(void);
	int transport;			/* of MIXED */
	int mix;
	int state;
};

/* One run of an experiment. Times are TSC ticks per batch. */
struct sample {
	unsigned long long low, median, high;	/* quartiles */
	unsigned long long cycles, instructions;
	struct fpu_stats events;
	long switches;
	long planned;			/* switches, or 0 if that is up to the scheduler */
	long batches;
	unsigned int state_size;
	bool counted;			/* events */
	bool perf;			/* cycles and instructions */
	bool elsewhere;			/* one side was on another CPU */
	bool mode_lost;			/* another mode was in force afterwards */
};

struct mode {
	const char *word;		/* to write, or NULL: it is not written */
	char name[MODE_SIZE];		/* as read back */
};

struct options {
	long rounds;
	int repeats;
	int threads;			/* that take turns by sched_yield() */
	int nth;
	int cpu;
	bool csv;
	bool json;
	bool real_time;
	const char *no_perf;		/* why not, or NULL */
};

extern struct options options;

/* fpu_bench_slices.c */
bool slices_setup(void);
const char *slices_missing(int state);
unsigned int slices_state_size(void);
bool slices_run(const struct experiment *e, struct sample *sample);

/* fpu_bench_report.c */
void report_begin(const struct mode *modes, int nr);
void report_skipped(const char *what, const char *why);
bool report(const struct experiment *e, const struct mode *modes, const struct sample *samples);
void report_end(void);

#endif
