// SPDX-License-Identifier: GPL-2.0
/*
 * What a context switch costs with different uses of the FPU: the experiments
 * of the sLeAZY FPU's thread of 2006, two more like them, and others by several
 * ways to switch. Where the mode can be set at run time, modes are compared.
 *
 * Time is read from the TSC. Under QEMU's -icount shift=0 it counts
 * instructions, and the median over batches is exact to half an instruction.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../kselftest.h"
#include "fpu_bench.h"

#define MODE_FILE	FPU_SWITCH_DIR "mode"
#define LETTERS		"abcde"

struct options options = { .rounds = 5000, .threads = 4, .nth = 8 };

static const char * const mode_words[MAX_MODES] = {
	"auto", "eager", "sleazy", "lazy", "adaptive"
};

static const char * const transports[NR_TRANSPORTS] = {
	[FUTEX] = "futex", [PIPE] = "pipe", [EVENTFD] = "eventfd", [UNIX] = "unix",
	[YIELD] = "yield",
};

static const char * const mixes[NR_MIXES] = {
	[MIX_NONE] = "none", [MIX_ONE] = "one", [MIX_BOTH] = "both", [MIX_NTH] = "nth",
	[MIX_BURSTS] = "bursts", [MIX_CHANGE] = "change",
};

static const char * const states[NR_STATES] = {
	[X87] = "x87", [SSE] = "sse", [AVX] = "avx", [AVX512] = "avx512",
};

/* Whatever there is: what is missing then is no refusal */
#define ALL	(~0U)

struct choice {
	const char *letters;
	unsigned int transports;	/* a bit for each */
	unsigned int mixes;
	unsigned int states;
	int modes[MAX_MODES];		/* in the order given */
	int nr_modes;
};

static struct mode modes[MAX_MODES];
static int nr_modes;
static bool refused;		/* something that was asked for */

static char found[MODE_SIZE];	/* the mode, to be restored */
static pid_t owner;		/* who is to do that */

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void bad_argument(const char *option, const char *text, const char *expected)
{
	fprintf(stderr, "fpu_switch_bench: %s: %s: expected %s\n", option, text, expected);
	exit(2);
}

/* The operation of 2006. Both values come from memory, each time. */
static void one_operation(void)
{
	static double a = 1.0, b = 2.0;
	double x = a, y = b;

	asm volatile("" : "+m" (a), "+m" (b));
	a = 0.3 * (x + y);
}

static void no_operation(void)
{
}

/* The loops of 2006, for a fixed number of steps */
static void getpid_loop(void)
{
	long i;

	for (i = 0; i < 60 * options.rounds; i++)
		syscall(SYS_getpid);
}

static void long_double_loop(void)
{
	static long double sum;
	long i;

	for (i = 0; i < 2000 * options.rounds; i++) {
		sum += 1.0;
		asm volatile("" : "+m" (sum));
	}
}

static void compute_pi(void)
{
	double sum = 0.0, sign = 4.0;
	long i;

	for (i = 0; i < 2000 * options.rounds; i++) {
		sum += sign / (2 * i + 1);
		sign = -sign;
	}
	asm volatile("" : : "m" (sum));
}

static const struct experiment letters[] = {
	{ .name = "a", .what = "ping-pong over futexes, both sides A = 0.3 * (A + B)",
	  .parent = one_operation, .child = one_operation, .kind = PING_PONG },
	{ .name = "b", .what = "a loop of getpid() beside a loop that adds 1.0 to a long double",
	  .parent = getpid_loop, .child = long_double_loop, .kind = ALONGSIDE },
	{ .name = "c", .what = "two programs that compute pi",
	  .parent = compute_pi, .child = compute_pi, .kind = ALONGSIDE },
	{ .name = "d", .what = "ping-pong over futexes, no FPU",
	  .parent = no_operation, .child = no_operation, .kind = PING_PONG },
	{ .name = "e", .what = "ping-pong over futexes, one side A = 0.3 * (A + B)",
	  .parent = one_operation, .child = no_operation, .kind = PING_PONG },
};

static bool read_mode(char name[MODE_SIZE])
{
	int n = fpu_switch_file(MODE_FILE, name, MODE_SIZE);

	if (n > 0)
		name[strcspn(name, "\n")] = 0;
	return n > 0 && *name;
}

/* Also from a signal handler. 0, or what is wrong. */
static int write_mode(const char *word)
{
	int file = open(MODE_FILE, O_WRONLY), error = 0;
	char line[MODE_SIZE + 1];
	size_t n = strlen(word);

	if (file < 0)
		return errno;
	memcpy(line, word, n);
	line[n] = '\n';
	if (write(file, line, n + 1) < 0)
		error = errno;
	close(file);
	return error;
}

/* Where nothing can be written, nothing was changed either. */
static void restore_mode(void)
{
	static const char failed[] = "fpu_switch_bench: could not restore the mode\n";
	char now[MODE_SIZE];
	ssize_t written;

	if (owner != getpid())
		return;
	if (write_mode(found) && !(read_mode(now) && !strcmp(now, found))) {
		written = write(STDERR_FILENO, failed, sizeof(failed) - 1);
		(void)written;
	}
}

static void on_signal(int number)
{
	restore_mode();
	signal(number, SIG_DFL);
	raise(number);
}

static void restore_mode_at_exit(void)
{
	static const int fatal[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE };
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(fatal); i++)
		signal(fatal[i], on_signal);
	atexit(restore_mode);
	owner = getpid();
}

static const char *why_not_written(int error)
{
	struct stat file;

	if (!stat(MODE_FILE, &file) && !(file.st_mode & 0222))
		return "this kernel does not switch modes at run time (the file is read-only)";
	switch (error) {
	case EINVAL:
		return "the kernel does not know this mode";
	case EOPNOTSUPP:
		return "something in this machine forbids it, the kernel log says what";
	case EACCES:
	case EPERM:
		return "no permission to write " MODE_FILE;
	default:
		return strerror(error);
	}
}

/* Why this mode cannot be measured, or NULL */
static const char *try_mode(const char *word, char name[MODE_SIZE])
{
	int error = write_mode(word), i;

	if (error)
		return why_not_written(error);
	if (!read_mode(name))
		return "the mode cannot be read back";
	if (strcmp(word, "auto") && strcmp(word, name))
		return "the kernel did not take it on";
	for (i = 0; i < nr_modes; i++) {
		if (!strcmp(modes[i].name, name))
			return "this is the same mode as another one";
	}
	return NULL;
}

/* Those of the modes asked for that there are, or else the one in force */
static void choose_modes(const struct choice *choice)
{
	bool readable = read_mode(found), denied = !readable && errno == EACCES;
	const char *word, *why_not;
	int i;

	if (readable && choice->nr_modes)
		restore_mode_at_exit();
	for (i = 0; i < choice->nr_modes; i++) {
		word = mode_words[choice->modes[i]];
		if (readable)
			why_not = try_mode(word, modes[nr_modes].name);
		else
			why_not = denied ? "no permission to read " MODE_FILE : UNPATCHED;
		if (why_not) {
			report_skipped(word, why_not);
			refused = true;
		} else {
			modes[nr_modes++].word = word;
		}
	}
	if (nr_modes)
		return;
	/* An attempt that failed may have changed it all the same. */
	restore_mode();
	snprintf(modes[0].name, MODE_SIZE, "%s", readable ? found : UNPATCHED);
	nr_modes = 1;
}

static void enter(const struct mode *mode)
{
	int error = mode->word ? write_mode(mode->word) : 0;

	if (error) {
		errno = error;
		die(MODE_FILE);
	}
}

static bool in_force(const struct mode *mode)
{
	char name[MODE_SIZE];

	if (!read_mode(name))
		return !strcmp(mode->name, UNPATCHED);
	return !strcmp(name, mode->name);
}

/* Modes take turns, and the first one is also the last: drift hits all alike. */
static void measure(const struct experiment *e)
{
	int series = nr_modes > 1 ? nr_modes + 1 : 1, repeat, i;
	const struct mode *mode;
	struct sample *samples = calloc(series * options.repeats, sizeof(*samples));
	struct sample *sample;

	if (!samples)
		die("calloc");
	for (repeat = 0; repeat < options.repeats; repeat++) {
		for (i = 0; i < series; i++) {
			mode = &modes[i % nr_modes];
			sample = &samples[i * options.repeats + repeat];
			enter(mode);
			if (!slices_run(e, sample)) {
				fprintf(stderr, "experiment %s failed\n", e->name);
				exit(1);
			}
			sample->mode_lost = !in_force(mode);
		}
	}
	if (!report(e, modes, samples))
		refused = true;
	free(samples);
}

static void measure_mixed(int transport, int mix, int state)
{
	struct experiment e = {
		.what = "", .kind = MIXED, .transport = transport, .mix = mix, .state = state,
	};

	snprintf(e.name, sizeof(e.name), "%s/%s%s%s", transports[transport], mixes[mix],
		 mix == MIX_NONE ? "" : "/", mix == MIX_NONE ? "" : states[state]);
	measure(&e);
}

/* Without use of the FPU, it does not matter which state is not used. */
static void measure_all_mixed(const struct choice *choice)
{
	int transport, mix, state;

	for (transport = 0; transport < NR_TRANSPORTS; transport++) {
		if (!(choice->transports & 1 << transport))
			continue;
		if (choice->mixes & 1 << MIX_NONE)
			measure_mixed(transport, MIX_NONE, X87);
		for (mix = MIX_NONE + 1; mix < NR_MIXES; mix++) {
			for (state = 0; state < NR_STATES; state++) {
				if (choice->mixes & 1 << mix && choice->states & 1 << state)
					measure_mixed(transport, mix, state);
			}
		}
	}
}

static void drop_missing_states(struct choice *choice)
{
	bool named = choice->states != ALL;
	const char *why;
	int state;

	for (state = 0; state < NR_STATES; state++) {
		why = choice->states & 1 << state ? slices_missing(state) : NULL;
		if (why) {
			report_skipped(states[state], why);
			choice->states &= ~(1 << state);
			refused |= named;
		}
	}
}

static void usage(FILE *out)
{
	unsigned int i;

	fprintf(out,
		"fpu_switch_bench [OPTIONS]\n"
		"\n"
		"Measures what a context switch costs, all sides on one CPU.\n"
		"\n"
		"  -e, --experiments LETTERS  the experiments of 2006 and more like them; all,\n"
		"                             unless others are chosen below:\n");
	for (i = 0; i < ARRAY_SIZE(letters); i++)
		fprintf(out, "                               %s  %s\n", letters[i].name,
			letters[i].what);
	fprintf(out,
		"  -t, --transport LIST       of futex, pipe, eventfd, unix, yield; or all (futex)\n"
		"  -m, --mix LIST             who uses the FPU in which slices: none; one side in\n"
		"                             each; both; nth: both in every nth; bursts: both in\n"
		"                             16 of 64; change: both in 640 of 1280; or all (all)\n"
		"  -s, --state LIST           of x87, sse, avx, avx512; or all (x87)\n"
		"  -n, --nth N                for the mix nth (8)\n"
		"  -T, --threads N            that take turns by yield (4)\n"
		"  -M, --modes LIST           of auto, eager, sleazy, lazy, adaptive: compare them\n"
		"                             with the first one, by switching the kernel's mode;\n"
		"                             otherwise measure in the mode in force\n"
		"  -R, --repeats N            runs in each mode (9 to compare modes, otherwise 1)\n"
		"  -r, --rounds N             round trips in a run (%ld), at least %d\n"
		"  -c, --cpu N                the CPU (the last one)\n"
		"      --csv, --json          machine-readable; null or empty is what could not\n"
		"                             be measured\n"
		"  -h, --help                 this text\n"
		"\n"
		"Status: 0, 1 after a failure, 2 after a wrong argument, 4 if something that was\n"
		"asked for could not be measured or compared.\n",
		options.rounds, BATCH);
}

static long number_from(const char *option, const char *text, long least, long most)
{
	char *end, range[48];
	long n;

	errno = 0;
	n = strtol(text, &end, 10);
	if (errno || *end || end == text || n < least || n > most) {
		snprintf(range, sizeof(range), "a number from %ld to %ld", least, most);
		bad_argument(option, text, range);
	}
	return n;
}

/* Which of the words this is */
static int word_from(const char *option, const char *text, const char * const *words, int nr)
{
	char known[64] = "";
	int i;

	for (i = 0; i < nr; i++) {
		if (!strcmp(text, words[i]))
			return i;
		strcat(known, i ? ", " : "");
		strcat(known, words[i]);
	}
	bad_argument(option, text, known);
	return -1;
}

static unsigned int set_from(const char *option, char *list, const char * const *words, int nr)
{
	unsigned int set = 0;
	char *word;

	if (!strcmp(list, "all"))
		return ALL;
	while ((word = strsep(&list, ",")))
		set |= 1U << word_from(option, word, words, nr);
	return set;
}

static void modes_from(char *list, struct choice *choice)
{
	unsigned int set = 0;
	char *word;
	int mode;

	for (choice->nr_modes = 0; (word = strsep(&list, ",")); choice->nr_modes++) {
		mode = word_from("modes", word, mode_words, MAX_MODES);
		if (set & 1U << mode)
			bad_argument("modes", word, "each mode once");
		set |= 1U << mode;
		choice->modes[choice->nr_modes] = mode;
	}
}

static void parse_arguments(int argc, char **argv, struct choice *choice)
{
	static const struct option known[] = {
		{ "experiments", required_argument, NULL, 'e' },
		{ "transport", required_argument, NULL, 't' },
		{ "mix", required_argument, NULL, 'm' },
		{ "state", required_argument, NULL, 's' },
		{ "nth", required_argument, NULL, 'n' },
		{ "threads", required_argument, NULL, 'T' },
		{ "modes", required_argument, NULL, 'M' },
		{ "repeats", required_argument, NULL, 'R' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "cpu", required_argument, NULL, 'c' },
		{ "csv", no_argument, NULL, 'C' },
		{ "json", no_argument, NULL, 'J' },
		{ "help", no_argument, NULL, 'h' },
		{ }
	};
	int option;

	while ((option = getopt_long(argc, argv, "e:t:m:s:n:T:M:R:r:c:h", known, NULL)) >= 0) {
		switch (option) {
		case 'e':
			choice->letters = optarg;
			if (!*optarg || strspn(optarg, LETTERS) != strlen(optarg))
				bad_argument("experiments", optarg, "letters of " LETTERS);
			break;
		case 't':
			choice->transports = set_from("transport", optarg, transports,
						      NR_TRANSPORTS);
			break;
		case 'm':
			choice->mixes = set_from("mix", optarg, mixes, NR_MIXES);
			break;
		case 's':
			choice->states = set_from("state", optarg, states, NR_STATES);
			break;
		case 'n':
			options.nth = number_from("nth", optarg, 2, 1000);
			break;
		case 'T':
			options.threads = number_from("threads", optarg, 2, MAX_THREADS);
			break;
		case 'M':
			modes_from(optarg, choice);
			break;
		case 'R':
			options.repeats = number_from("repeats", optarg, 1, 1000);
			break;
		case 'r':
			options.rounds = number_from("rounds", optarg, BATCH, 10000000);
			break;
		case 'c':
			options.cpu = number_from("cpu", optarg, 0, CPU_SETSIZE - 1);
			break;
		case 'C':
			options.csv = true;
			break;
		case 'J':
			options.json = true;
			break;
		case 'h':
			usage(stdout);
			exit(0);
		default:
			usage(stderr);
			exit(2);
		}
	}
	if (optind < argc)
		bad_argument("argument", argv[optind], "none but options, see --help");
	if (options.csv && options.json)
		bad_argument("format", "csv and json", "one of them");
}

/* What was not asked for, as a whole that makes sense */
static void complete(struct choice *choice)
{
	bool mixed = choice->transports || choice->mixes || choice->states;

	if (mixed) {
		choice->transports = choice->transports ?: 1 << FUTEX;
		choice->mixes = choice->mixes ?: ALL;
		choice->states = choice->states ?: 1 << X87;
	} else if (!choice->letters) {
		choice->letters = LETTERS;
	}
	if (!options.repeats)
		options.repeats = choice->nr_modes > 1 ? 9 : 1;
	if (choice->nr_modes > 1 && options.repeats < 3)
		bad_argument("repeats", "less than 3", "more, to tell a difference from noise");
}

static int last_cpu(void)
{
	cpu_set_t set;
	int cpu;

	if (sched_getaffinity(0, sizeof(set), &set))
		die("sched_getaffinity");
	for (cpu = CPU_SETSIZE - 1; cpu > 0 && !CPU_ISSET(cpu, &set); cpu--)
		;
	return cpu;
}

static void pin(void)
{
	cpu_set_t set;
	char text[16];

	CPU_ZERO(&set);
	CPU_SET(options.cpu, &set);
	if (!sched_setaffinity(0, sizeof(set), &set))
		return;
	snprintf(text, sizeof(text), "%d", options.cpu);
	bad_argument("cpu", text, "one that is online and permitted");
}

int main(int argc, char **argv)
{
	struct choice choice = { };
	unsigned int i;

	options.cpu = last_cpu();
	parse_arguments(argc, argv, &choice);
	complete(&choice);
	pin();
	if (!slices_setup()) {
		fprintf(stderr, "fpu_switch_bench: the CPU has no TSC, or there is no memory\n");
		return KSFT_SKIP;
	}
	choose_modes(&choice);
	drop_missing_states(&choice);

	report_begin(modes, nr_modes);
	for (i = 0; i < ARRAY_SIZE(letters); i++) {
		if (choice.letters && strchr(choice.letters, letters[i].name[0]))
			measure(&letters[i]);
	}
	measure_all_mixed(&choice);
	report_end();
	return refused ? KSFT_SKIP : 0;
}
