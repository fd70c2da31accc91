/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM x86_fpu_lazy

#if !defined(_TRACE_FPU_LAZY_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_FPU_LAZY_H

#include <linux/sched.h>
#include <linux/tracepoint.h>

/* While any of them is on, all tasks take the path that has them. */
int fpu_lazy_trace_on(void);
void fpu_lazy_trace_off(void);

/*
 * A slice begins with x86_fpu_armed or x86_fpu_eager, and ends with x86_fpu_unused
 * or x86_fpu_used, but for slices that are no evidence: these begin and do not end,
 * or neither.
 *
 * counter: before the slice is counted
 * xfeatures: components that the task has in memory, so as of its last save
 * own: the registers hold what is in memory. At the beginning of a slice, there is
 *	nothing to restore; at the end of a used one, its first vector registers
 *	have not changed since they were loaded.
 */
DECLARE_EVENT_CLASS(x86_fpu_lazy,
	TP_PROTO(struct task_struct *tsk, u64 xfeatures, bool own),
	TP_ARGS(tsk, xfeatures, own),

	TP_STRUCT__entry(
		__field(pid_t, pid)
		__field(unsigned char, counter)
		__field(bool, own)
		__field(u64, xfeatures)
	),

	TP_fast_assign(
		__entry->pid		= tsk->pid;
		__entry->counter	= tsk->fpu_counter;
		__entry->own		= own;
		__entry->xfeatures	= xfeatures;
	),

	TP_printk("pid=%d counter=%u own=%d xfeatures=%llx",
		  __entry->pid, __entry->counter, __entry->own, __entry->xfeatures)
);

#define DEFINE_X86_FPU_LAZY_EVENT(name)				\
DEFINE_EVENT_FN(x86_fpu_lazy, name,				\
	TP_PROTO(struct task_struct *tsk, u64 xfeatures, bool own), \
	TP_ARGS(tsk, xfeatures, own),				\
	fpu_lazy_trace_on, fpu_lazy_trace_off)

/* First return to user mode of a slice, armed */
DEFINE_X86_FPU_LAZY_EVENT(x86_fpu_armed);
/* First return to user mode of a slice, with the state loaded */
DEFINE_X86_FPU_LAZY_EVENT(x86_fpu_eager);
/* #NM in an armed task */
DEFINE_X86_FPU_LAZY_EVENT(x86_fpu_trap);
/* An armed slice ends without use */
DEFINE_X86_FPU_LAZY_EVENT(x86_fpu_unused);
/* A slice ends in which the state was loaded for user mode */
DEFINE_X86_FPU_LAZY_EVENT(x86_fpu_used);
/* And that sets the counter to 0 */
DEFINE_X86_FPU_LAZY_EVENT(x86_fpu_reset);

TRACE_EVENT(x86_fpu_mode,
	TP_PROTO(const char *from, const char *to),
	TP_ARGS(from, to),

	TP_STRUCT__entry(
		__array(char, from, 16)
		__array(char, to, 16)
	),

	TP_fast_assign(
		strscpy(__entry->from, from, sizeof(__entry->from));
		strscpy(__entry->to, to, sizeof(__entry->to));
	),

	TP_printk("from=%s to=%s", __entry->from, __entry->to)
);

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH asm/trace/
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE fpu_lazy
#endif /* _TRACE_FPU_LAZY_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
