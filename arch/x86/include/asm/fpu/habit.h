/* SPDX-License-Identifier: GPL-2.0 */
#ifndef _ASM_X86_FPU_HABIT_H
#define _ASM_X86_FPU_HABIT_H

/**
 * struct fpu_habit - What the adaptive rule knows of a task, beside its counter
 * @after_unused:	Chance of use after an unused slice, in 64ths, at most
 *			FPU_CHANCE_MAX
 * @after_used:		The same after a used slice
 * @hints:		Hints in a row
 * @doubt:		2^doubt hints in a row are believed; at FPU_DOUBT_MAX, none is
 * @sure:		How often in a row use was seen, at most FPU_SURE_MAX
 * @began:		enum fpu_began
 */
struct fpu_habit {
	unsigned char after_unused;
	unsigned char after_used;
	unsigned char hints;
	unsigned char doubt	: 3;
	unsigned char sure	: 3;
	unsigned char began;
};

#endif /* _ASM_X86_FPU_HABIT_H */
