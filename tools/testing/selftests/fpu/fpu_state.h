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

/* What FSAVE writes in 32-bit mode, and 32-bit frames and regsets hold. */
struct fpu_fsave {
	__u32 fcw;
	__u32 fsw;
	__u32 ftw;
	__u32 pointers[4];
	__u8 st[8][10];
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
extern bool fpu_knows_in_use;

unsigned int fpu_rounds(void);
bool fpu_can_use_by(enum fpu_insn insn);
int fpu_nth_cpu(int n);
int fpu_pin(int cpu);
long fpu_kernel_warned(void);
void *fpu_share(size_t size);

void fpu_pattern(struct fpu_image *image, unsigned int round);
void fpu_initial(struct fpu_image *image);
void fpu_initial_extended(struct fpu_image *image);
void fpu_take_pkru(struct fpu_image *image);
void fpu_from_fsave(struct fpu_image *image, const struct fpu_fsave *fsave);
void fpu_to_fsave(struct fpu_fsave *fsave, const struct fpu_image *image);

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

#endif
