/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _ASM_X86_FPU_COUNTER_H
#define _ASM_X86_FPU_COUNTER_H

/*
 * The rule of the sLeAZY FPU: what task_struct::fpu_counter does. No kernel
 * state in here, so that the KUnit test and a program can include it.
 *
 * A slice is the time from a task's switch-in to its switch-out, provided
 * that it returned to user mode in between. A slice is used when the task's
 * FPU state was loaded for user mode in it, by #NM or at the return.
 */

/*
 * Value of the counter from which on a mode loads the state at the first
 * return to user mode of a slice. The counter never exceeds 255.
 */
#define FPU_EAGER_ALWAYS	0
#define FPU_EAGER_SLEAZY	5
#define FPU_EAGER_NEVER		256

/**
 * fpu_counter_eager - Load the FPU state at the return to user mode?
 * @counter:	Number of used slices in a row, before this one
 * @threshold:	FPU_EAGER_*
 *
 * Return: true to load the state, false to wait for #NM.
 */
static inline bool fpu_counter_eager(unsigned char counter, unsigned int threshold)
{
	return counter >= threshold;
}

/**
 * fpu_counter_next - Count a slice that ends
 * @counter:	Number of used slices in a row, before this one
 * @used:	This slice was used
 *
 * An eager slice always counts as used, for nothing tells whether it was.
 * So the bet is off after 255: a task that no longer uses the FPU would
 * stay eager for ever.
 *
 * Return: The new counter: 0 after an unused slice, and after 255, where the
 * byte wraps.
 */
static inline unsigned char fpu_counter_next(unsigned char counter, bool used)
{
	return used ? (counter + 1) & 0xff : 0;
}

#endif /* _ASM_X86_FPU_COUNTER_H */
