/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The fixture of the fpu_state_* tests: every test runs in each history of the
 * subject, beside a partner that uses the FPU in each of its slices or in none.
 * Beside a cold partner the registers of the subject survive on the CPU.
 */
#ifndef FPU_HISTORIES_H
#define FPU_HISTORIES_H

#include <signal.h>

#include "../kselftest_harness.h"
#include "fpu_state.h"

FIXTURE(history)
{
	struct fpu_pair *pair;
	struct fpu_task *subject;
	long warned;
};

FIXTURE_VARIANT(history)
{
	enum fpu_history subject;
	enum fpu_history partner;
};

FIXTURE_VARIANT_ADD(history, cold_beside_hot)
{
	.subject = COLD, .partner = HOT,
};

FIXTURE_VARIANT_ADD(history, cold_beside_cold)
{
	.subject = COLD, .partner = COLD,
};

FIXTURE_VARIANT_ADD(history, hot_beside_cold)
{
	.subject = HOT, .partner = COLD,
};

FIXTURE_VARIANT_ADD(history, hot_beside_hot)
{
	.subject = HOT, .partner = HOT,
};

FIXTURE_VARIANT_ADD(history, wrapping_beside_cold)
{
	.subject = WRAPPING, .partner = COLD,
};

FIXTURE_VARIANT_ADD(history, wrapping_beside_hot)
{
	.subject = WRAPPING, .partner = HOT,
};

FIXTURE_SETUP(history)
{
	self->warned = fpu_kernel_warned();
	self->pair = fpu_pair_start(fpu_nth_cpu(0), variant->partner, SIGCHLD);
	ASSERT_TRUE(!!self->pair);
	self->subject = &self->pair->subject;
}

FIXTURE_TEARDOWN(history)
{
	EXPECT_EQ(0, fpu_pair_stop(self->pair));
	EXPECT_EQ(self->warned, fpu_kernel_warned()) {
		TH_LOG("The kernel has warned, see its log");
	}
}

#endif
