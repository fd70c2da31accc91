/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the fpu_state_* tests share: a subject that holds a pattern in all its
 * registers, and a partner that holds another one on the same CPU.
 *
 * Subject and partner take turns. A slice of the subject ends when it gives its
 * turn to the partner, so the tests decide in which slices who uses the FPU.
 */
#ifndef FPU_STATE_H
#define FPU_STATE_H

#include <stdbool.h>
#include <sys/types.h>

#include "fpu_regs.h"

/* The regset with what FXSAVE writes. For a 32-bit task, NT_PRFPREG has FSAVE's. */
#ifdef __x86_64__
#define NT_FXSAVE	NT_PRFPREG
#else
#define NT_FXSAVE	NT_PRXFPREG
#endif

/* fpregs_soft_set() of the kernel's math emulation */
#define EMULATION_MIXES_UP	"needs an FPU: the emulation mixes up registers that it is given"

/* What the kernel has a hash by vectors for, as long as it has the algorithm */
#ifdef __x86_64__
#define FPU_HASH		"sha256"
#define FPU_HASH_SIZE	32
#else
#define FPU_HASH		"crc32"
#define FPU_HASH_SIZE	4
#endif

/* Skip what a fixture is for, from its setup. */
#if BASE_VERSION >= 612
#define FPU_SKIP_FIXTURE(...)	SKIP(return, __VA_ARGS__)
#else
/* This kselftest_harness.h would go on with the test. */
#define FPU_SKIP_FIXTURE(...)	SKIP(_exit(255), __VA_ARGS__)
#endif

/* How a task used the FPU in its latest slices. */
enum fpu_history {
	COLD,		/* not at all */
	HOT,		/* in each, and for more than the threshold of 5 */
	WRAPPING,	/* in each, and just past the wrap of a counter of 8 bits */
};

struct fpu_task {
	struct fpu_image want;
	struct fpu_image wanted;	/* with the first wrong reading */
	struct fpu_image got;		/* its latest or its first wrong reading */
	unsigned int readings;
	unsigned int wrong;		/* number of the first wrong reading */
	__u64 not_in_use;		/* live components that XGETBV(1) denied */
};

/* In memory that forked children share. */
struct fpu_pair {
	struct fpu_task subject;
	struct fpu_task partner;
	struct fpu_task child;		/* at the disposal of the test */
	char stack[32768];
	char child_stack[32768];
	enum fpu_history history;	/* of the partner */
	pid_t signal_subject;		/* send SIGUSR1 in the next slice */
	int turn;
	int stop;
	int cpu;
	pid_t pid;
};

extern __u64 fpu_features;
extern bool fpu_knows_in_use;		/* XGETBV(1) */
extern bool fpu_knows_compacted;	/* XSAVEC */

unsigned int fpu_rounds(void);
bool fpu_can_use_by(enum fpu_insn insn);
int fpu_nth_cpu(int n);
int fpu_pin(int cpu);
bool fpu_set_online(int cpu, bool online);
long fpu_kernel_warned(void);
void *fpu_share(size_t size);
void fpu_exec_helper(char *path, size_t size);

void fpu_pattern(struct fpu_image *image, unsigned int round);
void fpu_initial(struct fpu_image *image);
void fpu_initial_extended(struct fpu_image *image);
void fpu_legacy_only(struct fpu_image *image);

void fpu_take_regset(struct fpu_image *image, int regset, const void *from);
void fpu_put_regset(struct fpu_image *to, int regset,
		    const struct fpu_image *image);

void fpu_hold(struct fpu_task *task, unsigned int round);
bool fpu_check(struct fpu_task *task);
void fpu_read(struct fpu_task *task);
unsigned int fpu_wrong(const char *who, const struct fpu_task *task);

struct fpu_pair *fpu_pair_start(int cpu, enum fpu_history history, int flags);
unsigned int fpu_pair_stop(struct fpu_pair *pair);
void fpu_slice(struct fpu_pair *pair);
void fpu_live(struct fpu_pair *pair, struct fpu_task *task,
	      enum fpu_history history);
void fpu_await_change(int *word, int value);
void fpu_sleep(void);
void fpu_spin(void);
__u64 fpu_clock(void);

int fpu_open_algorithm(const char *type, const char *name);
int fpu_connect_signed(int fds[2]);

#endif
