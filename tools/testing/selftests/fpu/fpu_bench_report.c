// SPDX-License-Identifier: GPL-2.0
/*
 * What fpu_switch_bench makes of its samples.
 *
 * Modes are compared by the time that the same work takes, in the medians of
 * their runs. The noise of a comparison is the largest of three, relative to the
 * medians: the distance of the quartiles of the one mode, that of the other, and
 * by how much the first mode differs from itself, measured again at the end of
 * each round of modes. On a noisy machine it counts twice, as with few runs the
 * quartiles themselves are a matter of luck then.
 */
#include <cpuid.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "fpu_bench.h"

#define NOISY		0.05
#define MAX_SKIPPED	16

/* In the order of --csv, which has the mode after the events */
enum column {
	TICKS, SAVES, RESTORES, TRAPS, TS_WRITES,
	LOW, HIGH, CYCLES, INSTRUCTIONS, RATIO, NOISE,
	NR_COLUMNS
};

static const struct {
	const char *name;
	const char *heading;
	int width;
	int digits;
} columns[NR_COLUMNS] = {
	[TICKS]		= { "ticks_per_switch", "ticks", 10, 1 },
	[SAVES]		= { "saves", "saves", 8, 1 },
	[RESTORES]	= { "restores", "restores", 8, 1 },
	[TRAPS]		= { "traps", "traps", 8, 1 },
	[TS_WRITES]	= { "ts_writes", "TS wr.", 8, 1 },
	[LOW]		= { "low_quartile", "quartile", 10, 1 },
	[HIGH]		= { "high_quartile", "quartile", 10, 1 },
	[CYCLES]	= { "cycles", "cycles", 9, 1 },
	[INSTRUCTIONS]	= { "instructions", "instr.", 9, 1 },
	[RATIO]		= { "ratio", "ratio", 7, 4 },
	[NOISE]		= { "noise", "noise", 7, 4 },
};

static const enum column table[NR_COLUMNS] = {
	TICKS, LOW, HIGH, CYCLES, INSTRUCTIONS,
	SAVES, RESTORES, TRAPS, TS_WRITES, RATIO, NOISE
};

struct summary {
	double value[NR_COLUMNS];	/* NAN if there is none */
	double ticks;			/* per batch */
	double spread;
	double switches_per_batch;
	long switches;
	bool planned;			/* the number of switches */
	unsigned int state_size;
	const char *bad;		/* why this can be compared with nothing */
	char verdict[96];
};

static struct {
	const char *what;
	const char *why;
} skipped[MAX_SKIPPED];

static int nr_skipped, nr_noisy, nr_reported, nr_modes;
static bool counted;		/* by this kernel: events */

/* What is not part of a table for machines */
static void note(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(options.csv || options.json ? stderr : stdout, format, args);
	va_end(args);
}

static void json_string(const char *name, const char *text)
{
	printf("\"%s\": ", name);
	if (!text) {
		printf("null");
		return;
	}
	putchar('"');
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			putchar('\\');
		if ((unsigned char)*text >= ' ')
			putchar(*text);
	}
	putchar('"');
}

static const char *cpu_name(void)
{
	static unsigned int words[13];
	unsigned int last = __get_cpuid_max(0x80000000, NULL), i;
	char *name = (char *)words;

	if (last < 0x80000004)
		return "CPU without a name";
	for (i = 0; i < 12; i += 4)
		__cpuid(0x80000002 + i / 4, words[i], words[i + 1], words[i + 2], words[i + 3]);
	for (i = strlen(name); i && name[i - 1] == ' '; i--)
		name[i - 1] = 0;
	return name + strspn(name, " ");
}

static void json_begin(const char *kernel, const struct mode *modes)
{
	int i;

	printf("{\n");
	json_string("kernel", kernel);
	printf(",\n");
	json_string("cpu_model", cpu_name());
	printf(",\n\"cpu\": %d, \"state_bytes\": %u, \"real_time\": %s,\n",
	       options.cpu, slices_state_size(), options.real_time ? "true" : "false");
	json_string("no_perf", options.no_perf);
	printf(",\n\"rounds\": %ld, \"repeats\": %d,\n\"modes\": [",
	       options.rounds, options.repeats);
	for (i = 0; i < nr_modes; i++)
		printf("%s\"%s\"", i ? ", " : "", modes[i].name);
	printf("],\n\"results\": [");
}

static void csv_begin(void)
{
	int i;

	printf("experiment,switches");
	for (i = 0; i < NR_COLUMNS; i++)
		printf("%s,%s", i == LOW ? ",mode" : "", columns[i].name);
	printf(",verdict\n");
}

/* Columns that would be empty only make lines long. */
static bool shown(enum column c)
{
	switch (c) {
	case SAVES ... TS_WRITES:
		return counted;
	case CYCLES:
	case INSTRUCTIONS:
		return !options.no_perf;
	case RATIO:
		return nr_modes > 1;
	default:
		return true;
	}
}

static void human_begin(const char *kernel, const struct mode *modes)
{
	int i;

	printf("Linux %s, CPU %d: %s, %u bytes of FPU state\nfpu_switch mode: ",
	       kernel, options.cpu, cpu_name(), slices_state_size());
	for (i = 0; i < nr_modes; i++)
		printf("%s%s", i ? ", " : "", modes[i].name);
	printf("\nTSC ticks (median, quartiles of %s), cycles and instructions are\n"
	       "per switch, events per 1000 switches; ratios are of time, to the first mode.\n",
	       options.repeats > 1 ? "runs" : "batches in one run");
	if (!options.real_time)
		printf("Not in the real-time class: not permitted.\n");
	if (options.no_perf)
		printf("No cycles and instructions: %s.\n", options.no_perf);
	printf("\n%10s", "");
	for (i = 0; i < NR_COLUMNS; i++) {
		if (shown(table[i]))
			printf(" %*s", columns[table[i]].width, columns[table[i]].heading);
	}
	putchar('\n');
}

void report_begin(const struct mode *modes, int nr)
{
	struct fpu_stats unused;
	struct utsname kernel;

	nr_modes = nr;
	counted = fpu_stats_read(&unused);
	uname(&kernel);
	if (options.json)
		json_begin(kernel.release, modes);
	else if (options.csv)
		csv_begin();
	else
		human_begin(kernel.release, modes);
}

void report_skipped(const char *what, const char *why)
{
	note("skipped: %s: %s\n", what, why);
	if (nr_skipped < MAX_SKIPPED) {
		skipped[nr_skipped].what = what;
		skipped[nr_skipped++].why = why;
	}
}

/* A scheduler that is free to do so switches more or less often than planned. */
static double switches_per_batch(const struct sample *sample)
{
	long off = labs(sample->switches - sample->planned);

	if (50 * off <= sample->planned)
		return (double)sample->planned / sample->batches;
	return (double)sample->switches / sample->batches;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Of the runs, or of the batches if there is only one run */
static void find_quartiles(struct summary *s, const struct sample *samples)
{
	double low = samples->low, high = samples->high, *ticks;
	int n = options.repeats, i;

	ticks = calloc(n, sizeof(*ticks));
	if (!ticks)
		exit(1);
	for (i = 0; i < n; i++)
		ticks[i] = samples[i].median;
	qsort(ticks, n, sizeof(*ticks), compare);
	s->ticks = ticks[n / 2];
	if (n > 1) {
		low = ticks[n / 4];
		high = ticks[n - 1 - n / 4];
	}
	free(ticks);
	/* A single figure has none. */
	s->spread = n > 1 || samples->batches > 1 ? (high - low) / s->ticks : NAN;
	s->value[LOW] = low / s->switches_per_batch;
	s->value[TICKS] = s->ticks / s->switches_per_batch;
	s->value[HIGH] = high / s->switches_per_batch;
}

static void add_sample(struct summary *s, const struct sample *sample)
{
	const struct fpu_stats *events = &sample->events;
	const double none = sample->counted ? 0 : NAN;

	s->switches += sample->switches;
	s->switches_per_batch += switches_per_batch(sample) / options.repeats;
	s->value[SAVES] += events->saves + none;
	s->value[RESTORES] += events->restores + none;
	s->value[TRAPS] += events->traps + none;
	s->value[TS_WRITES] += events->ts_sets + events->ts_clears + none;
	s->value[CYCLES] += sample->perf ? sample->cycles : NAN;
	s->value[INSTRUCTIONS] += sample->perf ? sample->instructions : NAN;
	if (sample->elsewhere)
		s->bad = "ran on another CPU";
	if (sample->mode_lost)
		s->bad = "another mode was in force afterwards";
	if (sample->state_size != s->state_size)
		s->bad = "the size of the FPU state changed";
}

static void summarize(struct summary *s, const struct sample *samples)
{
	int i;

	memset(s, 0, sizeof(*s));
	s->state_size = samples->state_size;
	s->planned = samples->planned;
	for (i = 0; i < options.repeats; i++)
		add_sample(s, &samples[i]);
	for (i = SAVES; i <= TS_WRITES; i++)
		s->value[i] *= 1000.0 / s->switches;
	s->value[CYCLES] /= s->switches;
	s->value[INSTRUCTIONS] /= s->switches;
	find_quartiles(s, samples);
}

static const char *why_not_comparable(const struct summary *first, const struct summary *s,
				      const struct summary *again)
{
	const char *bad = first->bad ?: again->bad ?: s->bad;

	if (bad)
		return bad;
	if (s->state_size != first->state_size)
		return "the sizes of the FPU state differ";
	if (s->planned && fabs(s->switches_per_batch / first->switches_per_batch - 1) > 0.02)
		return "not the same number of switches for the same work";
	return NULL;
}

/* The first mode is compared with itself. */
static void judge(struct summary *s, const struct summary *first, const struct summary *again)
{
	const char *why_not = why_not_comparable(first, s, again), *verdict = "";
	double ratio = s->ticks / first->ticks, noise;
	double off = again == first ? NAN : fabs(again->ticks / first->ticks - 1);

	s->value[RATIO] = NAN;
	s->value[NOISE] = fmax(off, fmax(first->spread, s->spread));
	if (why_not) {
		s->bad = why_not;
		snprintf(s->verdict, sizeof(s->verdict), "not comparable: %s", why_not);
		return;
	}
	noise = s->value[NOISE];
	if (noise > NOISY) {
		verdict = "noisy";
		noise *= 2;
	}
	if (s != first) {
		if (noise > 0 && fabs(ratio - 1) <= noise)
			verdict = "within noise";
		else
			s->value[RATIO] = ratio;
	}
	snprintf(s->verdict, sizeof(s->verdict), "%s", verdict);
}

static void csv_row(const char *name, const char *mode, const struct summary *s)
{
	int i;

	printf("%s,%ld", name, s->switches);
	for (i = 0; i < NR_COLUMNS; i++) {
		if (i == LOW)
			printf(",%s", mode);
		putchar(',');
		if (isfinite(s->value[i]))
			printf("%.*f", columns[i].digits, s->value[i]);
	}
	printf(",%s\n", s->verdict);
}

static void json_row(const char *name, const char *mode, const struct summary *s)
{
	static int nr_rows;
	int i;

	printf("%s\n{\"experiment\": \"%s\", \"mode\": \"%s\", \"switches\": %ld",
	       nr_rows++ ? "," : "", name, mode, s->switches);
	for (i = 0; i < NR_COLUMNS; i++) {
		printf(", \"%s\": ", columns[i].name);
		if (isfinite(s->value[i]))
			printf("%.*f", columns[i].digits, s->value[i]);
		else
			printf("null");
	}
	printf(", ");
	json_string("verdict", s->verdict);
	putchar('}');
}

static void human_row(const char *mode, const struct summary *s)
{
	enum column c;
	int i;

	printf("  %-8s", mode);
	for (i = 0; i < NR_COLUMNS; i++) {
		c = table[i];
		if (!shown(c))
			continue;
		if (isfinite(s->value[c]))
			printf(" %*.*f", columns[c].width, columns[c].digits, s->value[c]);
		else
			printf(" %*s", columns[c].width, "-");
	}
	printf("%s%s\n", *s->verdict ? "  " : "", s->verdict);
}

static void row(const struct experiment *e, const char *mode, const struct summary *s)
{
	if (options.csv)
		csv_row(e->name, mode, s);
	else if (options.json)
		json_row(e->name, mode, s);
	else
		human_row(strcmp(mode, UNPATCHED) ? mode : "-", s);
}

/*
 * The samples of one mode after the other, and if there are several modes, those
 * of the first one again. Was everything comparable?
 */
bool report(const struct experiment *e, const struct mode *modes, const struct sample *samples)
{
	struct summary summaries[MAX_MODES + 1];
	int last = nr_modes > 1 ? nr_modes : 0, i;
	bool fine = true, noisy = false;

	if (!options.csv && !options.json)
		printf("%s%s%s\n", e->name, *e->what ? "  " : "", e->what);
	for (i = 0; i <= last; i++)
		summarize(&summaries[i], samples + i * options.repeats);
	for (i = 0; i < nr_modes; i++) {
		judge(&summaries[i], &summaries[0], &summaries[last]);
		row(e, modes[i].name, &summaries[i]);
		fine &= !summaries[i].bad;
		noisy |= summaries[i].value[NOISE] > NOISY;
	}
	nr_noisy += noisy;
	nr_reported++;
	fflush(stdout);
	return fine;
}

void report_end(void)
{
	int i;

	if (options.json) {
		printf("\n],\n\"noisy\": %d,\n\"skipped\": [", nr_noisy);
		for (i = 0; i < nr_skipped; i++) {
			printf("%s\n{", i ? "," : "");
			json_string("what", skipped[i].what);
			printf(", ");
			json_string("why", skipped[i].why);
			putchar('}');
		}
		printf("]\n}\n");
	}
	if (nr_noisy)
		note("This machine is noisy: more than %.0f%% in %d of %d experiments. Measure\n"
		     "when it is idle, at a fixed clock frequency, in the real-time class, or with\n"
		     "more --rounds and --repeats.\n",
		     100 * NOISY, nr_noisy, nr_reported);
}
